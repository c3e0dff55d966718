"""What benchmarks/learning.py learns: structures to start from, test frames of the reference itself, and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase import units
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import Calculator as AseCalculator
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import write
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution

COPPER, GOLD = 29, 79
SPACING = {COPPER: 3.61, GOLD: 4.08}  # Å, of the fcc lattices
SHARES = (0.25, 0.5, 0.75)  # of gold
FREE_ROOM = 1.035  # of the lattice constant, at which a crystal melts
MALONALDEHYDE = [
    [0.475, -2.243, 0.527], [0.849, -1.15, 0.118], [0.0, 0.0, 0.0], [-1.308, -0.09, 0.35], [-1.879, -1.177, 0.808],
    [1.897, -1.008, -0.191], [0.409, 0.923, -0.368], [-1.982, 0.757, 0.27], [-1.18, -1.89, 0.841],
]  # fmt: skip
DONOR, ACCEPTOR, PROTON = 4, 0, 8  # atoms of malonaldehyde, between whose oxygens the proton moves
HELD = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]  # Å, references of the distance from donor to proton


def alloy(share: float, seed: int, room: float = 1.0) -> ase.Atoms:
    """A crystal of 32 atoms with gold at random places. room: of the lattice constant."""
    constant = room * (SPACING[GOLD] * share + SPACING[COPPER] * (1 - share))
    return _mixed(bulk("Cu", cubic=True, a=constant) * (2, 2, 2), share, seed)


def slab(share: float, seed: int) -> ase.Atoms:
    """Three layers of (111) surface with 27 atoms, periodic in all directions, 10 Å apart."""
    atoms = fcc111("Cu", (3, 3, 3), a=SPACING[GOLD] * share + SPACING[COPPER] * (1 - share), vacuum=5.0)
    atoms.pbc = True
    return _mixed(atoms, share, seed)


def malonaldehyde() -> ase.Atoms:
    """The minimum of GFN2-xTB with a hydrogen bond."""
    return ase.Atoms("OCCCOHHHH", MALONALDEHYDE)


def organic() -> AseCalculator:
    """The potential that comes along, as a calculator that labels."""
    import torchmdx

    return torchmdx.Calculator("organic-1", device="cpu")


def _mixed(atoms: ase.Atoms, share: float, seed: int) -> ase.Atoms:
    gold = np.random.default_rng([seed, len(atoms)]).permutation(len(atoms))[: round(share * len(atoms))]
    atoms.numbers[:], atoms.numbers[gold] = COPPER, GOLD
    return atoms


@dataclass(frozen=True)
class Sampled:
    """Test frames: dynamics of the reference from structures other than those that a run starts from.

    Attributes:
        structures: A trajectory of each, at each temperature, K.
        melt: K, at which the first half of the equilibration runs, if any.
        equilibration, every: Steps before the first frame and between frames.
        frames: Of each trajectory.
    """

    structures: Callable[[], list[ase.Atoms]]
    calculator: Callable[[], AseCalculator]
    temperatures: tuple[float, ...]
    timestep: float  # fs
    melt: float | None = None
    equilibration: int = 600
    every: int = 100
    frames: int = 10

    def write(self, path: Path, share: float = 1.0) -> None:
        """Makes the file of labelled frames. share: of the steps, for a trial."""
        found, steps = [], max(1, int(share * self.equilibration))
        for number, atoms in enumerate(self.structures()):
            for temperature in self.temperatures:
                found += self.trajectory(atoms.copy(), temperature, number, steps, max(1, int(share * self.every)))
        write(path.with_suffix(".part"), found, format="extxyz")
        path.with_suffix(".part").rename(path)

    def trajectory(self, atoms: ase.Atoms, temperature: float, seed: int, steps: int, every: int) -> list[ase.Atoms]:
        """Labelled frames of one trajectory, after `steps` of equilibration."""
        rng = np.random.RandomState(1000 + seed + int(temperature))
        atoms.calc = self.calculator()
        MaxwellBoltzmannDistribution(atoms, temperature_K=temperature, rng=rng)
        motion = Langevin(
            atoms, self.timestep * units.fs, temperature_K=self.melt or temperature, friction=0.01 / units.fs, rng=rng
        )
        motion.run(steps // 2)
        motion.set_temperature(temperature_K=temperature)
        motion.run(steps - steps // 2)
        found = []
        for _ in range(self.frames):
            motion.run(every)
            frame = ase.Atoms(atoms.numbers, atoms.positions, cell=atoms.cell, pbc=atoms.pbc)
            frame.calc = SinglePointCalculator(
                frame, energy=atoms.get_potential_energy(), forces=atoms.get_forces(apply_constraint=False)
            )
            found.append(frame)
        return found


@dataclass(frozen=True)
class Case:
    """Something to learn.

    Attributes:
        start: Structures to explore from.
        tests: Fresh frames, by name.
        settings: Of `torchmdx learn`, in addition to those of the strategy.
    """

    start: Callable[[], list[ase.Atoms]]
    tests: dict[str, Sampled]
    settings: dict[str, Any] = field(default_factory=dict)


def _solids() -> list[ase.Atoms]:
    return [alloy(share, 100 + k, room) for k, share in enumerate(SHARES) for room in (1.0, 1.015)]


def _melts() -> list[ase.Atoms]:
    return [alloy(share, 200 + k, FREE_ROOM) for k, share in enumerate(SHARES)]


def _ethanol() -> list[ase.Atoms]:
    return [molecule("CH3CH2OH")] * 5


def _surfaces() -> list[ase.Atoms]:
    return [slab(share, 300 + k) for k, share in enumerate(SHARES)]


CASES = {
    "alloy": Case(
        lambda: [*(alloy(share, k) for k, share in enumerate(SHARES)), alloy(0.5, 3, FREE_ROOM), slab(0.5, 4)],
        {
            "solid": Sampled(_solids, EMT, (500.0, 900.0), 2.0, frames=5),
            "melt": Sampled(_melts, EMT, (1600.0, 2000.0), 2.0, melt=4000.0, equilibration=2000),
            "surface": Sampled(_surfaces, EMT, (500.0, 900.0), 2.0),
        },
        {
            "explore": {"temperatures": [600, 1200, 2400], "steps": 1000, "timestep": 2.0, "every": 20},
            "label": {"calculator": "emt"},
        },
    ),
    "ethanol": Case(
        lambda: [molecule("CH3CH2OH")],
        {
            f"{kelvin} K": Sampled(_ethanol, organic, (float(kelvin),), 0.5, equilibration=2000, every=200)
            for kelvin in (300, 600, 1000)
        },
        {
            "explore": {"temperatures": [300, 600, 1000], "replicas": 4, "steps": 2000, "every": 20},
            "label": {"calculator": "benchmarks.learning_cases:organic"},
        },
    ),
    "reaction": Case(
        lambda: [malonaldehyde()],
        {},
        {
            "start": {"rattle": 0.03},
            "explore": {"temperatures": [300], "replicas": len(HELD), "steps": 2000, "every": 20},
            "label": {"calculator": "gfn2-xtb"},
        },
    ),
}
