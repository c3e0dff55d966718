"""Scores a potential as public leaderboards do, without any download.

Diatomic curves as in MLIP Arena: a curve with one minimum has a tortuosity of 1 and one sign change of its force, and
forces are the slopes of energies. Relaxations as in Matbench Discovery: how many converge, and in how many steps.
Dynamics without a thermostat: the drift of the total energy. The default is the potential of torchmdx.
"""

import sys

import numpy as np
from ase import Atoms, units
from ase.build import molecule
from ase.md.verlet import VelocityVerlet

import torchmdx

DISTANCES = np.arange(0.6, 5.0, 0.03)  # Å
PAIRS = ("H2", "C2", "N2", "O2", "CO", "HF")
MOLECULES = ("CH3CH2OH", "CH3COOH", "C6H6", "CH3CONH2", "C2H6", "CH3OCH3", "HCOOCH3", "CH3CH2NH2")


def curve(pair: str, calculator: torchmdx.Calculator) -> tuple[float, int, float]:
    """Tortuosity, sign changes of the force, and median difference of force and slope, eV/Å."""
    energies, forces = [], []
    for distance in DISTANCES:
        atoms = Atoms(pair, [[0, 0, 0], [0, 0, distance]], calculator=calculator)
        energies.append(atoms.get_potential_energy())
        forces.append(atoms.get_forces()[1, 2])
    energy, force = np.array(energies), np.array(forces)
    way = np.abs(np.diff(energy)).sum() / (energy[0] + energy[-1] - 2 * energy.min())
    signs = np.sign(force[np.abs(force) > 0.01])
    slope = -np.gradient(energy, DISTANCES)
    return float(way), int((np.diff(signs) != 0).sum()), float(np.median(np.abs(force - slope)[1:-1]))


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else None
    calculator = torchmdx.Calculator(source)
    print("pair  tortuosity  force flips  |F + dE/dr| eV/Å")
    for pair in PAIRS:
        print("{:<5} {:9.3f} {:10d} {:14.4f}".format(pair, *curve(pair, calculator)))

    structures = [molecule(name) for name in MOLECULES for _ in range(3)]
    for seed, atoms in enumerate(structures):
        atoms.rattle(0.1, seed=seed)
    found = torchmdx.relax(structures, source, fmax=0.02)
    steps = [one.num_steps for one in found if one.converged]
    print(f"relaxations: {len(steps)} of {len(found)} converged, {np.mean(steps):.0f} steps on average")

    ethanol = molecule("CH3CH2OH", calculator=calculator)
    ethanol.rattle(0.05, seed=1)
    dynamics = VelocityVerlet(ethanol, 0.5 * units.fs)
    totals = [ethanol.get_total_energy() for _ in dynamics.irun(400)]
    print(f"0.2 ps of dynamics: the total energy varies by {1000 * np.ptp(totals) / len(ethanol):.3f} meV/atom")


if __name__ == "__main__":
    main()
