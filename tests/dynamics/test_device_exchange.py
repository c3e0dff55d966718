"""Exchange attempts on the device: the decisions of the host, bit for bit, alone and in a run."""

import dataclasses

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels
from oscillators import springs
from pair_springs import FREQUENCY, MASS, NUM_ATOMS, pair_springs, replicas

from torchmdx import Batch, Dynamics, System
from torchmdx.dynamics.exchange import TemperatureExchange
from torchmdx.dynamics.integrators import Bussi, Langevin

pytest.importorskip("triton")

EVERY = 5


def ladder(temperatures, seed=2**40 + 7):
    """(attempts on the host, on the device, state on the device, snapshot) of replicas of two atoms."""
    from torchmdx.dynamics.device_exchange import DeviceExchange
    from torchmdx.dynamics.device_state import DeviceState

    count = len(temperatures)
    loop = springs(Langevin(), 1.0, [2] * count)
    loop.set_motion(loop.motion.at(temperatures))
    system = System.create(np.zeros((2, 3)), np.full(2, 6))
    host, device = (TemperatureExchange(EVERY, Batch.from_systems([system] * count), temperatures, seed) for _ in "ab")
    state = DeviceState(loop.motion, torch.device(DEVICE))
    return host, DeviceExchange(device, state, temperatures), state, loop.snapshot()


def put(state, snapshot):
    state.control.copy_(torch.tensor([snapshot.step, 0]))
    for name in ("positions", "velocities", "forces", "energy", "restraint_energy"):
        getattr(state, name).copy_(torch.as_tensor(getattr(snapshot, name)))


TEMPERATURES = {
    "two": np.array([300.0, 600.0]),
    "odd": np.array([300.0, 340.0, 320.0, 390.0, 360.0]),
    "equal": np.array([300.0, 310.0, 300.0, 310.0, 305.0, 305.0]),
    "many": np.geomspace(300, 900, 150)[np.random.default_rng(1).permutation(150)],
}


@needs_kernels
@pytest.mark.parametrize("kind", TEMPERATURES)
def test_decisions_are_those_of_the_host(kind):
    temperatures = TEMPERATURES[kind]
    host, device, state, snapshot = ladder(temperatures)
    rng, current = np.random.default_rng(0), temperatures
    for number in range(1, 21):
        snapshot = dataclasses.replace(
            snapshot,
            step=EVERY * number + 2**33 * EVERY,
            temperatures=current,
            energy=rng.normal(0, 0.5, len(current)),
            restraint_energy=rng.normal(0, 0.1, len(current)),
            velocities=rng.normal(size=snapshot.velocities.shape),
        )
        put(state, snapshot)
        device.launch()
        current, velocities = host.attempt(snapshot)
        np.testing.assert_array_equal(device.temperatures.cpu(), current)
        np.testing.assert_array_equal(state.velocities.cpu(), velocities)
        np.testing.assert_array_equal(state.thermal.cpu(), springs(Langevin(), 1.0, [2]).motion.at(current).thermal())
        np.testing.assert_array_equal(device.received(device.block.cpu()), current)
        np.testing.assert_array_equal(device.exchange.attempts, host.attempts)
        np.testing.assert_array_equal(device.exchange.accepted, host.accepted)
    assert 0 < host.accepted.sum() < host.attempts.sum()


@needs_kernels
@pytest.mark.parametrize(("step", "halted", "last"), [(EVERY + 1, 0, 0), (EVERY, 1, 0), (EVERY, 0, EVERY)])
def test_nothing_happens_at_other_steps_nor_twice_nor_while_halted(step, halted, last):
    _, device, state, snapshot = ladder(TEMPERATURES["odd"])
    put(state, dataclasses.replace(snapshot, step=step, energy=np.array([5.0, 4.0, 3.0, 2.0, 1.0])))
    state.control[1] = halted
    device.last.fill_(last)
    before, velocities = device.block.clone(), state.velocities.clone()
    device.launch()
    torch.testing.assert_close(device.block, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(state.velocities, velocities, rtol=0, atol=0)


def runs(integrator, *, mode, steps_per_replay=4, seed=3):
    """Two dynamics at the same start: attempts on the device, and on the host with the same loop."""
    from torchmdx import CapturedStep
    from torchmdx.dynamics.device_loop import DeviceLoop

    temperatures = 200 * 1.3 ** np.arange(6.0)
    found = []
    for on_device in (True, False):
        potential = pair_springs(torch.float32).to(DEVICE)
        dynamics = Dynamics(
            potential, replicas(temperatures), integrator=integrator, temperature=temperatures, seed=seed,
            timestep=0.5 / FREQUENCY, masses=np.full(6 * NUM_ATOMS, MASS), exchange_every=EVERY,
        )  # fmt: skip
        start, batch = dynamics.snapshot(), dynamics.batch
        given = (dynamics.motion, start.positions, start.velocities, batch.cell.numpy())
        exchange = dynamics.exchange if on_device else None
        step = CapturedStep(potential, batch, mode="eager")
        dynamics.loop = DeviceLoop(step, *given, steps_per_replay=steps_per_replay, mode=mode, exchange=exchange)
        assert dynamics.loop.exchanges == on_device
        found.append(dynamics)
    return found


def assert_same(one, two):
    assert one.step == two.step
    for name in ("positions", "velocities", "energy", "temperatures"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.nightly_for("integrator1")
@needs_kernels
@pytest.mark.parametrize("integrator", [Langevin(friction=20.0), Bussi(relaxation=0.05)])
def test_a_run_is_that_with_attempts_on_the_host(integrator):
    device, host = runs(integrator, mode="eager")
    states = list(device.snapshots(33, every=[5, 4]))
    for one, two in zip(states, host.snapshots(33, every=[5, 4]), strict=True):
        assert_same(one, two)
    assert len({tuple(state.temperatures) for state in states}) > 2
    np.testing.assert_array_equal(device.exchange.attempts, host.exchange.attempts)
    np.testing.assert_array_equal(device.exchange.accepted, host.exchange.accepted)
    np.testing.assert_array_equal(device.motion.temperatures, states[-1].temperatures)


@pytest.mark.nightly
@needs_kernels
def test_a_restart_repeats_no_attempt(tmp_path):
    device, host = runs(Langevin(friction=20.0), mode="eager")
    expected = list(device.snapshots(30, every=30))[-1]
    device, _ = runs(Langevin(friction=20.0), mode="eager")
    device.run(15).save(tmp_path / "state.npz")  # a step with attempts
    device.run(3)
    device.restore(tmp_path / "state.npz")
    assert_same(device.run(15), expected)
    assert_same(host.run(30), expected)


@pytest.mark.gpu
def test_graphs_attempt_as_launches_do():
    graphs, _ = runs(Langevin(friction=20.0), mode="graph")
    launches, _ = runs(Langevin(friction=20.0), mode="eager")
    for one, two in zip(graphs.snapshots(43, every=20), launches.snapshots(43, every=20), strict=True):
        assert_same(one, two)
    assert graphs.loop.replays.captured
    np.testing.assert_array_equal(graphs.exchange.accepted, launches.exchange.accepted)


@needs_kernels
def test_more_replicas_than_lanes_are_refused(monkeypatch):
    monkeypatch.setattr("torchmdx.dynamics.device_exchange.MOST_REPLICAS", 4)
    with pytest.raises(ValueError, match="an exchange on a GPU needs at most 4 replicas, got 5"):
        ladder(TEMPERATURES["odd"])
