"""The transport that needs nothing but OpenMM: a PythonForce around a captured step."""

from __future__ import annotations

from typing import Any

import numpy as np
import openmm
from numpy.typing import NDArray

from torchmdx.openmm_parts.evaluator import Evaluator
from torchmdx.openmm_parts.references import evaluator_of, reference_to
from torchmdx.units import KJ_PER_MOL, NANOMETER

TO_ENERGY = 1.0 / KJ_PER_MOL  # kJ/mol of 1 eV
TO_FORCE = NANOMETER / KJ_PER_MOL  # kJ/mol/nm of 1 eV/Å


class Computation:
    """What OpenMM calls at each step: a State to energy (kJ/mol) and forces (kJ/mol/nm)."""

    def __init__(self, evaluator: Evaluator) -> None:
        settings = evaluator.settings
        self.evaluator = evaluator
        self._periodic, self._scale = settings.periodic, settings.scale_parameter
        self._positions = np.zeros((len(settings.numbers), 3))
        self._forces = np.zeros((len(settings.numbers), 3))

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        np.multiply(state.getPositions(asNumpy=True)._value, NANOMETER, out=self._positions)
        cell = None
        if self._periodic:
            cell = NANOMETER * np.array(state.getPeriodicBoxVectors(asNumpy=True)._value)
        energy, forces = self.evaluator.evaluate(self._positions, cell)
        scale = 1.0 if self._scale is None else state.getParameters()[self._scale]
        np.multiply(forces, TO_FORCE * scale, out=self._forces)
        return energy * TO_ENERGY * scale, self._forces

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (reference_to(self.evaluator),)


class Unrestored:
    """In the place of a computation that could not be restored: says why when it is first called.

    OpenMM takes an exception during unpickling for a crash of the process.
    """

    def __init__(self, text: str, reason: str) -> None:
        self.text, self.reason = text, reason

    def __call__(self, state: Any) -> tuple[float, NDArray[np.float64]]:
        raise ValueError(self.reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return restore, (self.text,)


def restore(text: str) -> Computation | Unrestored:
    """The computation that was saved as a reference; one that raises, for a checkpoint that is gone or has changed."""
    try:
        return Computation(evaluator_of(text))
    except Exception as error:
        return Unrestored(text, str(error))


def make_python_force(evaluator: Evaluator, system: openmm.System) -> openmm.Force:
    """Adds a PythonForce. Raises ImportError for an OpenMM that has none."""
    if not hasattr(openmm, "PythonForce"):
        raise ImportError(f"transport 'python' needs OpenMM 8.4 or newer, got {openmm.version.short_version}")
    settings = evaluator.settings
    parameters = {} if settings.scale_parameter is None else {settings.scale_parameter: 1.0}
    force = openmm.PythonForce(Computation(evaluator), parameters, list(settings.atoms or ()))
    force.setUsesPeriodicBoundaryConditions(settings.periodic)
    return system.getForce(system.addForce(force))
