"""The transport that needs nothing but OpenMM: a PythonForce around a captured step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.openmm_force.evaluator import Evaluator
from torchmdx.openmm_force.references import evaluator_of, reference_to
from torchmdx.units import KJ_PER_MOL, NANOMETER

TO_ENERGY = 1.0 / KJ_PER_MOL  # kJ/mol of 1 eV
TO_FORCE = NANOMETER / KJ_PER_MOL  # kJ/mol/nm of 1 eV/Å
# Up to this many, all particles are asked for by number: OpenMM fetches "all" by waking a thread on every core of the
# machine, which takes longer than the evaluation of a small molecule.
MOST_NAMED = 4096


class Computation:
    """What OpenMM calls at each step: a State to energy (kJ/mol) and forces (kJ/mol/nm)."""

    def __init__(self, evaluator: Evaluator, selects: bool) -> None:
        """selects: a State holds all particles, not only those of the potential."""
        settings = evaluator.settings
        self.evaluator, self._selects = evaluator, selects
        self._atoms = None if settings.atoms is None or not selects else np.array(settings.atoms)
        self._periodic, self._scale = settings.periodic, settings.scale_parameter

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        # No arrays are kept from call to call: Contexts may call from several threads.
        every = positions_of(state)
        positions = NANOMETER * (every if self._atoms is None else every[self._atoms])
        cell = None
        if self._periodic:
            cell = NANOMETER * np.array(state.getPeriodicBoxVectors(asNumpy=True)._value)
        energy, forces = self.evaluator.evaluate(positions, cell)
        scale = 1.0 if self._scale is None else state.getParameters()[self._scale]
        forces *= TO_FORCE * scale
        if self._atoms is not None:
            chosen, forces = forces, np.zeros_like(every)
            forces[self._atoms] = chosen
        return energy * TO_ENERGY * scale, forces

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (reference_to(self.evaluator), self._selects)


def positions_of(state: Any) -> NDArray[np.float64]:
    """Positions [n,3] in a State, nm.

    By what OpenMM's getPositions is made of, where there is that: it looks through all attributes of the State at each
    call, which takes longer than the copy of 22 atoms.
    """
    fill = getattr(state, "_getVectorAsNumpy", None)
    if fill is None:
        return np.asarray(state.getPositions(asNumpy=True)._value)
    positions = np.empty((state._getNumParticles(), 3))
    fill(openmm.State.Positions, positions)
    return positions


class Unrestored:
    """In the place of a computation that could not be restored: says why when it is first called.

    OpenMM takes an exception during unpickling for a crash of the process.
    """

    def __init__(self, text: str, selects: bool, reason: str) -> None:
        self.text, self.selects, self.reason = text, selects, reason

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        raise ValueError(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self.text, self.selects)


def restore(text: str, selects: bool) -> Computation | Unrestored:
    """The computation that was saved as a reference; one that raises, for a checkpoint that is gone or has changed."""
    try:
        return Computation(evaluator_of(text), selects)
    except Exception as error:
        return Unrestored(text, selects, str(error))


def make_python_force(evaluator: Evaluator, system: openmm.System) -> openmm.Force:
    """Adds a PythonForce. Raises ImportError before OpenMM 8.6, whose PythonForce is the first to take particles."""
    version = openmm.version.short_version
    if tuple(int(part) for part in version.split(".")[:2]) < (8, 6):
        raise ImportError(f"transport 'python' needs OpenMM 8.6 or newer, got {version}")
    settings = evaluator.settings
    parameters = {} if settings.scale_parameter is None else {settings.scale_parameter: 1.0}
    # OpenMM gives some particles as it keeps them, molecules moved by box vectors, but all of them as they are set.
    # Periodic images make no difference to a potential that has them itself.
    moved = not settings.periodic and system.usesPeriodicBoundaryConditions()
    selects = settings.atoms is not None and moved
    particles: Sequence[int] = () if moved else settings.atoms or ()
    if settings.atoms is None and not moved and system.getNumParticles() <= MOST_NAMED:
        particles = range(system.getNumParticles())
    force = openmm.PythonForce(Computation(evaluator, selects), parameters, list(particles))
    force.setUsesPeriodicBoundaryConditions(settings.periodic)
    return system.getForce(system.addForce(force))
