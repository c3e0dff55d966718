"""Free energies over a torsion by umbrella windows and by replica exchange are those of its known potential."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.dynamics import coordinates
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.motion import Motion
from torchmdx.dynamics.particles import Particles
from torchmdx.dynamics.restraint_terms import RestraintTerms
from torchmdx.dynamics.restraints import Torsion
from torchmdx.dynamics.reweighting import profile_with_error
from torchmdx.structures.units import BOLTZMANN

BOND, ANGLE, LENGTH, BEND = 20.0, 5.0, 1.5, np.radians(110)  # eV/Å², eV/rad², Å
EDGES = np.linspace(-180, 180, 25)
THERMAL = 300 * BOLTZMANN


def torsion_energy(phi):
    """eV; barriers of 5 and 7 kT at 300 K."""
    return 0.06 * (1 + np.cos(3 * phi)) + 0.03 * (1 + np.cos(phi))


class Chains:
    """Called as a captured step: chains of four atoms, stiff but for the torsion."""

    def __init__(self, count):
        n = 4 * count
        self.buffers = SimpleNamespace(
            order=torch.arange(n),
            images=torch.zeros(n, 3),
            origin=torch.zeros(count, 3),
            far=torch.zeros(()),
            doubts=None,
        )
        self.num_evaluations = 0

    def __call__(self, positions, cell=None, *, copy=True):
        places = positions.reshape(-1, 4, 3)
        energy, forces = np.zeros(len(places)), np.zeros_like(places)
        for first in range(3):
            own = places[:, first : first + 2]
            stretch = coordinates.distances(own) - LENGTH
            energy += 0.5 * BOND * stretch**2
            forces[:, first : first + 2] -= BOND * stretch[:, None, None] * coordinates.distance_gradients(own)
        for first in range(2):
            own = places[:, first : first + 3]
            bend = coordinates.angles(own) - BEND
            energy += 0.5 * ANGLE * bend**2
            forces[:, first : first + 3] -= ANGLE * bend[:, None, None] * coordinates.angle_gradients(own)
        phi = coordinates.torsions(places)
        energy += torsion_energy(phi)
        slope = -0.18 * np.sin(3 * phi) - 0.03 * np.sin(phi)
        forces -= slope[:, None, None] * coordinates.torsion_gradients(places)
        return SimpleNamespace(energy=energy, forces=forces.reshape(-1, 3), energy_spread=None)


def chain(phi):
    """Positions of a chain with this torsion, radians."""
    side, along = LENGTH * np.sin(BEND), -LENGTH * np.cos(BEND)
    return np.array(
        [[side, 0, -along], [0, 0, 0], [0, 0, LENGTH], [side * np.cos(phi), side * np.sin(phi), LENGTH + along]]
    )


def loop_of(angles, temperatures, restraints=()):
    """A loop over chains with these torsions, degrees, and their batch."""
    positions = np.concatenate([chain(np.radians(angle)) for angle in angles])
    batch = Batch.from_systems([System.create(chain(np.radians(angle)), [6] * 4) for angle in angles])
    still, masses = np.zeros(len(positions), dtype=bool), np.full(len(positions), 12.0)
    particles = Particles.of(batch, masses, still, momentum_kept=False)
    terms = RestraintTerms.of(restraints, particles, positions) if restraints else None
    seeds = np.arange(len(angles)) + 11
    motion = Motion(Langevin(friction=5.0), 2.0, particles, np.array(temperatures), seeds, terms)
    velocities = particles.draw_velocities(motion.temperatures, seeds)
    return HostLoop(Chains(len(angles)), motion, positions, velocities, batch.cell.numpy()), batch


def exact():
    """Of the bins: bonds and angles do not depend on the torsion, whose measure is uniform."""
    fine = np.radians(np.linspace(-180, 180, 24 * 50 + 1)[:-1] + 0.15).reshape(24, 50)
    found = -np.log(np.exp(-torsion_energy(fine) / THERMAL).sum(1))
    return found - found.min()


def assert_known(height, error, limit):
    """Within 5 standard errors of 4 blocks, which have 3 degrees of freedom, and 0.15 kT; most within 2."""
    difference = np.abs(height - exact())
    assert np.nanmean(error) < limit
    assert (difference < 5 * error + 0.15).all()
    assert (difference < 2 * error + 0.15).mean() > 0.8


@pytest.mark.nightly
def test_windows_and_replicas_have_the_profile_of_the_potential():
    windows = np.arange(-180.0, 180.0, 15.0)
    phi = Torsion((0, 1, 2, 3), windows, 1.0)
    loop, _ = loop_of(windows, np.full(24, 300.0), [phi])
    angles = np.array([phi.values(frame) for frame in loop.snapshots(iter(range(1000, 9001, 10)))])
    reduced = np.moveaxis(phi.energy(angles[..., None]), -1, 0) / THERMAL
    by_windows = profile_with_error(angles, reduced, np.zeros_like(angles), EDGES)
    assert_known(*by_windows, limit=0.3)

    ladder = np.geomspace(300, 800, 8)
    loop, batch = loop_of(np.linspace(-180, 135, 8), ladder)
    exchange, frames = TemperatureExchange(20, batch, ladder, 5), []
    for stop in range(20, 24001, 20):
        frame = next(loop.snapshots(iter([stop])))
        frames.append(frame)
        temperatures, velocities = exchange.attempt(frame)
        loop.set_velocities(velocities)
        loop.set_motion(replace(loop.motion, temperatures=temperatures))
    frames = frames[100:]
    energies, angles = (np.array(found) for found in ([f.energy for f in frames], [phi.values(f) for f in frames]))
    by_replicas = profile_with_error(angles, energies / (BOLTZMANN * ladder[:, None, None]), energies / THERMAL, EDGES)
    assert_known(*by_replicas, limit=0.6)
    both = np.hypot(by_windows[1], by_replicas[1])
    assert (np.abs(by_windows[0] - by_replicas[0]) < 5 * both + 0.2).all()
    assert exchange.acceptance == pytest.approx(np.full(7, exchange.acceptance.mean()), abs=0.2)
