"""Multiple time steps on a GPU against those on the host: with graphs, and under Triton's interpreter with launches."""

import copy
from types import SimpleNamespace

import device_loops
import numpy as np
import pytest
import torch
from ase.build import bulk
from device_loops import at
from interpreter import DEVICE, needs_kernels

from torchmdx import Batch, Dynamics, Potential, System, TensorNetConfig
from torchmdx.dynamics import Bussi, CellRescaling, DisagreementError, Distance, Langevin, TemperatureExchange
from torchmdx.step.results import NonFiniteError

pytest.importorskip("triton")

FIELDS = ("positions", "velocities", "forces", "energy", "restraint_energy", "virial", "cell", "fast_forces")
SMALL = dict(dtype=torch.float32, num_layers=0, num_channels=8, num_radial=4)


@pytest.fixture
def potentials(make_potential):
    """The full one, and a fast one whose forces are 0.9 of them."""
    full = make_potential(**SMALL).to(DEVICE)
    fast = copy.deepcopy(full)
    fast.scale.mul_(0.9)
    return full, fast


def loops(potentials, systems, **options):
    full, fast = potentials
    return device_loops.loops(full, systems, **{"steps_per_replay": 6, "fast": fast, "inner": 3, **options})


def assert_same(one, two):
    device_loops.assert_same(one, two)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@needs_kernels
@pytest.mark.parametrize(
    "options",
    [
        dict(integrator="verlet", frozen=[2]),
        dict(integrator="langevin", restraints=[Distance((0, 1), 1.6, 5.0)]),
        dict(integrator=Bussi(0.01)),
    ],
)
def test_steps_are_those_of_the_host(potentials, systems, options):
    host, device = loops(potentials, systems, **options)
    expected, found = at(host, 9), at(device, 9)
    assert device.replays.captured == (DEVICE == "cuda"), device.why
    assert (found.step, found.inner) == (9, 3)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-4)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-4)


@needs_kernels
@pytest.mark.parametrize(("integrator", "small"), [(Langevin(5.0), False), (Bussi(0.01), False), (Langevin(5.0), True)])
def test_so_they_are_at_constant_pressure(potentials, integrator, small):
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.05, seed=3)
    options = dict(integrator=integrator, barostat=CellRescaling(1.0, 0.1), inner=2)
    options |= dict(max_force_difference=1e-9, small_steps=True) if small else {}
    host, device = loops(potentials, [System.from_ase(atoms)], **options)
    expected, found = at(host, 6), at(device, 6)
    assert abs(found.volume[0] / atoms.get_volume() - 1) > 1e-6
    np.testing.assert_allclose(found.cell, expected.cell, rtol=1e-7)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-5)
    np.testing.assert_allclose(found.pressure, expected.pressure, rtol=1e-3)
    assert device.num_small_blocks == host.num_small_blocks == 3 * small


@needs_kernels
def test_a_useless_fast_potential_gives_small_steps_at_constant_pressure(potentials):
    full, fast = potentials
    fast.scale.mul_(-1e4)
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.05, seed=3)
    options = dict(barostat=CellRescaling(1.0, 0.1), inner=2, small_steps=True)
    host, device = loops((full, fast), [System.from_ase(atoms)], **options)
    expected, found = at(host, 4), at(device, 4)
    assert device.num_small_blocks == host.num_small_blocks == 2
    np.testing.assert_allclose(found.cell, expected.cell, rtol=1e-7)
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-4)
    assert found.inner == expected.inner == 1


@needs_kernels
def test_bits_do_not_depend_on_replays_and_restarts(potentials, systems):
    _, one = loops(potentials, systems, steps_per_replay=1)
    _, many = loops(potentials, systems, steps_per_replay=9)
    *_, whole = one.snapshots(iter([18]))
    found = list(many.snapshots(iter([3, 6, 15, 18])))
    assert [snapshot.step for snapshot in found] == [3, 6, 15, 18]
    assert_same(found[-1], whole)
    one.blocks.verdict.fill_(1)  # as after a repair that has failed
    one.restore(found[1])
    assert_same(one.snapshot(), found[1])
    assert_same(at(one, 18), whole)


def full(step, count):
    raise MemoryError


@needs_kernels
@pytest.mark.parametrize("which", [0, 1])
def test_an_overflow_or_a_far_atom_of_either_potential_loses_nothing(potentials, systems, which, monkeypatch):
    _, whole = loops(potentials, systems)
    _, small = loops(potentials, systems)
    expected = list(whole.snapshots(iter([6, 12])))
    step = small.steps[which]
    step.search._make(step.ordered, step.search.backend, 5)
    step.engine.reserve(step.search.capacity)
    with monkeypatch.context() as patched:
        patched.setattr("torchmdx.dynamics.device_repairs.grow", full)
        with pytest.raises(MemoryError):
            at(small, 6)
    found = [at(small, 6)]
    assert small.num_recoveries == step.num_recoveries == 1
    step.buffers.far.fill_(0.1)
    found.append(at(small, 12))
    assert float(step.buffers.far) > 1
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.positions, two.positions, atol=1e-6)
        np.testing.assert_allclose(one.energy, two.energy, atol=1e-4)


@needs_kernels
def test_results_that_are_not_finite_end_the_run_at_the_block_before(potentials, systems):
    _, loop = loops(potentials, systems)
    kept = at(loop, 3)
    velocities = kept.velocities.copy()
    velocities[1] = 1e200
    loop.set_velocities(velocities)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="fast potential: evaluation 4: .* the first is atom 1"):
            at(loop, 9)
        assert loop.num_steps == 3
    loop.set_velocities(kept.velocities)
    assert_same(at(loop, 9), at(loops(potentials, systems)[1], 9))


@pytest.mark.nightly
@needs_kernels
def test_a_disagreement_stops_at_the_state_before_or_takes_small_steps(potentials, systems):
    options = dict(temperature=30000, restraints=[Distance((0, 1), 1.6, 1.0)])
    free = loops(potentials, systems, **options)[1]
    states = [free.snapshot(), *free.snapshots(iter(range(3, 25, 3)))]
    differences = [np.linalg.norm(state.forces - state.fast_forces, axis=1).max() for state in states]
    largest = np.maximum.accumulate(differences)
    place = int(np.diff(largest).argmax()) + 1  # the first that exceeds what was before by so much
    assert largest[place] > largest[place - 1]
    limit = (largest[place - 1] + largest[place]) / 2
    stopped = loops(potentials, systems, **options, max_force_difference=limit)[1]
    for _ in range(2):
        with pytest.raises(DisagreementError, match=f"^step {3 * place}: .* of structure [01]"):
            list(stopped.snapshots(iter([24])))
        assert_same(stopped.snapshot(), states[place - 1])
    host, device = loops(potentials, systems, **options, max_force_difference=limit, small_steps=True)
    expected, found = at(host, 24), at(device, 24)
    assert 0 < device.num_small_blocks == host.num_small_blocks < 8
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-5)
    np.testing.assert_allclose(found.restraint_energy, expected.restraint_energy, atol=1e-5)
    np.testing.assert_allclose(found.fast_forces, expected.fast_forces, atol=1e-3)


@needs_kernels
def test_small_steps_attempt_exchanges_and_survive_interruptions(potentials, systems, monkeypatch):
    from torchmdx.dynamics.device_loop import DeviceLoop

    options = dict(temperature=[300.0, 400.0], inner=2, max_force_difference=1e-9, small_steps=True)
    _, made = loops(potentials, systems[:1] * 2, **options)
    start, temperatures = made.snapshot(), made.motion.temperatures
    exchange = TemperatureExchange(2, Batch.from_systems(systems[:1] * 2), temperatures, 1)
    given = (made.step, made.motion, start.positions, start.velocities, start.cell)
    loop = DeviceLoop(*given, steps_per_replay=2, mode="eager", exchange=exchange, fast=made.blocks.fast)

    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop.blocks, "set_fast_forces", interrupted)
        with pytest.raises(KeyboardInterrupt):
            at(loop, 2)
    found = at(loop, 8)
    np.testing.assert_allclose(found.fast_forces, 0.9 * found.forces, atol=1e-4)
    assert exchange.attempts.tolist() == [2]  # at steps 4 and 8
    assert loop.num_small_blocks == 4


def test_a_comparison_of_a_graph_forgets_the_verdict_of_its_steps():
    from torchmdx.dynamics.replays import Replays

    state = SimpleNamespace(block=torch.zeros(2), forces=torch.zeros(1), control=torch.zeros(2, dtype=torch.int64))
    blocks = SimpleNamespace(count=3, verdict=torch.zeros(1), fast=SimpleNamespace())

    def launch():
        state.control[1] = 1
        blocks.verdict.fill_(1)

    blocks.launch = launch
    step = SimpleNamespace(device=torch.device("cpu"), precision="float32")
    replays = Replays(step, state, 1, "eager", blocks=blocks)
    assert replays._compare(SimpleNamespace(replay=launch), 1) is None
    assert blocks.verdict == 0


@pytest.mark.gpu
def test_exchanges_on_the_device_are_those_of_the_host(potentials, systems):
    full, fast = potentials
    options = dict(temperature=[300.0, 330.0, 360.0], exchange_every=4, fast=fast, inner=2, timestep=0.25, seed=2)
    host, device = (Dynamics(full, [systems[0]] * 3, exchange_on_device=there, **options) for there in (False, True))
    expected, found = host.run(40), device.run(40)
    assert host.exchange.accepted.sum() > 0
    np.testing.assert_array_equal(found.temperatures, expected.temperatures)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-5)


@pytest.mark.gpu
def test_a_graph_holds_both_potentials_and_is_what_launches_are(potentials, systems):
    _, graphs = loops(potentials, systems, mode="graph", steps_per_replay=6)
    _, launches = loops(potentials, systems, mode="eager", steps_per_replay=6)
    assert_same(at(graphs, 27), at(launches, 27))
    assert graphs.replays.captured
    assert set(graphs.replays.graphs) == {2, 1}
    assert "6 steps are replayed at once as a CUDA graph, with one evaluation of the full potential for 3" in graphs.why


@pytest.mark.gpu
@pytest.mark.parametrize("integrator", ["verlet", "langevin", "bussi"])
def test_inner_steps_in_one_launch_are_those_of_the_host(systems, integrator):
    torch.manual_seed(0)
    full, fast = (Potential(TensorNetConfig(num_layers=n)).requires_grad_(False).to(DEVICE) for n in (2, 1))
    options = dict(integrator=integrator, frozen=[2], max_force_difference=1e3)
    host, device = loops((full, fast), systems, **options)
    expected, found = at(host, 9), at(device, 9)
    np.testing.assert_allclose(found.positions, expected.positions, atol=1e-6)
    np.testing.assert_allclose(found.forces, expected.forces, atol=1e-4)
    _, single = loops((full, fast), systems, steps_per_replay=1, **options)
    assert_same(at(single, 9), found)
    kept = at(device, 12)
    velocities = kept.velocities.copy()
    velocities[1] = 1e200
    device.set_velocities(velocities)
    with pytest.raises(NonFiniteError, match="fast potential: evaluation 13: .* the first is atom 1"):
        at(device, 18)
    assert device.snapshot().step == 12
