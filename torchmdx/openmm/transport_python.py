"""The transport that needs only OpenMM: a PythonForce around a captured step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.openmm.evaluator import ForceEvaluator
from torchmdx.openmm.references import evaluator_of, reference_to
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

TO_ENERGY = 1.0 / KJ_PER_MOL  # kJ/mol of 1 eV
TO_FORCE = NANOMETER / KJ_PER_MOL  # kJ/mol/nm of 1 eV/Å
# Up to this many particles all are requested by index. For a request of all particles without indices OpenMM wakes a
# thread on every core, which takes longer than the evaluation of a small molecule.
MOST_INDEXED = 4096
VARIABLE = "torchmdx_energy"  # of a scaled force, in kJ/mol


class Computation:
    """The function that OpenMM calls at each step: from a State to energy (kJ/mol) and forces (kJ/mol/nm)."""

    def __init__(self, evaluator: ForceEvaluator, selects: bool) -> None:
        """selects: States contain all particles, of which those of the potential are selected."""
        settings = evaluator.settings
        self.evaluator, self._selects = evaluator, selects
        self._atoms = None if settings.particles is None or not selects else np.array(settings.particles)
        self._periodic, self._scale = settings.periodic, settings.scale_parameter

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        # No arrays are reused between calls: Contexts may call from several threads.
        every = positions_of(state)
        positions = NANOMETER * (every if self._atoms is None else every[self._atoms])
        cell = None
        if self._periodic:
            cell = NANOMETER * np.array(state.getPeriodicBoxVectors(asNumpy=True)._value)
        energy, forces = self.evaluator.evaluate(positions, cell)
        # A CustomCVForce scales; only a PythonForce that an earlier version saved has the parameter itself.
        scale = 1.0 if self._scale is None else dict(state.getParameters()).get(self._scale, 1.0)
        forces *= TO_FORCE * scale
        if self._atoms is not None:
            chosen, forces = forces, np.zeros_like(every)
            forces[self._atoms] = chosen
        return (energy - self.evaluator.settings.energy_offset) * TO_ENERGY * scale, forces

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (reference_to(self.evaluator), self._selects)


def positions_of(state: Any) -> NDArray[np.float64]:
    """Positions [n,3] in a State, nm.

    Uses the function inside OpenMM's getPositions, if available: getPositions itself searches all attributes of the
    State at each call, which takes longer than copying 22 atoms.
    """
    fill = getattr(state, "_getVectorAsNumpy", None)
    if fill is None:
        return np.asarray(state.getPositions(asNumpy=True)._value)
    positions = np.empty((state._getNumParticles(), 3))
    fill(openmm.State.Positions, positions)
    return positions


class Unrestored:
    """Replaces a computation that could not be restored: raises the reason when it is called.

    An exception during unpickling would terminate the process in OpenMM.
    """

    def __init__(self, text: str, selects: bool, reason: str) -> None:
        self.text, self.selects, self.reason = text, selects, reason

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        raise ValueError(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self.text, self.selects)


def restore(text: str, selects: bool) -> Computation | Unrestored:
    """The computation of a saved reference; if its checkpoint is missing or changed, an object that raises."""
    try:
        return Computation(evaluator_of(text), selects)
    except Exception as error:
        return Unrestored(text, selects, str(error))


def make_python_force(evaluator: ForceEvaluator, system: openmm.System) -> openmm.Force:
    """Adds a PythonForce, inside a CustomCVForce if it is scaled: that one has a derivative by the scale.

    Raises:
        ImportError: For OpenMM before 8.6, the first whose PythonForce accepts particles.
        ValueError: If OpenMM may separate the atoms of a scaled potential that has no periodic images.
    """
    version = openmm.version.short_version
    if tuple(int(part) for part in version.split(".")[:2]) < (8, 6):
        raise ImportError(f"transport 'python' needs OpenMM 8.6 or newer, got {version}")
    settings = evaluator.settings
    # For selected particles OpenMM returns positions wrapped by molecule, for all particles those that were set. The
    # difference is irrelevant to a periodic potential.
    moved = not settings.periodic and system.usesPeriodicBoundaryConditions()
    if moved and settings.scale_parameter is not None and not stay_together(system, settings.particles):
        raise ValueError(
            "transport 'python' with a scale parameter needs periodic=True in a periodic system, or atoms that bonds, "
            "constraints or nonbonded exceptions hold together, because OpenMM wraps positions in a CustomCVForce into "
            "the box, molecule by molecule; use transport 'native' for periodic=False"
        )
    chosen = settings.particles
    # Of many particles all are requested in their order.
    whole = moved or (settings.surroundings is not None and settings.num_particles > MOST_INDEXED)
    selects = chosen is not None and whole
    particles: Sequence[int] = () if whole or chosen is None else chosen
    if settings.atoms is None and not moved and system.getNumParticles() <= MOST_INDEXED:
        particles = range(system.getNumParticles())
    force = openmm.PythonForce(Computation(evaluator, selects), {}, list(particles))
    force.setUsesPeriodicBoundaryConditions(settings.periodic)
    if settings.scale_parameter is not None:
        force = scaled(force, settings.scale_parameter)
    return system.getForce(system.addForce(force))


def scaled(force: openmm.Force, parameter: str) -> openmm.CustomCVForce:
    """parameter * the energy of a force; the parameter is 1 by default."""
    product = openmm.CustomCVForce(f"{parameter}*{VARIABLE}")
    product.addGlobalParameter(parameter, 1.0)
    product.addCollectiveVariable(VARIABLE, force)
    return product


def stay_together(system: openmm.System, atoms: Sequence[int] | None) -> bool:
    """Whether bonds, constraints and nonbonded exceptions connect all of the atoms (None: all particles)."""
    chosen = set(range(system.getNumParticles()) if atoms is None else atoms)
    partners: dict[int, set[int]] = {index: set() for index in chosen}
    for first, second in _connections(system):
        if first in chosen and second in chosen:
            partners[first].add(second)
            partners[second].add(first)
    reached: set[int] = set()
    open_ends = [next(iter(chosen))]
    while open_ends:
        index = open_ends.pop()
        if index not in reached:
            reached.add(index)
            open_ends.extend(partners[index] - reached)
    return reached == chosen


def _connections(system: openmm.System) -> Iterator[Sequence[int]]:
    for index in range(system.getNumConstraints()):
        yield system.getConstraintParameters(index)[:2]
    for force in system.getForces():
        if isinstance(force, openmm.NonbondedForce):
            yield from (force.getExceptionParameters(index)[:2] for index in range(force.getNumExceptions()))
        elif isinstance(force, openmm.HarmonicBondForce):
            yield from (force.getBondParameters(index)[:2] for index in range(force.getNumBonds()))
