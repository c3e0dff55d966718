"""Runs on several devices: results of one process, exchanges, restarts, errors and interruptions; on CPUs here."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

from torchmdx import Dynamics, System
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.restraints import Distance
from torchmdx.step.results import NonFiniteError

FIELDS = ("positions", "velocities", "forces", "energy", "temperatures")


@pytest.fixture
def potential(make_potential):
    return make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)


@pytest.fixture
def make(potential, ethanol, quick_workers):
    """Dynamics of five replicas on so many devices, which end with the test."""
    with contextlib.ExitStack() as opened:

        def dynamics(devices=2, **options):
            given = dict(
                integrator=Langevin(friction=5.0), timestep=0.25, seed=3, temperature=np.geomspace(300, 330, 5)
            )
            found = Dynamics(potential, [System.from_ase(ethanol)] * 5, devices=devices, **{**given, **options})
            opened.callback(found.close)
            return found

        yield dynamics


def assert_same(one, two):
    assert one.step == two.step
    for name in FIELDS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-6, atol=1e-6, err_msg=name)


def test_exchanges_output_and_restraints_are_those_of_one_process(make):
    """Five replicas on two devices, with a restraint of each, and attempts to exchange between them."""
    restraint = Distance((0, 1), np.linspace(1.4, 1.6, 5), 5.0)
    one, two = (make(devices, exchange_every=4, restraints=[restraint]) for devices in (1, 2))
    assert "2 processes on cpu, cpu" in two.why
    assert two.num_recoveries == one.num_recoveries
    assert_same(two.snapshot(), one.snapshot())
    for first, second in zip(one.snapshots(14, every=[4, 7]), two.snapshots(14, every=[4, 7]), strict=True):
        assert_same(second, first)
    np.testing.assert_array_equal(two.exchange.attempts, one.exchange.attempts)
    np.testing.assert_array_equal(two.exchange.accepted, one.exchange.accepted)
    assert one.exchange.accepted.sum() > 0
    np.testing.assert_array_equal(two.motion.temperatures, one.motion.temperatures)


@pytest.mark.nightly
def test_a_restart_may_have_another_number_of_devices(make, tmp_path):
    expected = make(1, exchange_every=5).run(24)
    for before, after in ((2, 1), (1, 2)):
        first = make(before, exchange_every=5)
        first.run(10).save(tmp_path / "state.npz")
        again = make(after, exchange_every=5)
        again.restore(tmp_path / "state.npz")
        assert again.num_steps == 10
        assert_same(again.run(14), expected)


@pytest.mark.nightly
def test_runs_go_on_after_errors_interruptions_and_requests_to_stop(make, monkeypatch):
    """One after the other, since each start of processes takes seconds."""
    dynamics, expected = make(2), make(1).run(8)
    an_error_keeps_the_last_snapshot_and_says_where(dynamics, expected)
    expected = make(1).run(17)
    an_interruption_keeps_the_last_snapshot(dynamics, expected, monkeypatch)
    a_request_to_stop_is_heard_between_steps(dynamics)


def an_error_keeps_the_last_snapshot_and_says_where(dynamics, expected):
    kept = dynamics.run(4)
    velocities = kept.velocities.copy()
    velocities[9 * 4 + 2] = 1e200  # an atom of the last replica, in the second process
    dynamics.set_velocities(velocities)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=r"atom 20 \(structures 2 to 4, on cpu, where"):
            dynamics.run(5)
        found = dynamics.snapshot()
        assert found.step == dynamics.num_steps == 4
        np.testing.assert_array_equal(found.positions, kept.positions)
    dynamics.set_velocities(kept.velocities)
    assert_same(dynamics.run(4), expected)


def an_interruption_keeps_the_last_snapshot(dynamics, expected, monkeypatch):
    kept = dynamics.run(3)
    receive = dynamics.loop._receive

    def interrupted():
        monkeypatch.setattr(dynamics.loop, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(dynamics.loop, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dynamics.run(6)
    assert_same(dynamics.snapshot(), kept)
    assert_same(dynamics.run(6), expected)


def a_request_to_stop_is_heard_between_steps(dynamics):
    asked, start = [], dynamics.num_steps

    def interrupted():
        asked.append(dynamics.loop._step)
        return len(asked) > 2

    dynamics.loop._piece = 3
    *_, last = dynamics.snapshots(50, every=50, interrupted=interrupted)
    assert asked == [start, start + 3, asked[2]]
    assert last.step == dynamics.num_steps == asked[2] < start + 50


@pytest.mark.nightly
def test_a_dead_process_ends_the_run_and_the_others(make):
    dynamics = make(2)
    first, second = (process.process for process in dynamics.loop._processes)
    os.kill(second.pid, signal.SIGKILL)
    second.join()
    with pytest.raises(ChildProcessError, match="the process of cpu ended with exit status -9"):
        dynamics.run(3)
    first.join(10)
    assert not first.is_alive()


@pytest.mark.nightly
def test_processes_end_with_the_dynamics(potential, ethanol, quick_workers):
    dynamics = Dynamics(potential, [System.from_ase(ethanol)] * 2, devices=2)
    processes = [process.process for process in dynamics.loop._processes]
    assert all(process.is_alive() for process in processes)
    del dynamics
    assert not any(process.is_alive() for process in processes)
    assert not [child for child in multiprocessing.active_children() if child in processes]


def test_what_cannot_be_shared_is_refused(potential, ethanol, make):
    with pytest.raises(ValueError, match="devices must be >= 1, got 0"):
        make(0)
    with pytest.raises(ValueError, match="devices must not be more than the 5 structures, got 6"):
        make(6)


@pytest.mark.nightly
def test_an_error_at_the_start_is_that_of_one_process(make):
    with pytest.raises(ValueError, match=r"max_force_spread needs an ensemble.*\(structures 0 to 1, on cpu"):
        make(2, max_force_spread=1.0)


SCRIPT = """
import signal
import sys
import torch
from ase.build import molecule
from torchmdx import Dynamics, Potential, System, TensorNetConfig

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore in background jobs
    potential = Potential(TensorNetConfig(num_layers=0, num_channels=4, num_radial=4))
    dynamics = Dynamics(potential, [System.from_ase(molecule("CH4"))] * 2, devices=2)
    print(*(process.process.pid for process in dynamics.loop._processes), flush=True)
    if sys.argv[1] == "runs":
        dynamics.run(10**9)
    sys.exit(3)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(("word", "number"), [("runs", signal.SIGKILL), ("runs", signal.SIGINT), ("ends", None)])
def test_no_process_outlives_the_first_one(tmp_path, word, number):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "script.py", word], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    if number is not None:
        process.send_signal(number)
    assert process.wait(60) == {None: 3, signal.SIGKILL: -9, signal.SIGINT: -2}[number]
    until = time.monotonic() + 30
    while any(is_running(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in pids)


def is_running(pid: int) -> bool:
    """Not gone and not a zombie, whose parent is not that of this test."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.two_gpus
def test_two_gpus(make_potential, ethanol):
    potential = make_potential(dtype=torch.float32).to("cuda")
    runs = []
    for devices in (1, 2):
        dynamics = Dynamics(
            potential, [System.from_ase(ethanol)] * 4, devices=devices, exchange_every=10, seed=1,
            temperature=np.geomspace(300, 330, 4),
        )  # fmt: skip
        runs.append((dynamics.run(100), dynamics.exchange.accepted.copy()))
        dynamics.close()
    np.testing.assert_allclose(runs[1][0].positions, runs[0][0].positions, atol=1e-4)
    np.testing.assert_array_equal(runs[1][1], runs[0][1])
