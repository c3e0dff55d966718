"""Partial charges and dipole moment of a potential's atoms in OpenMM: on request, and as a reporter."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import openmm
from openmm import unit

from torchmdx.evaluation.derivatives import evaluate
from torchmdx.openmm.find import find
from torchmdx.openmm.potential_force import PotentialForce
from torchmdx.openmm.transport_python import positions_of
from torchmdx.structures.units import NANOMETER

if TYPE_CHECKING:
    from openmm import app

DEBYE = 48.0320471  # in 1 e nm; OpenMM's unit differs in the fourth digit
DIPOLE_UNIT = unit.elementary_charge * unit.nanometer


class Charges(NamedTuple):
    """charges: Quantity [n], e, of the particles of a potential and then of its link atoms.

    Attributes:
        dipole: Quantity [3], e nm, relative to the centre of nuclear charge; None for a potential of all particles of a
            periodic system, where it is not defined.
    """

    charges: unit.Quantity
    dipole: unit.Quantity | None


def charges_of(force: PotentialForce, state: openmm.State) -> Charges:
    """Charges and dipole of a potential's atoms at the positions and box of a State.

    One evaluation of the exact model. Positions must be those that OpenMM keeps, not wrapped into the box
    (enforcePeriodicBox=False, the default).

    Raises:
        ValueError: For a potential that predicts no charges.
    """
    evaluator = force.evaluator
    require_charges(force)
    settings = evaluator.settings
    every = NANOMETER * positions_of(state)
    cell = NANOMETER * np.array(state.getPeriodicBoxVectors(asNumpy=True)._value) if settings.periodic else None
    structure = evaluator.structure(every if settings.particles is None else every[list(settings.particles)], cell)
    found = evaluate(evaluator.potential, structure, forces=False).charges
    assert found is not None
    charges = found.double().cpu().numpy()
    if settings.periodic and settings.atoms is None:
        return Charges(charges * unit.elementary_charge, None)
    numbers, places = np.array(settings.numbers, float), structure.positions.numpy() / NANOMETER
    centre = numbers @ places / numbers.sum()
    return Charges(charges * unit.elementary_charge, charges @ (places - centre) * DIPOLE_UNIT)


def require_charges(force: PotentialForce) -> None:
    """Raises ValueError for a potential that predicts no charges."""
    if not force.evaluator.potential.predicts_charges:
        given = "one without" if force.checkpoint is None else force.checkpoint
        raise ValueError(f"charges need a potential that predicts them, such as a TensorNet2, got {given}")


class ChargeReporter:
    """Writes charges and dipole of a potential's atoms into a CSV file, as a reporter of an openmm.app.Simulation.

    Columns: step, time (ps), the components and the length of the dipole (debye) where it is defined, and the charge
    (e) of each particle, by its index; "8-6" is the link atom on the bond of particles 8 and 6. Every report costs one
    evaluation of the exact model.

    Args:
        file: A name, or something with `write`.
        force: As `find` returns it; None: the only potential of the System.
        append: Continue the file, without another header.
    """

    def __init__(
        self, file: str | Path | IO[str], reportInterval: int, force: PotentialForce | None = None, append: bool = False
    ) -> None:
        if reportInterval < 1:
            raise ValueError(f"reportInterval must be at least 1 step, got {reportInterval}")
        if force is not None:
            require_charges(force)
        self.interval, self.force = reportInterval, force
        self._is_named = isinstance(file, (str, Path))
        self._file: Any = open(file, "a" if append else "w") if isinstance(file, (str, Path)) else file  # noqa: SIM115
        self._has_header = append

    def describeNextReport(self, simulation: app.Simulation) -> dict[str, Any]:
        """The steps until the next report, and what it needs."""
        steps = self.interval - simulation.currentStep % self.interval
        return {"steps": steps, "periodic": False, "include": ["positions"]}

    def report(self, simulation: app.Simulation, state: openmm.State) -> None:
        """Writes a line.

        Raises:
            ValueError: For a System without such a potential, or with several.
        """
        if self.force is None:
            self.force = _only_potential(simulation.system)
        found = charges_of(self.force, state)
        if not self._has_header:
            self._file.write(",".join(self._columns(found)) + "\n")
            self._has_header = True
        values = [state.getTime().value_in_unit(unit.picosecond)]
        if found.dipole is not None:
            dipole = DEBYE * found.dipole.value_in_unit(DIPOLE_UNIT)
            values += [*dipole, float(np.linalg.norm(dipole))]
        values += list(found.charges.value_in_unit(unit.elementary_charge))
        self._file.write(",".join([str(simulation.currentStep), *(f"{value:.6g}" for value in values)]) + "\n")
        self._file.flush()

    def _columns(self, found: Charges) -> list[str]:
        assert self.force is not None
        dipole = [f"Dipole {axis} (debye)" for axis in ("x", "y", "z")] + ["Dipole (debye)"]
        links = [f"{link.inner}-{link.outer}" for link in self.force.link_atoms]
        atoms = [f"Charge {name} (e)" for name in (*map(str, self.force.atoms), *links)]
        return ["Step", "Time (ps)", *(dipole if found.dipole is not None else []), *atoms]

    def __del__(self) -> None:
        if getattr(self, "_is_named", False):
            self._file.close()


def _only_potential(system: openmm.System) -> PotentialForce:
    found = find(system)
    if len(found) != 1:
        raise ValueError(
            "ChargeReporter needs force=..., one of find(system), unless the System has one potential; it has "
            f"{len(found)}"
        )
    require_charges(found[0])
    return found[0]
