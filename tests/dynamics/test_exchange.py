"""Replica exchange: acceptance and distributions against theory, and exact restart."""

import dataclasses

import numpy as np
import pytest
import torch
from interpreter import DEVICE
from oscillators import springs
from pair_springs import FREQUENCY, MASS, NUM_ATOMS, SHAPE, pair_springs, reduced, replicas
from scipy import stats

from torchmdx import Batch, Dynamics, System
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.run.recording import Recording
from torchmdx.structures.units import BOLTZMANN

TEMPERATURES = np.array([300.0, 400.0, 550.0])


def snapshot_of(energy, temperatures, step):
    found = springs(Langevin(), 1.0, [NUM_ATOMS] * len(energy)).snapshot()
    return dataclasses.replace(found, step=step, energy=np.asarray(energy), temperatures=np.asarray(temperatures))


def exchange(count=3, every=10, seed=5):
    system = System.create(np.zeros((NUM_ATOMS, 3)), np.full(NUM_ATOMS, 6))
    return TemperatureExchange(every, Batch.from_systems([system] * count), TEMPERATURES[:count], seed)


def test_energies_of_the_canonical_ensemble_stay_so_and_are_accepted_as_theory_says():
    """Energies of 12 oscillators are gamma distributed; the mean acceptance is an integral over two of them."""
    rng, rounds, shape = np.random.default_rng(0), 6000, 3 * NUM_ATOMS / 2
    swaps = exchange()
    snapshot = snapshot_of(np.zeros(3), TEMPERATURES, 0)
    after = []
    for number in range(rounds):
        energy = rng.gamma(shape, BOLTZMANN * TEMPERATURES)
        now = dataclasses.replace(snapshot, step=10 * number, energy=energy)
        temperatures, _ = swaps.attempt(now)
        assert sorted(temperatures) == sorted(TEMPERATURES)
        after.append(energy[np.argsort(temperatures)])
    for column, temperature in zip(np.array(after).T, TEMPERATURES, strict=True):
        assert stats.kstest(column / (BOLTZMANN * temperature), stats.gamma(shape).cdf).pvalue > 1e-4
    np.testing.assert_array_equal(swaps.attempts, [rounds // 2] * 2)
    for pair, acceptance in enumerate(swaps.acceptance):
        cold, hot = TEMPERATURES[pair], TEMPERATURES[pair + 1]
        # min(1, exp(...)) is symmetric under the swap: twice the probability that the colder one has more energy.
        expected = 2 * stats.f(2 * shape, 2 * shape).sf(hot / cold)
        error = np.sqrt(expected * (1 - expected) / (rounds // 2))
        assert acceptance == pytest.approx(expected, abs=4.5 * error)


@pytest.fixture(scope="module")
def ladder():
    """States after each attempt of 17 replicas of springs, in order of temperature, and the dynamics.

    Between attempts of a pair are 20 steps, in which energies forget all but e⁻⁸.
    """
    temperatures = 200 * 1.3 ** np.arange(17)
    dynamics = Dynamics(
        pair_springs().to(DEVICE), replicas(temperatures), integrator=Langevin(friction=20.0), temperature=temperatures,
        timestep=0.8 / FREQUENCY, masses=np.full(17 * NUM_ATOMS, MASS), seed=3, exchange_every=10,
    )  # fmt: skip
    return list(dynamics.snapshots(1200, every=10)), dynamics


@pytest.mark.nightly
def test_acceptance_of_a_run_is_that_of_theory(ladder):
    """Neighbours have the same ratio of temperatures, and hence one probability, from the F distribution."""
    _, dynamics = ladder
    attempts, accepted = dynamics.exchange.attempts.sum(), dynamics.exchange.accepted.sum()
    assert attempts == 120 * 8
    expected = 2 * stats.f(2 * SHAPE, 2 * SHAPE).sf(1.3)
    error = np.sqrt(expected * (1 - expected) / attempts)
    assert accepted / attempts == pytest.approx(expected, abs=4.5 * error)


@pytest.mark.nightly
def test_a_run_with_exchanges_samples_the_canonical_ensemble_at_each_temperature(ladder):
    """Potential energies are gamma distributed, and kinetic temperatures are those of thermostats."""
    states, _ = ladder
    potential = np.array([reduced(state.energy, state.temperatures) for state in states[2::2]])
    assert stats.kstest(potential.ravel(), stats.gamma(SHAPE).cdf).pvalue > 1e-4
    kinetic = np.array([state.temperature / state.temperatures for state in states[2::2]])
    assert kinetic.mean() == pytest.approx(1, abs=4.5 * np.sqrt(2 / (3 * NUM_ATOMS * kinetic.size)))
    visits = np.array([np.argsort(state.temperatures) for state in states])
    assert all(len(set(column)) > 3 for column in visits.T)  # replicas pass by every temperature


def test_velocities_follow_the_temperature():
    before = snapshot_of([1.0, 0.0], TEMPERATURES[:2], 10)
    before = dataclasses.replace(before, step=20)
    temperatures, velocities = exchange(2).attempt(before)  # the colder one has more energy: always accepted
    assert temperatures.tolist() == [400.0, 300.0]
    np.testing.assert_allclose(velocities[:NUM_ATOMS], before.velocities[:NUM_ATOMS] * np.sqrt(4 / 3))
    np.testing.assert_allclose(velocities[NUM_ATOMS:], before.velocities[NUM_ATOMS:] * np.sqrt(3 / 4))


def test_a_swap_uphill_in_energy_is_not_certain():
    rejected, _ = exchange(2).attempt(snapshot_of([0.0, 50.0], TEMPERATURES[:2], 20))
    assert rejected.tolist() == [300.0, 400.0]


@pytest.fixture
def make(make_potential, ethanol):
    potential = make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4).to(DEVICE)

    def dynamics(count=4, **options):
        settings = {"temperature": np.geomspace(300, 330, count), "timestep": 0.25, "seed": 2, "exchange_every": 4}
        return Dynamics(potential, [System.from_ase(ethanol)] * count, **{**settings, **options})

    return dynamics


def test_temperatures_move_between_replicas(make):
    dynamics = make()
    states = list(dynamics.snapshots(40, every=8))
    assert [state.step for state in states] == [8, 16, 24, 32, 40]
    assert all(sorted(state.temperatures) == sorted(states[0].temperatures) for state in states)
    assert len({tuple(state.temperatures) for state in states}) > 1
    assert dynamics.exchange.attempts.tolist() == [5, 5, 5]
    np.testing.assert_array_equal(dynamics.motion.temperatures, states[-1].temperatures)


def test_output_and_restart_do_not_change_exchanges(make, tmp_path):
    whole = make().run(50)
    dynamics = make()
    for _ in dynamics.snapshots(20, every=[3, 7]):
        pass
    dynamics.snapshot().save(tmp_path / "state.npz")
    again = make()
    again.restore(tmp_path / "state.npz")
    found = again.run(30)
    np.testing.assert_array_equal(found.positions, whole.positions)
    np.testing.assert_array_equal(found.temperatures, whole.temperatures)


def test_the_log_has_the_temperature_of_the_thermostat(make, tmp_path):
    from torchmdx.dynamics.log import read_log

    with Recording.begin(make(), str(tmp_path / "run"), save_every=8, log_every=8) as recording:
        recording.run(24)
    expected = [make().snapshot(), *make().snapshots(24, every=8)]
    for number in range(4):
        log = read_log(tmp_path / f"run.{number}.log")
        np.testing.assert_allclose(log["thermostat_K"], [state.temperatures[number] for state in expected], atol=1e-3)
    with Recording.resume(make(), str(tmp_path / "run"), save_every=8, log_every=8) as recording:
        recording.run(8)
    with pytest.raises(ValueError, match="steps between exchanges 5, was 4"):
        Recording.resume(make(exchange_every=5), str(tmp_path / "run"), save_every=8, log_every=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (dict(exchange_every=0), "exchange_every must be >= 1 step, got 0"),
        (dict(count=1), "an exchange needs at least 2 replicas, got 1"),
        (dict(integrator="verlet"), "an exchange needs an integrator with constant temperature, got VelocityVerlet"),
    ],
)
def test_what_cannot_be_exchanged(make, options, words):
    with pytest.raises(ValueError, match=words):
        make(**options)


def test_structures_must_be_the_same(make_potential, ethanol, cation):
    systems = [System.from_ase(ethanol), System.from_ase(cation)]
    with pytest.raises(ValueError, match="structure 1 differs from structure 0"):
        Dynamics(make_potential(), systems, exchange_every=3)
