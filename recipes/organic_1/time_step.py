"""Finds time steps that lose hydrogens, with GFN2-xTB: repeated dynamics of ethane with heavy hydrogens.

python time_step.py --timestep 2.5 --hydrogen 4 --temperature 500

OpenMM's Langevin middle scheme, 1/ps; a run in which a bond reaches 1.6 times its length is counted and restarted.
With hydrogens of 4 amu, taken from their carbon, methyl carbons are left with 3, and the fastest vibration is at
2,500/cm: at 2.5 fs the integrator takes five steps for a period, and a resonance of fifth order carries energy into it
now and then. Needs tblite and ASE.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from ase.build import molecule
from dynamics_molecules import BROKEN, heavy_hydrogens
from tblite.interface import Calculator

from torchmdx.structures.units import BOHR, BOLTZMANN, FORCE_TO_ACCELERATION, HARTREE

FRICTION = 1e-3  # 1/fs


class Ethane:
    """Positions Å, velocities Å/fs, forces eV/Å."""

    def __init__(self, hydrogen: float, temperature: float, seed: int) -> None:
        self.start = molecule("C2H6")
        masses, self.bonds = heavy_hydrogens(self.start, hydrogen)
        self.masses = masses[:, None]
        self.x = self.start.positions
        self.lengths = self._lengths()
        self.rng = np.random.default_rng(seed)
        self.speed = np.sqrt(BOLTZMANN * temperature * FORCE_TO_ACCELERATION / self.masses)
        self.calculator = Calculator("GFN2-xTB", self.start.numbers, self.start.positions / BOHR)
        self.calculator.set("verbosity", 0)
        self.begin()

    def begin(self) -> None:
        self.result = None
        self.x = self.start.positions.copy()
        self.v = self.speed * self.rng.normal(size=self.x.shape)
        self.f = self._forces()

    def step(self, timestep: float) -> bool:
        """One step of this length in fs; whether all bonds are whole."""
        kept = np.exp(-FRICTION * timestep)
        self.v += timestep * self.f / self.masses * FORCE_TO_ACCELERATION
        self.x += 0.5 * timestep * self.v
        self.v = kept * self.v + np.sqrt(1 - kept**2) * self.speed * self.rng.normal(size=self.x.shape)
        self.x += 0.5 * timestep * self.v
        if (self._lengths() > BROKEN * self.lengths).any():
            return False
        self.f = self._forces()
        return True

    def _lengths(self) -> np.ndarray:
        return np.linalg.norm(self.x[self.bonds[:, 0]] - self.x[self.bonds[:, 1]], axis=1)

    def _forces(self) -> np.ndarray:
        self.calculator.update(self.x / BOHR)
        self.result = self.calculator.singlepoint(self.result)
        return -self.result.get("gradient") * HARTREE / BOHR


def main() -> None:
    """Runs, and adds a row to the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timestep", type=float, default=2.5, help="fs")
    parser.add_argument("--hydrogen", type=float, default=4.0, help="amu")
    parser.add_argument("--temperature", type=float, default=500.0, help="K")
    parser.add_argument("--seconds", type=float, default=200.0, help="of the clock")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "card" / "time_step.json")
    args = parser.parse_args()
    ethane = Ethane(args.hydrogen, args.temperature, args.seed)
    steps, lost, begun = 0, 0, time.perf_counter()
    while time.perf_counter() - begun < args.seconds:
        steps += 1
        if not ethane.step(args.timestep):
            lost += 1
            ethane.begin()
    row = {
        "timestep_fs": args.timestep,
        "hydrogen_amu": args.hydrogen,
        "temperature_K": args.temperature,
        "ps": steps * args.timestep * 1e-3,
        "lost": lost,
        "seed": args.seed,
    }
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    args.output.write_text(json.dumps([*rows, row], indent=1) + "\n")
    print(row)


if __name__ == "__main__":
    main()
