"""Dynamics with a potential: seeds, replicas, pieces, restart, overflow, errors and arguments."""

import functools

import numpy as np
import pytest
import torch
from interpreter import DEVICE

import torchmdx
from torchmdx import Dynamics, System
from torchmdx.dynamics.integrators import Bussi, Langevin
from torchmdx.dynamics.snapshot import load_snapshot
from torchmdx.step.results import NonFiniteError

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
FIELDS = ("positions", "velocities", "forces", "energy")


@pytest.fixture(params=["cpu", GPU])
def potential32(request, make_potential):
    return make_potential(dtype=torch.float32).to(request.param)


@pytest.fixture
def system(ethanol):
    return System.from_ase(ethanol)


@pytest.fixture
def other(cation):
    return System.from_ase(cation)


def make(potential, structures, **options):
    return Dynamics(potential, structures, **{"timestep": 0.25, "seed": 11, "steps_per_replay": 4, **options})


def assert_same(one, two, **tolerance):
    assert one.step == two.step
    for name in FIELDS:
        if tolerance:
            np.testing.assert_allclose(getattr(one, name), getattr(two, name), **tolerance)
        else:
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_equal_seeds_give_equal_bits_however_the_steps_are_taken(potential32, system, integrator):
    whole = make(potential32, system, integrator=integrator).run(30)
    pieces = make(potential32, system, integrator=integrator, steps_per_replay=7)
    for count in (1, 0, 13, 16):
        found = pieces.run(count)
    assert_same(found, whole)
    other = make(potential32, system, integrator=integrator, seed=12).run(30)
    assert (other.positions != whole.positions).all()


def test_replicas_are_what_single_runs_are(potential32, system, other):
    """Different structures, temperatures and seeds in one batch; within rounding of the sums of the network."""
    systems, temperatures, seeds = [system, other, system], [200.0, 300.0, 900.0], [5, 5, 77]
    options = dict(integrator=Langevin(friction=5.0))
    together = make(potential32, systems, temperature=temperatures, seed=seeds, **options).run(20)
    start = 0
    for k, one in enumerate(systems):
        alone = make(potential32, one, temperature=temperatures[k], seed=seeds[k], **options).run(20)
        own = slice(start, start + one.num_atoms)
        np.testing.assert_allclose(together.positions[own], alone.positions, atol=1e-5)
        np.testing.assert_allclose(together.velocities[own], alone.velocities, atol=1e-6)
        np.testing.assert_allclose(together.energy[k], alone.energy[0], atol=1e-4)
        np.testing.assert_allclose(together.temperature[k], alone.temperature[0], rtol=1e-3)
        start += one.num_atoms


@pytest.mark.parametrize("integrator", ["verlet", Bussi(relaxation=0.01)])
def test_a_drift_stays_and_is_no_heat(potential32, system, other, integrator):
    """A run with a drift is the run without, seen from a moving frame."""
    still, moving = (make(potential32, [system, other], integrator=integrator, temperature=600) for _ in range(2))
    drift = np.array([0.02, -0.01, 0.015])
    moving.set_velocities(still.snapshot().velocities + drift)
    expected, found = still.run(12), moving.run(12)
    np.testing.assert_allclose(found.velocities - drift, expected.velocities, atol=1e-5)
    np.testing.assert_allclose(found.positions - found.time * drift, expected.positions, atol=1e-5)
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-3)


@pytest.mark.parametrize("integrator", [Langevin(friction=20.0), Bussi(relaxation=0.01)])
def test_runs_with_other_seeds_share_no_trajectory(potential32, system, integrator):
    """Of any two structures of runs with adjacent seeds: neither the first velocities nor the random forces."""
    rest = np.zeros((3 * system.num_atoms, 3))
    options = dict(integrator=integrator, temperature=2000.0)
    for velocities in (None, rest) if integrator.name == "langevin" else (None,):
        runs = [make(potential32, [system] * 3, seed=seed, velocities=velocities, **options) for seed in (40, 41, 42)]
        moved = np.concatenate([run.run(4).velocities.reshape(3, -1) for run in runs])
        apart = np.abs(moved[:, None] - moved).max(-1)
        assert apart[~np.eye(9, dtype=bool)].min() > 0.1 * np.abs(moved).max()
    again = make(potential32, [system] * 3, seed=41, velocities=velocities, **options)
    assert_same(again.run(4), runs[1].snapshot())
    alone = make(potential32, system, seed=int(runs[1].motion.seeds[2]), **options)
    together = make(potential32, [system] * 3, seed=41, **options)
    np.testing.assert_allclose(alone.run(4).positions, together.run(4).positions[-system.num_atoms :], atol=1e-5)


@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_a_restart_continues_to_the_bit(potential32, system, other, integrator, tmp_path):
    options = dict(integrator=integrator, temperature=[300.0, 500.0])
    first = make(potential32, [system, other], **options)
    first.run(9)
    first.snapshot().save(tmp_path / "state.npz")
    expected = first.run(12)
    again = make(potential32, [system, other], **options, steps_per_replay=5)
    again.run(3)
    again.restore(tmp_path / "state.npz")
    assert again.num_steps == 9
    assert_same(again.run(12), expected)


def test_snapshots_come_at_multiples_and_at_the_end(potential32, system):
    dynamics = make(potential32, system)
    assert [found.step for found in dynamics.snapshots(10, every=4)] == [4, 8, 10]
    assert [found.step for found in dynamics.snapshots(7, every=4)] == [12, 16, 17]
    whole = make(potential32, system).run(16)
    assert_same(next(iter(make(potential32, system).snapshots(17, every=16))), whole)
    assert dynamics.run(0).step == 17


@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_a_list_that_is_too_small_grows_and_the_run_is_the_same(potential32, system, skin):
    expected = make(potential32, system, skin=skin).run(12)
    dynamics = make(potential32, system, skin=skin)
    dynamics.run(2)
    shrink(dynamics, 3)
    found = dynamics.run(10)
    assert dynamics.num_recoveries >= 1
    # On a GPU, sums may be made in another order for another capacity, and for a list that was made elsewhere.
    assert_same(found, expected, **({} if potential32.device.type == "cpu" else {"atol": 1e-4}))


def shrink(dynamics, capacity):
    """Leaves room for so many edges, as if the structure had become denser."""
    step = dynamics.step
    step.search._make(step.ordered, step.search.backend, capacity)
    step.engine.reserve(step.search.capacity)
    if hasattr(dynamics.loop, "replays"):
        dynamics.loop.replays.drop()


def test_an_evaluation_that_is_not_finite_keeps_the_step_before(potential32, system):
    expected = make(potential32, system).run(7)
    dynamics = make(potential32, system)
    kept = dynamics.run(3)
    velocities = kept.velocities.copy()
    velocities[2] = 1e200  # overflows in float32
    dynamics.set_velocities(velocities)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="the first is atom 2"):
            dynamics.run(5)
        found = dynamics.snapshot()
        assert found.step == 3
        np.testing.assert_array_equal(found.positions, kept.positions)
        np.testing.assert_array_equal(found.velocities, velocities)
    dynamics.set_velocities(kept.velocities)
    assert_same(dynamics.run(4), expected)


@pytest.mark.nightly
def test_energy_is_conserved_to_second_order(make_potential, system):
    potential = make_potential().to(DEVICE)
    drifts = []
    for timestep in (0.5, 0.25):
        dynamics = make(potential, system, integrator="verlet", timestep=timestep)
        states = [dynamics.snapshot(), *dynamics.snapshots(round(15 / timestep), every=1)]
        totals = np.array([(state.energy + state.kinetic_energy)[0] for state in states])
        drifts.append(np.abs(totals - totals[0]).max())
    assert drifts[1] < 1e-4
    assert drifts[0] / drifts[1] == pytest.approx(4, rel=0.15)


def test_temperature_can_change_during_a_run(potential32, system):
    dynamics = make(potential32, [system] * 8, integrator=Langevin(friction=100.0), temperature=50.0)
    dynamics.run(40)
    dynamics.set_temperature(2000.0)
    # 8 replicas of 27 degrees of freedom: the mean temperature has a standard deviation of 10 %; 5 of them.
    assert dynamics.run(200).temperature.mean() == pytest.approx(2000, rel=0.5)
    assert dynamics.snapshot().temperatures.tolist() == [2000.0] * 8


def test_frozen_atoms_and_heavy_hydrogens(potential32, system):
    dynamics = make(potential32, system, frozen=[0, 1], hydrogen_mass=2.0)
    found = dynamics.run(5)
    np.testing.assert_array_equal(found.positions[:2], system.positions[:2].numpy())
    hydrogens = system.atomic_numbers.numpy() == 1
    assert (dynamics.motion.particles.masses[hydrogens] == 2.0).all()
    assert found.particles.degrees_of_freedom().tolist() == [21]


def test_the_class_says_how_it_runs(potential32, system):
    dynamics = make(potential32, system)
    expected = "as a CUDA graph" if potential32.device.type == "cuda" else "runs in Python"
    assert expected in dynamics.why
    assert torchmdx.Dynamics is Dynamics


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(timestep=0.0), ValueError, "timestep must be > 0 fs and finite, got 0.0"),
        (dict(temperature=-1), ValueError, "temperature must be > 0 K and finite, got -1.0"),
        (dict(temperature=[1, 2]), ValueError, "temperature must be one number or 1, got shape [2]"),
        (dict(integrator="verlet", temperature=-1), ValueError, "temperature must be >= 0 K and finite, got -1.0"),
        (dict(seed=-1), ValueError, "seed must be from 0 to"),
        (dict(seed=1.5), TypeError, "seed must be whole numbers, got 1.5"),
        (dict(steps_per_replay=0), ValueError, "steps_per_replay must be >= 1, got 0"),
        (dict(frozen=range(9)), ValueError, "at least one atom of every structure must move, got none in structure 0"),
        (dict(frozen=[9]), IndexError, "frozen atoms must be from 0 to 8, got 9"),
        (dict(masses=[1.0]), ValueError, "masses must have shape [9], got [1]"),
        (dict(velocities=np.full((9, 3), np.inf)), ValueError, "velocities must be finite"),
        (dict(hydrogen_mass=8.0), ValueError, "every heavy atom must keep at least the hydrogen mass of 8.0 amu"),
        (dict(mode="fast"), ValueError, "mode must be one of auto, graph, eager, got 'fast'"),
    ],
)
def test_arguments_out_of_range(make_potential, system, options, error, words):
    with pytest.raises(error) as caught:
        Dynamics(small(make_potential), system, **options)
    assert words in str(caught.value)


@functools.cache
def small(make_potential):
    return make_potential(dtype=torch.float32)


def test_numbers_of_steps_out_of_range(make_potential, system):
    dynamics = make(small(make_potential), system)
    with pytest.raises(ValueError, match="num_steps must be >= 0, got -1"):
        dynamics.run(-1)
    with pytest.raises(ValueError, match="every must be >= 1 step, got 0"):
        dynamics.snapshots(4, every=0)


def test_snapshots_of_other_runs_are_refused(make_potential, system, other, tmp_path):
    dynamics = make(small(make_potential), system)
    dynamics.snapshot().save(tmp_path / "state.npz")
    with pytest.raises(ValueError, match="positions in .*state.npz' must have shape"):
        load_snapshot(tmp_path / "state.npz", make(small(make_potential), other).motion.particles)
    with pytest.raises(ValueError, match="must have 5 atoms in 1 structures, got 9 in 1"):
        make(small(make_potential), other).restore(dynamics.snapshot())
    with pytest.raises(ValueError, match="must have a timestep of 0.5 fs, got 0.25"):
        make(small(make_potential), system, timestep=0.5).restore(tmp_path / "state.npz")


def test_bussi_and_verlet_keep_the_centre_of_mass(potential32, system):
    for integrator in ("verlet", Bussi(relaxation=0.01)):
        found = make(potential32, system, integrator=integrator).run(20)
        momentum = found.particles.masses @ found.velocities
        assert np.abs(momentum).max() < 1e-6  # forces of float32 do not cancel exactly


@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_given_velocities_keep_their_temperature_with_heavy_hydrogens(potential32, system, other, integrator):
    """As velocities that are drawn have it: those given are of the masses of the elements."""
    light = make(potential32, [system, other], integrator=integrator)
    velocities = light.snapshot().velocities + 1e-3
    heavy = make(potential32, [system, other], integrator=integrator, hydrogen_mass=3.0, velocities=velocities)
    light.set_velocities(velocities)
    found, expected = heavy.snapshot(), light.snapshot()
    before, after = light.motion.particles.masses, heavy.motion.particles.masses
    assert (before != after).any()
    twice = [
        np.bincount(found.particles.system, m * (v**2).sum(1))
        for m, v in ((before, expected.velocities), (after, found.velocities))
    ]
    np.testing.assert_allclose(twice[1], twice[0], rtol=1e-12)
    if integrator != "langevin":  # whose temperatures are half a kick later
        np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-10)
    again = make(potential32, [system, other], integrator=integrator, masses=after, velocities=found.velocities)
    np.testing.assert_array_equal(again.snapshot().velocities, found.velocities)
