"""Drift of the total energy of `torchmdx.Dynamics` at constant energy, in eV per atom and ps, with its error.

    python -m benchmarks.drift [--replicas 64] [--picoseconds 40] [--timestep 0.5] [--seconds 1000]
        [--every 50]

Alanine dipeptide in vacuum with the released potential, weights in float32, after 1 ps of Langevin dynamics at 300 K.
Slopes are least squares through the means of twenty blocks of time. With several replicas the error is that of their
mean, from their scatter; with one it is that of the regression.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from numpy.typing import NDArray

import torchmdx
from benchmarks.record import write
from benchmarks.systems import load
from torchmdx.dynamics.integrators import Langevin

BLOCKS = 20
TEMPERATURE, SETTLING = 300.0, 1000.0  # K, fs
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


def measure(replicas: int, picoseconds: float, timestep: float, every: int, seconds: float) -> dict[str, object]:
    potential = torchmdx.load(dtype=torch.float32, device=DEVICE)
    numbers, positions, _ = load("alanine_dipeptide")
    system = torchmdx.System.create(positions, numbers)
    options = dict(timestep=timestep, temperature=TEMPERATURE, seed=1)
    thermal = torchmdx.Dynamics(potential, [system] * replicas, integrator=Langevin(friction=10.0), **options)
    begin = thermal.run(int(SETTLING / timestep))
    dynamics = torchmdx.Dynamics(potential, [system] * replicas, integrator="verlet", **options)
    dynamics.restore(begin)
    times, energies, temperatures = [], [], []
    start = time.perf_counter()
    for found in dynamics.snapshots(round(picoseconds * 1000 / timestep), every=every):
        times.append(found.time / 1000)
        energies.append((found.energy + found.kinetic_energy) / len(numbers))
        temperatures.append(found.temperature.mean())
        if time.perf_counter() - start > seconds:
            break
    if len(times) < BLOCKS:
        raise ValueError(f"a slope needs at least {BLOCKS} energies, got {len(times)}; run longer, or lower --every")
    span, lines = time.perf_counter() - start, np.array(energies)
    found_slopes, error = slopes(np.array(times), lines)
    return dict(
        atoms=len(numbers),
        replicas=replicas,
        timestep_fs=timestep,
        picoseconds=round(times[-1] - times[0], 2),
        nanoseconds_in_all=round(replicas * (times[-1] - times[0]) / 1000, 3),
        drift_ev_atom_ps=float(f"{found_slopes.mean():.2e}"),
        error=float(f"{error:.1e}"),
        fluctuation_ev_atom=float(f"{(lines - lines.mean(0)).std():.2e}"),
        temperature=round(float(np.mean(temperatures)), 1),
        seconds=round(span, 1),
        why=dynamics.why,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--picoseconds", type=float, default=40.0)
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--every", type=int, default=50, help="steps between energies")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many")
    given = parser.parse_args()
    row = measure(given.replicas, given.picoseconds, given.timestep, given.every, given.seconds)
    print(row, flush=True)
    write("drift" if DEVICE == "cuda" else "drift_cpu", [row])


if __name__ == "__main__":
    main()
