"""Every degree of freedom has kT/2: in reported temperatures, and in positions, whose springs are a second thermometer.

Each spring's energy is quadratic, so that the mean of 2 U is k T for each independent direction of the positions,
whatever velocities and their bookkeeping say.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from torchmdx import Dynamics, System
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.integrators import Bussi, Langevin, VelocityVerlet
from torchmdx.dynamics.restraints import Position
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

COPIES, ATOMS, TEMPERATURE = 120, 3, 300.0
START = np.array([[0, 0, 0], [1.5, 0, 0], [0, 1.5, 0]])  # Å
STIFFNESS = 2.0  # eV/Å²


@pytest.fixture
def springs(monkeypatch):
    """Evaluations are those of a spring between the displacements of each pair of atoms from the start."""

    def evaluation(self, number, positions, cell):
        moved = np.reshape(positions, (-1, ATOMS, 3)) - START
        away = moved - moved.mean(1, keepdims=True)
        energy = 0.5 * STIFFNESS * ATOMS * (away**2).sum((1, 2))
        forces = -STIFFNESS * ATOMS * away.reshape(-1, 3)
        return SimpleNamespace(energy=energy, forces=forces, energy_spread=None)

    monkeypatch.setattr(HostLoop, "_evaluation", evaluation)


def run_of(make_potential, integrator, *, tied=0.0, frozen=(), restraints=(), **options):
    """Copies whose positions are of the canonical ensemble. tied: stiffnesses [N] of restraints on the atoms."""
    free = np.setdiff1d(np.arange(ATOMS), frozen)
    stiffness = STIFFNESS * (ATOMS * np.eye(ATOMS) - 1) + np.diag(np.broadcast_to(tied, ATOMS))
    values, modes = np.linalg.eigh(stiffness[np.ix_(free, free)])
    bound = values > 1e-9
    widths = np.sqrt(BOLTZMANN * TEMPERATURE / values[bound])
    drawn = widths * np.random.default_rng(2).normal(size=(COPIES, 3, bound.sum())) @ modes[:, bound].T
    positions = np.tile(START, (COPIES, 1, 1))
    positions[:, free] += np.moveaxis(drawn, 1, 2)
    still = np.isin(np.arange(COPIES * ATOMS) % ATOMS, frozen)
    return Dynamics(
        make_potential(), [System.create(one, [8, 6, 8]) for one in positions], integrator=integrator, timestep=1.5,
        temperature=TEMPERATURE, seed=3, restraints=restraints, frozen=still, **options,
    )  # fmt: skip


def momenta(dynamics, velocities):
    """Of the structures [S,3], amu Å/fs."""
    masses = dynamics.motion.particles.masses.reshape(COPIES, ATOMS, 1)
    return (masses * velocities.reshape(COPIES, ATOMS, 3)).sum(1)


def drifting(dynamics):
    """Its velocities and a thermal drift of each centre of mass, as of a run with Langevin dynamics."""
    total = dynamics.motion.particles.masses[:ATOMS].sum()
    thermal = np.sqrt(BOLTZMANN * TEMPERATURE * FORCE_TO_ACCELERATION / total)
    drift = thermal * np.random.default_rng(1).normal(size=(COPIES, 3))
    return dynamics.snapshot().velocities + np.repeat(drift, ATOMS, axis=0)


def restraint(*atoms):
    return dict(restraints=[Position(atoms, 1.0, START[list(atoms)])], tied=np.isin(np.arange(ATOMS), atoms))


# What is asked for, and how many directions the positions then have in which they are bound.
CASES = {
    "free": ({}, 3 * (ATOMS - 1)),
    "drifting": ({}, 3 * (ATOMS - 1)),
    "all restrained": (restraint(0, 1, 2), 3 * ATOMS),
    "one restrained": (restraint(1), 3 * ATOMS),
    "one frozen": ({"frozen": [2]}, 3 * (ATOMS - 1)),
}


@pytest.mark.nightly_for("integrator1")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("integrator", [VelocityVerlet(), Langevin(friction=20.0), Bussi(relaxation=0.03)])
def test_positions_have_the_temperature_that_is_reported(springs, make_potential, integrator, case):
    options, bound = CASES[case]
    dynamics = run_of(make_potential, integrator, **options)
    if case == "drifting":
        dynamics.set_velocities(drifting(dynamics))
    reported, found = [], []
    for snapshot in dynamics.snapshots(600, every=6):
        if snapshot.step > 120:
            reported.append(snapshot.temperature)
            found.append(2 * (snapshot.energy + snapshot.restraint_energy) / (bound * BOLTZMANN))
    for values in (np.mean(reported, axis=0), np.mean(found, axis=0)):  # of each copy; copies are independent
        # 1 %: velocity Verlet's error of (ωh)²/4.
        assert values.mean() == pytest.approx(300, abs=4.5 * values.std() / np.sqrt(COPIES) + 3)
    difference = np.mean(found, axis=0) - np.mean(reported, axis=0)
    assert difference.mean() == pytest.approx(0, abs=4.5 * difference.std() / np.sqrt(COPIES) + 3)


@pytest.mark.parametrize("integrator", [VelocityVerlet(), Bussi(relaxation=0.03)])
def test_a_drift_stays_and_is_no_heat(springs, make_potential, integrator):
    """A run with a drift is the run without, seen from a moving frame."""
    still, moving = (run_of(make_potential, integrator) for _ in range(2))
    moving.set_velocities(drifting(moving))
    before = momenta(moving, moving.snapshot().velocities)
    expected, found = still.run(200), moving.run(200)
    np.testing.assert_allclose(momenta(moving, found.velocities), before, atol=1e-12)
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-9)
    np.testing.assert_allclose(found.kinetic_energy, expected.kinetic_energy, rtol=1e-9)
    drift = np.repeat(before, ATOMS, axis=0) / moving.motion.particles.masses[:ATOMS].sum()
    np.testing.assert_allclose(found.velocities - drift, expected.velocities, atol=1e-11)
    np.testing.assert_allclose(found.positions - found.time * drift, expected.positions, atol=1e-9)


def test_drawn_velocities_move_what_is_restrained_as_a_whole(springs, make_potential):
    dynamics = run_of(make_potential, Bussi(), restraints=[Position((0,), [1.0] * 60 + [0.0] * 60, START[:1])])
    found = dynamics.snapshot()
    assert found.particles.degrees_of_freedom().tolist() == [9] * 60 + [6] * 60
    momentum = np.abs(momenta(dynamics, found.velocities)).max(1)
    assert (momentum[:60] > 1e-3).all()
    assert (momentum[60:] < 1e-12).all()
    assert found.temperature[:60].mean() == pytest.approx(300, abs=4.5 * 300 * np.sqrt(2 / 9 / 60))
