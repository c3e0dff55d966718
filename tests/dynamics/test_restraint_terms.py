"""Terms of restraints: forces are those of finite differences, structures have their own, and bad ones are refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
from oscillators import springs
from random_restraints import particles_of

from torchmdx import Dynamics, System
from torchmdx.dynamics.host_loop import HostLoop
from torchmdx.dynamics.integrators import Langevin, VelocityVerlet
from torchmdx.dynamics.restraint_terms import RestraintError, RestraintTerms
from torchmdx.dynamics.restraints import Angle, Distance, Position, Torsion

SIZES = [5, 4]
ALL = [
    Distance((0, 3), [1.0, 2.0], 3.0),
    Angle((2, 0, 1), [60.0, 170.0], 2.0),
    Torsion((3, 1, 0, 2), [175.0, -100.0], [1.5, 4.0]),
    Torsion((0, 1, 2, 3), [0.0, 10.0], [0.5, 0.0]),
    Angle((1, 2, 4), 100.0, [1.0, 0.0]),  # the second structure has no atom 4
    Position((1, 2), [2.0, 1.0], [[0.0, 0, 0], [1.0, 0, 0]]),
    Position((0,), 1.0),
]


def restrained(loop, terms, positions):
    """The same loop with restraints, from other positions."""
    start = loop.snapshot()
    motion = replace(loop.motion, restraints=terms)
    return HostLoop(loop.step, motion, positions, start.velocities, start.cell, loop.fast)


@pytest.fixture
def positions():
    return np.random.default_rng(3).normal(size=(sum(SIZES), 3))


def test_forces_and_virial_are_those_of_finite_differences(positions):
    terms = RestraintTerms.of(ALL, particles_of(SIZES), positions)
    moved = positions + 0.1 * np.random.default_rng(4).normal(size=positions.shape)
    energy, forces, _ = terms.evaluate(moved)
    assert (energy > 0.1).all()
    step = 1e-6
    for atom in range(len(moved)):
        for k in range(3):
            high, low = moved.copy(), moved.copy()
            high[atom, k] += step
            low[atom, k] -= step
            difference = (terms.evaluate(high)[0] - terms.evaluate(low)[0]) / (2 * step)
            own = int(atom >= SIZES[0])
            assert difference[1 - own] == 0
            assert forces[atom, k] == pytest.approx(-difference[own], rel=1e-6, abs=1e-8)
    inner = RestraintTerms.of(ALL[:5], particles_of(SIZES), positions)
    slope = (inner.evaluate(moved * (1 + step))[0] - inner.evaluate(moved * (1 - step))[0]) / (2 * step)
    np.testing.assert_allclose(inner.evaluate(moved)[2], -slope, rtol=1e-6)


def test_energies_are_those_of_the_restraints_themselves(positions):
    """Against the values and energies that windows are analysed with."""
    loop = springs(VelocityVerlet(), 1.0, SIZES)
    snapshot = loop.snapshot()
    snapshot.positions[:] = positions
    terms = RestraintTerms.of(ALL[:4], loop.motion.particles, positions)
    expected = sum(np.diag(one.energy(one.values(snapshot)[:, None])) for one in ALL[:4])
    np.testing.assert_allclose(terms.evaluate(positions)[0], expected, rtol=1e-12)


def test_restrained_distances_have_the_distribution_of_their_springs():
    """Windows at many distances in one batch; nothing else acts on the atoms."""
    count, stiffness, references = 400, 40.0, np.linspace(1.0, 2.0, 400)
    loop = springs(Langevin(friction=20.0), 2.0, [2] * count, stiffness=0.0)
    particles = loop.motion.particles
    start = np.zeros((2 * count, 3))
    start[::2, 0] = references
    terms = RestraintTerms.of([Distance((0, 1), references, stiffness)], particles, start)
    loop = restrained(loop, terms, start)
    found = [snapshot.restraint_energy for snapshot in loop.snapshots(iter(range(200, 1201, 100)))]
    # E/kT of a stiff distance has the mean 1/2 and the variance 1/2: 11 samples of 400, taken as 5 independent ones.
    # Its measure r² changes the mean by (σ/r)², at most 0.1 %.
    thermal = 300.0 * 8.617333262e-5
    error = np.sqrt(0.5 / (5 * count))
    assert np.mean(found) / thermal == pytest.approx(0.5, abs=5 * error)


def test_the_sum_of_energies_is_conserved(make_potential, ethanol):
    potential = make_potential()
    restraints = [Torsion((2, 0, 1, 3), [100.0, -60.0], 2.0), Distance((0, 2), 2.0, 5.0), Angle((0, 1, 3), 100.0, 1.0)]
    systems = [System.from_ase(ethanol)] * 2
    drifts = []
    for timestep in (0.4, 0.2):
        dynamics = Dynamics(
            potential, systems, integrator="verlet", timestep=timestep, seed=3, restraints=restraints, mode="eager"
        )
        states = [dynamics.snapshot(), *dynamics.snapshots(round(12 / timestep), every=1)]
        totals = np.array([state.energy + state.restraint_energy + state.kinetic_energy for state in states])
        assert np.ptp([state.restraint_energy for state in states]) > 0.01
        drifts.append(np.abs(totals - totals[0]).max())
    assert drifts[1] < 1e-3
    assert drifts[0] / drifts[1] == pytest.approx(4, rel=0.25)


@pytest.mark.parametrize(
    ("restraint", "error", "words"),
    [
        (Distance((0, 4), 1.0, 1.0), IndexError, "atoms of restraint 0 must be from 0 to 3 in structure 1, got 4"),
        (Distance((0, 1), [1.0] * 3, 1.0), ValueError, "the reference of restraint 0 must be one number or 2"),
        (Distance((0, 1), 1.0, [1.0]), ValueError, "the stiffness of restraint 0 must be one number or 2"),
        (Position((0,), 1.0, np.zeros((3, 1, 3))), ValueError, "must be for one or 2 structures, got 3"),
        ("torsion", TypeError, "restraints must be classes of torchmdx.dynamics.restraints, got 'torsion'"),
    ],
)
def test_restraints_that_do_not_fit_the_structures(positions, restraint, error, words):
    with pytest.raises(error, match=re.escape(words)):
        RestraintTerms.of([restraint], particles_of(SIZES), positions)


def test_coordinates_that_begin_without_a_gradient(positions):
    positions[:3] = [[0.0, 0, 0], [1, 0, 0], [2, 0, 0]]
    with pytest.raises(RestraintError, match="the angle of atoms 0, 1, 2 has no gradient: three atoms are in line"):
        RestraintTerms.of([Angle((0, 1, 2), 90.0, 1.0)], particles_of(SIZES), positions)
    with pytest.raises(RestraintError, match="the distance of atoms 0, 1 has no gradient: two atoms coincide"):
        RestraintTerms.of([Distance((0, 1), 1.0, 1.0)], particles_of(SIZES), 0 * positions)


@pytest.mark.parametrize("fast", [None, 0.0])
def test_a_coordinate_that_loses_its_gradient_ends_the_run_at_the_step_before(fast):
    """Three atoms that are in line after exactly one step, which may be an inner one."""
    start = np.array([[0.0, 0, 0], [1, 0, 0], [2, 0.5, 0]])
    loop = springs(VelocityVerlet(), 1.0, [3], stiffness=0.0, fast=fast, inner=2)
    terms = RestraintTerms.of([Angle((0, 1, 2), 90.0, 1e-300)], loop.motion.particles, start)
    loop = restrained(loop, terms, start)
    velocities = np.array([[0.0, 0, 0], [0, 0, 0], [0, -0.5, 0]])
    loop.set_velocities(velocities)
    with pytest.raises(RestraintError, match="the angle of atoms 0, 1, 2 has no gradient"):
        next(loop.snapshots(iter([4])))
    found = loop.snapshot()
    assert found.step == 0
    np.testing.assert_array_equal(found.positions, start)
    loop.set_velocities(-velocities)
    assert next(loop.snapshots(iter([4]))).step == 4
