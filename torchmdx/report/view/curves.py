"""Curves next to the frames: from the log of a run, or from what the frames of a file carry."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.movie import Line, Panel
from torchmdx.report.view.thin import MOST_POINTS, evenly
from torchmdx.runtime.damaged_file import naming
from torchmdx.structures.units import GPA, KJ_PER_MOL

if TYPE_CHECKING:
    from ase import Atoms

Floats = NDArray[np.float64]

DENSITY = 1.66053906660  # g/cm³ of 1 amu/Å³
PRESSURE = "pressure / GPa"
# Columns of OpenMM's StateDataReporter: name here, factor.
OF_OPENMM = {
    "Step": ("step", 1.0),
    "Time (ps)": ("time_ps", 1.0),
    "Potential Energy (kJ/mole)": ("potential_eV", KJ_PER_MOL),
    "Total Energy (kJ/mole)": ("total_eV", KJ_PER_MOL),
    "Temperature (K)": ("temperature_K", 1.0),
    "Density (g/mL)": ("density_g_per_cm3", 1.0),
}
CONSTANT = 1e-6  # relative change below which a volume counts as fixed


def read_table(log: Path) -> dict[str, Floats]:
    """Columns of a CSV file by name, those of OpenMM's StateDataReporter by the names of `torchmdx md`.

    Empty fields are NaN. Raises ValueError that names the file for other content.
    """
    with naming(log):
        lines = log.read_text().splitlines()
        names = next(csv.reader([lines[0].lstrip("#")])) if lines else []
        kinds = [OF_OPENMM.get(name, (name, 1.0)) for name in names]
        if "time_ps" not in [name for name, _ in kinds]:
            raise ValueError(
                f"{str(log)!r} must be a log of `torchmdx md`, with a column time_ps, or one of OpenMM's "
                "StateDataReporter with time=True, separated by commas"
            )
        rows = [[_number(field) for field in line.split(",")] for line in lines[1:]]
        if any(len(row) != len(names) for row in rows):
            raise ValueError(f"{str(log)!r} must have {len(names)} fields in every row")
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return {name: values * factor for (name, factor), values in zip(kinds, table.T, strict=True)}


def _number(field: str) -> float:
    """NaN for fields that are empty, or that OpenMM cannot know yet ("--")."""
    return float("nan" if field in ("", "--") else field.removesuffix("%"))


def log_panels(log: Path, temperature: float | None = None) -> list[Panel]:
    """Energies, temperature and, where they change, density and spread, against time. temperature: thermostat's, K."""
    table = read_table(log)
    kept = evenly(len(table["time_ps"]), MOST_POINTS)
    table = {name: values[kept] for name, values in table.items()}
    time = table["time_ps"]
    panels = []
    energies = {name: table[f"{name}_eV"] for name in ("potential", "total") if f"{name}_eV" in table}
    if energies and len(time):
        panels.append(energy_panel(time, energies))
    if "temperature_K" in table:
        panels.append(Panel("temperature / K", [Line("temperature", time, table["temperature_K"])], temperature))
    if "density_g_per_cm3" in table and moves(table["density_g_per_cm3"]):
        panels.append(Panel("density / g/cm³", [Line("density", time, table["density_g_per_cm3"])]))
    if "force_spread_eV_per_A" in table:
        spread = Line("largest force spread", time, table["force_spread_eV_per_A"])
        panels.append(Panel("force spread / eV/Å", [spread]))
    return panels


def frame_panels(structures: Sequence[Atoms], x: Floats) -> list[Panel]:
    """Energy, largest force, temperature and, of changing volumes, density and pressure, as far as frames have them."""
    if len(structures) < 2:
        return []
    panels = []
    energies = np.array([_result(atoms, "energy") for atoms in structures])
    if np.isfinite(energies).sum() > 1:
        if len({atoms.get_chemical_formula() for atoms in structures}) > 1:
            each = energies / np.array([len(atoms) for atoms in structures])
            panels.append(Panel("energy / eV/atom", [Line("energy", x, each)]))
        else:
            panels.append(energy_panel(x, {"energy": energies}))
    forces = np.array([_result(atoms, "forces") for atoms in structures])
    if np.isfinite(forces).sum() > 1:
        panels.append(Panel("largest force / eV/Å", [Line("largest force", x, forces)], logarithmic=spans(forces)))
    temperatures = np.array([atoms.get_temperature() if atoms.has("momenta") else np.nan for atoms in structures])
    if (temperatures > 0).sum() > 1:
        panels.append(Panel("temperature / K", [Line("temperature", x, temperatures)]))
    if all(atoms.pbc.any() and atoms.cell.rank == 3 for atoms in structures):
        volumes = np.array([atoms.get_volume() for atoms in structures])
        if moves(volumes) and all(atoms.pbc.all() for atoms in structures):
            densities = DENSITY * np.array([atoms.get_masses().sum() for atoms in structures]) / volumes
            panels.append(Panel("density / g/cm³", [Line("density", x, densities)]))
            pressures = np.array([_result(atoms, "stress") for atoms in structures])
            if np.isfinite(pressures).sum() > 1:
                panels.append(Panel(PRESSURE, [Line("pressure", x, pressures)]))
    return panels


def energy_panel(x: Floats, energies: dict[str, Floats]) -> Panel:
    """Energies relative to the first of the last curve, which the title states."""
    last = list(energies.values())[-1]
    start = float(last[np.isfinite(last)][0])
    lines = [Line(name, x, values - start) for name, values in energies.items()]
    return Panel(f"energy / eV, relative to {start:.3f}", lines)


def moves(values: Floats) -> bool:
    """Whether a quantity changes."""
    known = values[np.isfinite(values)]
    return len(known) > 1 and float(np.ptp(known)) > CONSTANT * float(np.abs(known).max())


def spans(values: Floats) -> bool:
    """Whether positive values differ so much that their axis should be logarithmic."""
    positive = values[np.isfinite(values) & (values > 0)]
    return len(positive) > 1 and float(positive.max()) > 20 * float(positive.min())


def _result(atoms: Atoms, name: str) -> float:
    """The energy, eV, the largest force, eV/Å, or for stress the pressure, GPa, of a frame; NaN without."""
    if atoms.calc is None or atoms.calc.results.get(name) is None:
        return float("nan")
    if name == "energy":
        return float(atoms.calc.results["energy"])
    if name == "stress":
        return -float(atoms.get_stress()[:3].mean()) / GPA
    forces = atoms.get_forces()  # zero on fixed atoms
    return float(np.linalg.norm(forces, axis=1).max(initial=0.0))
