"""Drift of the total energy of `torchmdx.Dynamics` at constant energy, in eV per atom and ps, with its error.

    python -m benchmarks.drift [--replicas 64] [--picoseconds 40] [--timestep 0.5] [--seconds 1000]
        [--every 50] [--settling 1] [--box FILE]

Alanine dipeptide in vacuum with the released potential, weights in float32, after Langevin dynamics at 300 K for
--settling ps. With --box, 16 molecules of water in a periodic box, with a potential that has predicted charges, such as
AceFF-2.0: one replica with its Ewald sum and one without Coulomb energy, from the same state.

Slopes are least squares through the means of twenty blocks of time. With several replicas the error is that of their
mean, from their scatter; with one it is that of the regression.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import torchmdx
from benchmarks.record import write
from benchmarks.systems import load, water
from torchmdx.dynamics.integrators import Langevin

BLOCKS = 20
TEMPERATURE, MOLECULES = 300.0, 16  # K; of water in a box
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def slopes(times: NDArray[np.float64], energies: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Slopes [replicas] of energies [frames, replicas], and the standard error of their mean."""
    size = len(times) // BLOCKS
    t = times[: size * BLOCKS].reshape(BLOCKS, size).mean(1)
    e = energies[: size * BLOCKS].reshape(BLOCKS, size, -1).mean(1)
    t = t - t.mean()
    found = t @ e / (t @ t)
    if len(found) > 1:
        return found, float(found.std(ddof=1) / len(found) ** 0.5)
    rest = e - e.mean(0) - np.outer(t, found)
    return found, float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / (t @ t)))


def settled(
    potential: torchmdx.Potential, system: torchmdx.System, replicas: int, picoseconds: float, timestep: float
) -> Any:
    options: dict[str, Any] = dict(timestep=timestep, temperature=TEMPERATURE, seed=1)
    thermal = torchmdx.Dynamics(potential, [system] * replicas, integrator=Langevin(friction=10.0), **options)
    return thermal.run(int(1000 * picoseconds / timestep))


def measure(
    potential: torchmdx.Potential, system: torchmdx.System, begin: Any, given: argparse.Namespace
) -> dict[str, object]:
    """From a state of as many replicas as `given`, at constant energy."""
    options: dict[str, Any] = dict(timestep=given.timestep, temperature=TEMPERATURE, seed=1)
    dynamics = torchmdx.Dynamics(potential, [system] * given.replicas, integrator="verlet", **options)
    dynamics.restore(begin)
    times, energies, temperatures = [], [], []
    start = time.perf_counter()
    for found in dynamics.snapshots(round(given.picoseconds * 1000 / given.timestep), every=given.every):
        times.append(found.time / 1000)
        energies.append((found.energy + found.kinetic_energy) / system.num_atoms)
        temperatures.append(found.temperature.mean())
        if time.perf_counter() - start > given.seconds:
            break
    if len(times) < BLOCKS:
        raise ValueError(f"a slope needs at least {BLOCKS} energies, got {len(times)}; run longer, or lower --every")
    span, lines = time.perf_counter() - start, np.array(energies)
    found_slopes, error = slopes(np.array(times), lines)
    return dict(
        atoms=system.num_atoms,
        replicas=given.replicas,
        timestep_fs=given.timestep,
        picoseconds=round(times[-1] - times[0], 2),
        nanoseconds_in_all=round(given.replicas * (times[-1] - times[0]) / 1000, 3),
        drift_ev_atom_ps=float(f"{found_slopes.mean():.2e}"),
        error=float(f"{error:.1e}"),
        fluctuation_ev_atom=float(f"{(lines - lines.mean(0)).std():.2e}"),
        temperature=round(float(np.mean(temperatures)), 1),
        seconds=round(span, 1),
        why=dynamics.why,
    )


def in_vacuum(given: argparse.Namespace) -> list[dict[str, object]]:
    potential = torchmdx.load(dtype=torch.float32, device=DEVICE)
    numbers, positions, _ = load("alanine_dipeptide")
    system = torchmdx.System.create(positions, numbers)
    begin = settled(potential, system, given.replicas, given.settling, given.timestep)
    return [measure(potential, system, begin, given)]


def in_a_box(given: argparse.Namespace) -> list[dict[str, object]]:
    summed = torchmdx.load(given.box, dtype=torch.float32, device=DEVICE, coulomb="ewald")
    numbers, positions, cell = water(MOLECULES)
    system, given.replicas = torchmdx.System.create(positions, numbers, cell, True), 1
    begin = settled(summed, system, 1, given.settling, given.timestep)
    kinds = {"ewald": summed, "none": summed.with_priors([])}
    name = {"potential": given.box.stem}
    return [name | {"coulomb": kind} | measure(each, system, begin, given) for kind, each in kinds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--picoseconds", type=float, default=40.0)
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--every", type=int, default=50, help="steps between energies")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--settling", type=float, default=1.0, help="ps")
    parser.add_argument("--box", type=Path, help="a potential with Coulomb energy")
    given = parser.parse_args()
    rows = in_vacuum(given) if given.box is None else in_a_box(given)
    print(*rows, sep="\n", flush=True)
    name = "drift" if given.box is None else "drift_water"
    write(name if DEVICE == "cuda" else f"{name}_cpu", rows)


if __name__ == "__main__":
    main()
