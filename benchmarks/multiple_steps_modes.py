"""Multiple time steps of the vibrations of molecules: exact averages of the scheme in the harmonic limit.

    python -m benchmarks.multiple_steps_modes [--fast FILE] [--names alanine_dipeptide,CH3CONH2]

At a minimum of organic-1, energies of the two potentials are replaced by their second derivatives. An outer step is
then a linear map of positions and velocities with Gaussian noise, and its stationary covariance solves a linear
equation: no sampling, no statistical error. Of positions, in units of the exact values at the thermostat's temperature:

- energy: potential energy; configurational, configurational_h: <|∇U|²> / <∇²U> of all atoms and of hydrogens
- bonds_low, bonds_high: the least and the largest variance of the length of a bond of a hydrogen
- hottest: the largest energy of any linear combination of vibrations

stable: whether the map has a stationary covariance. agrees: whether energy, configurational temperatures and variances
of bonds are right within MOST. Langevin's integrator with 1/ps. Single steps have inner 1.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule
from ase.optimize import BFGS
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov

import torchmdx
from benchmarks import observables
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx import Batch, System
from torchmdx.dynamics.particles import checked_masses, with_heavy_hydrogens
from torchmdx.evaluation.properties.hessian import hessian
from torchmdx.structures.units import FORCE_TO_ACCELERATION

Floats = NDArray[np.float64]

NAMES = ("alanine_dipeptide", "CH3CH2OH", "CH3CONH2", "H3CNH2", "HCOOH", "C6H6", "CH3SH", "water2")
HEAVY, FRICTION = 3.0, 1.0  # amu, 1/ps
INNER = {(None, 0.5): range(1, 13), (None, 1.0): range(1, 7), (HEAVY, 1.0): range(1, 9), (HEAVY, 2.0): range(1, 5)}
RIGID = 6  # motions that no bond resists
MOST = 0.02
FORCE = 1e-4  # eV/Å, of a minimum


@dataclass(frozen=True)
class Vibrations:
    """Stiffness of the full and the fast potential [V,V] 1/fs², and Cartesian directions [3N,V] of mass-weighted modes.

    Attributes:
        masses: [3N] amu.
    """

    full: Floats
    fast: Floats
    directions: Floats
    masses: Floats

    @classmethod
    def of(cls, full: Floats, fast: Floats, masses: Floats) -> Vibrations:
        """From second derivatives [3N,3N] eV/Å² and masses [N] amu, without the motions of the whole molecule."""
        each = np.repeat(masses, 3)
        root = np.sqrt(np.outer(each, each))
        values, vectors = np.linalg.eigh(FORCE_TO_ACCELERATION * full / root)
        order = np.argsort(np.abs(values))[RIGID:]
        if values[order].min() <= 0:
            raise ValueError(f"a minimum must have positive second derivatives, got {values[order].min():.2g} 1/fs²")
        kept = vectors[:, order]
        stiff = kept.T @ (FORCE_TO_ACCELERATION * fast / root) @ kept
        return cls(np.diag(values[order]), stiff, kept, each)


def covariance(modes: Vibrations, timestep: float, inner: int, friction: float = FRICTION) -> Floats | None:
    """Of positions [V,V] and k T = 1, of BAOAB-RESPA with steps of `timestep` fs; None if there is none.

    ::

        v ← v - n h/2 (K - k) q,   n times BAOAB with k,   v ← v - n h/2 (K - k) q

    friction: 1/ps. One inner step stands for single steps of the full potential.
    """
    size = len(modes.full)
    zero, one = np.zeros((size, size)), np.eye(size)
    fast = modes.full if inner == 1 else modes.fast

    def kick(stiffness: Floats, time: float) -> Floats:
        return np.block([[one, zero], [-time * stiffness, one]])

    kept = np.exp(-friction * timestep / 1000)
    drift = np.block([[one, timestep / 2 * one], [zero, one]])
    after = kick(fast, timestep / 2) @ drift
    once = after @ np.block([[one, zero], [zero, kept * one]]) @ drift @ kick(fast, timestep / 2)
    noise = (1 - kept**2) * after[:, size:] @ after[:, size:].T
    slow = kick(modes.full - fast, inner * timestep / 2)
    whole, random = slow, np.zeros_like(noise)
    for _ in range(inner):
        whole, random = once @ whole, once @ random @ once.T + noise
    whole, random = slow @ whole, slow @ random @ slow.T
    if np.abs(np.linalg.eigvals(whole)).max() >= 1 - 1e-9:
        return None
    found: Floats = solve_discrete_lyapunov(whole, random, method="bilinear")[:size, :size]
    return found


def averages(modes: Vibrations, found: Floats, numbers: NDArray[np.int64], positions: Floats) -> dict[str, float]:
    """Ratios to exact values, of a covariance [V,V]."""
    root = np.sqrt(np.diag(modes.full))
    local = root[:, None] * found * root
    hydrogen = np.repeat(numbers == 1, 3)
    stiff = modes.directions @ modes.full  # of forces, mass-weighted
    squares = modes.masses * ((stiff @ found) * stiff).sum(1)
    curved = modes.masses * (stiff * modes.directions).sum(1)
    of_bonds = []
    for name, pairs in observables.bonds_of(numbers, positions).items():
        for first, second in pairs if name.endswith("-H") else ():
            along = np.zeros(positions.shape)
            along[first] = (positions[first] - positions[second]) / np.linalg.norm(positions[first] - positions[second])
            along[second] = -along[first]
            moved = (along.ravel() / np.sqrt(modes.masses)) @ modes.directions
            of_bonds.append((moved @ found @ moved) / (moved**2 / np.diag(modes.full)).sum())
    return dict(
        energy=float(np.trace(local) / len(local)),
        configurational=float(squares.sum() / curved.sum()),
        configurational_h=float(squares[hydrogen].sum() / curved[hydrogen].sum()),
        bonds_low=float(min(of_bonds)),
        bonds_high=float(max(of_bonds)),
        hottest=float(np.linalg.eigvalsh(local).max()),
    )


def minimum(name: str) -> Atoms:
    """A structure at a minimum of organic-1: of `benchmarks.systems`, of ASE, or two molecules of water."""
    if name == "water2":
        one, other = molecule("H2O"), molecule("H2O")
        bond = one.positions[1] - one.positions[0]
        other.translate(2.9 * bond / np.linalg.norm(bond) + (0.3, 0.0, 0.0))
        atoms = one + other
    elif name == "alanine_dipeptide":
        numbers, positions, _ = load(name)
        atoms = Atoms(numbers, positions)
    else:
        atoms = molecule(name)
    atoms.calc = torchmdx.Calculator("organic-1", dtype="float64")
    BFGS(atoms, logfile=None).run(fmax=FORCE, steps=2000)
    return atoms


def measure(name: str, fast: str) -> list[dict[str, Any]]:
    """A row of each setting."""
    atoms = minimum(name)
    system = System.from_ase(atoms, 0.0)
    batch = Batch.of([system])
    full, quick = (
        hessian(torchmdx.load(file, dtype=torch.float64, device="cpu"), system).numpy() for file in ("organic-1", fast)
    )
    rows = []
    for (mass, timestep), counts in INNER.items():
        masses = checked_masses(batch, None)
        if mass is not None:
            masses, _ = with_heavy_hydrogens(batch, masses, mass)
        modes = Vibrations.of(full, quick, masses)
        for inner in counts:
            row: dict[str, Any] = dict(
                system=name, fast=fast, hydrogen_mass=mass or "normal", step_fs=timestep, inner=inner,
                outer_fs=inner * timestep,
            )  # fmt: skip
            found = covariance(modes, timestep, inner)
            row |= dict(stable=found is not None, agrees=False)
            if found is not None:
                values = averages(modes, found, atoms.numbers, atoms.positions)
                right = all(abs(value - 1) <= MOST for key, value in values.items() if key != "hottest")
                row |= {key: round(value, 4) for key, value in values.items()} | dict(agrees=right)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(NAMES))
    parser.add_argument("--fast", default="organic-1-fast")
    options = parser.parse_args()
    rows = []
    for name in options.names.split(","):
        rows += measure(name, options.fast)
        for row in rows[-sum(map(len, INNER.values())) :]:
            print(*row.values(), flush=True)
    print(write("multiple_steps_modes", rows))


if __name__ == "__main__":
    main()
