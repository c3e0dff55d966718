"""What a recording writes of a snapshot: a frame and a log row for each structure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.log import LogRow
from torchmdx.dynamics.orientation import closed
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.structures.units import AMU_SI, PICOSECOND

GRAM_PER_CM3 = AMU_SI * 1e3 / 1e-24  # of 1 amu/Å³


def atoms_of(particles: Particles) -> list[slice]:
    """The atoms of each structure."""
    return [slice(a, b) for a, b in pairwise(particles.starts.tolist())]


def frames_of(snapshot: Snapshot, pbc: NDArray[np.bool_]) -> list[TrajectoryFrame]:
    """A frame of each structure, with a cell where pbc [S,3] has a periodic direction."""
    kinetic, temperature = snapshot.kinetic_energy, snapshot.temperature
    return [
        TrajectoryFrame(
            positions=snapshot.positions[atoms],
            cell=closed(snapshot.cell[number], pbc[number], snapshot.positions[atoms]) if pbc[number].any() else None,
            velocities=snapshot.velocities[atoms],
            time=snapshot.time / PICOSECOND,
            potential=float(snapshot.energy[number]),
            kinetic=float(kinetic[number]),
            temperature=float(temperature[number]),
        )
        for number, atoms in enumerate(atoms_of(snapshot.particles))
    ]


def rows_of(
    snapshot: Snapshot,
    periodic: list[bool],
    *,
    exchange: bool,
    restrained: bool = False,
    ensemble: bool = False,
    uncertainty: bool = False,
) -> list[LogRow]:
    """A log row of each structure, without speed. exchange: whether temperatures of thermostats move.

    Args:
        ensemble: Whether the potential is one, whose spreads the snapshot has.
        uncertainty: Whether it has the uncertainties of a single potential.
    """
    kinetic, particles = snapshot.kinetic_energy, snapshot.particles
    temperature = particles.temperature(kinetic)
    total_mass = np.bincount(particles.system, particles.masses, particles.num_systems)
    spreads = list(zip(snapshot.energy_spread.tolist(), snapshot.largest_force_spread.tolist(), strict=True))
    uncertainties = list(zip(snapshot.energy_uncertainty.tolist(), snapshot.largest_uncertainty.tolist(), strict=True))
    rows = []
    for number, has_cell in enumerate(periodic):
        volume = abs(float(np.linalg.det(snapshot.cell[number]))) if has_cell else None
        rows.append(
            LogRow(
                step=snapshot.step,
                time=snapshot.time / PICOSECOND,
                potential=float(snapshot.energy[number]),
                kinetic=float(kinetic[number]),
                temperature=float(temperature[number]),
                volume=volume,
                density=density_of(float(total_mass[number]), volume),
                spread=spreads[number] if ensemble else None,
                uncertainty=uncertainties[number] if uncertainty else None,
                pressure=float(snapshot.pressure[number]) if np.isfinite(snapshot.virial[number]) else None,
                restraint=float(snapshot.restraint_energy[number]) if restrained else None,
                thermostat=float(snapshot.temperatures[number]) if exchange else None,
            )
        )
    return rows


def density_of(mass: float, volume: float | None) -> float | None:
    """Of a mass, amu, in a volume, Å³: in g/cm³; None without a volume."""
    return None if volume is None else mass / volume * GRAM_PER_CM3
