"""The runs of benchmarks/long_runs.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ase
import ase.io
from ase.build import bulk

from benchmarks import released_systems, systems

HEAVY = 3.0  # amu
MATPES = "TensorNet-MatPES-PBE-v2025.1-PES"


@dataclass(frozen=True)
class Run:
    """known: a measured density, g/cm³, or lattice constant, Å, at 300 K."""

    potential: str
    system: str
    ensemble: str  # nve, nvt, npt
    timestep: float  # fs
    compressibility: float = 4.6e-5  # 1/bar
    known: float | None = None
    settling: float = 5.0  # ps
    program: str = "Dynamics"
    hydrogens: float | None = None  # amu


LIQUID, BOX, DIPEPTIDE = "liquid_water", "peptide_in_water", "dipeptide_in_water"
WATER = Run("aceff-2.0", LIQUID, "npt", 2.0, known=0.997, settling=10.0, hydrogens=HEAVY)
RUNS = {
    "peptide-nvt": Run("aceff-1.1", BOX, "nvt", 2.0, hydrogens=HEAVY),
    "peptide-nve": Run("aceff-1.1", BOX, "nve", 2.0, hydrogens=HEAVY, settling=20.0),
    "dipeptide-nvt": Run("aceff-1.1", DIPEPTIDE, "nvt", 2.0, hydrogens=HEAVY),
    "dipeptide-nve": Run("aceff-1.1", DIPEPTIDE, "nve", 2.0, hydrogens=HEAVY, settling=20.0),
    "dipeptide-nvt-openmm": Run("aceff-1.1", DIPEPTIDE, "nvt", 2.0, hydrogens=HEAVY, program="OpenMM"),
    "dipeptide-nve-openmm": Run("aceff-1.1", DIPEPTIDE, "nve", 2.0, hydrogens=HEAVY, program="OpenMM", settling=20.0),
    "dipeptide-nvt-2.0": Run("aceff-2.0", DIPEPTIDE, "nvt", 2.0, hydrogens=HEAVY),
    "dipeptide-nve-2.0": Run("aceff-2.0", DIPEPTIDE, "nve", 2.0, hydrogens=HEAVY, settling=20.0),
    "water-npt": WATER,
    "water-npt-1.1": replace(WATER, potential="aceff-1.1"),
    "water-npt-openmm": replace(WATER, program="OpenMM"),
    "water-npt-1.1-openmm": replace(WATER, potential="aceff-1.1", program="OpenMM"),
    "copper-npt": Run(MATPES, "Cu 108", "npt", 2.0, 7e-7, known=3.615),
    "copper-npt-openmm": Run(MATPES, "Cu 108", "npt", 2.0, known=3.615, program="OpenMM"),
    "salt-npt": Run(MATPES, "NaCl 216", "npt", 2.0, 4e-6, known=5.640),
    "salt-npt-openmm": Run(MATPES, "NaCl 216", "npt", 2.0, known=5.640, program="OpenMM"),
}


def structure(name: str) -> ase.Atoms:
    if name == "Cu 108":
        return bulk("Cu", cubic=True) * (3, 3, 3)
    if name == "NaCl 216":
        return bulk("NaCl", "rocksalt", a=5.64, cubic=True) * (3, 3, 3)
    if name in (LIQUID, DIPEPTIDE):
        found = ase.io.read(systems.STRUCTURES / f"{name}.pdb", index=0)
        assert isinstance(found, ase.Atoms)
        return found
    return released_systems.structure(name)
