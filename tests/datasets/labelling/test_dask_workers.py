"""Labelling by workers of a dask.distributed cluster that die, come late or are too many for the tasks."""

import asyncio
import io
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import ase.io
import numpy as np
import pytest
import toys

from torchmdx.datasets.labelling import dask_workers
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.dask_workers import PER_THREAD, DaskWorkers
from torchmdx.datasets.labelling.run import Crew, label
from torchmdx.datasets.labelling.sources import StructureFiles
from torchmdx.datasets.labelling.work import LabelWork
from torchmdx.datasets.labelling.workers import Task

needs_dask = pytest.mark.usefixtures("distributed")


@pytest.fixture
def distributed():
    import dask

    found = pytest.importorskip("distributed")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0, "distributed.worker.daemon": True}):
        yield found


@pytest.fixture
def cluster(distributed):
    """Two workers in this process, with one thread each."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as made:
        yield made


def workers(address, tmp_path, stopped=lambda: False, stream=None) -> DaskWorkers:
    work = LabelWork(Choice("toys:Springs"), tmp_path / "files")
    return DaskWorkers(
        work, address, timeout=None, log=tmp_path / "log", stopped=stopped, stream=stream or io.StringIO()
    )


class Doing:
    """Stands for a task on a worker: remembers each, and can wait until it is released."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, order, payload):
        self.begun.append(payload)
        self.free.wait(30)
        return 2 * payload, None

    def __reduce__(self):  # the workers are in this process
        return _the_same, ()


def _the_same():
    return _DOING[-1]


_DOING: list[Doing] = []


@pytest.fixture
def doing(monkeypatch) -> Doing:
    _DOING.append(Doing())
    monkeypatch.setattr(dask_workers, "do_task", _DOING[-1])
    return _DOING[-1]


def outcomes(crew, count) -> dict:
    with crew:
        found = [
            outcome for outcome in crew.run(Task(number, number) for number in range(count)) if outcome is not None
        ]
    assert sorted(outcome.name for outcome in found) == list(range(count))
    return {outcome.name: outcome for outcome in found}


@needs_dask
def test_every_task_has_one_outcome(cluster, doing, tmp_path):
    found = outcomes(workers(cluster.scheduler_address, tmp_path), 50)
    assert all(outcome.value == 2 * name and outcome.error is None for name, outcome in found.items())
    assert sorted(doing.begun) == list(range(50))


@needs_dask
def test_tasks_are_given_out_as_threads_need_them(cluster, doing, tmp_path):
    taken = []

    def tasks():
        for number in range(1000):
            taken.append(number)
            yield Task(number, number)

    doing.free.clear()
    crew = workers(cluster.scheduler_address, tmp_path)
    with crew:
        running = crew.run(tasks())
        for _ in range(3):
            assert next(running) is None
        assert len(taken) <= PER_THREAD * 2 + 1
        assert len(cluster.scheduler.tasks) <= PER_THREAD * 2
        doing.free.set()


@needs_dask
def test_tasks_of_a_lost_worker_are_done_by_another(cluster, doing, tmp_path):
    doing.free.clear()
    crew = workers(cluster.scheduler_address, tmp_path)
    with crew:
        running = crew.run(Task(number, number) for number in range(6))
        while len(doing.begun) < 2:
            next(running)
        lost = next(iter(cluster.scheduler.workers))
        gone = cluster.scheduler.remove_worker(lost, stimulus_id="test", close=False)
        asyncio.run_coroutine_threadsafe(gone, cluster.loop.asyncio_loop).result(20)
        assert len(cluster.scheduler.workers) == 1
        doing.free.set()
        found = [outcome for outcome in running if outcome is not None]
    assert Counter(outcome.name for outcome in found) == Counter(range(6))
    assert all(outcome.value == 2 * outcome.name and outcome.error is None for outcome in found)


@needs_dask
def test_a_task_that_takes_down_workers_fails_alone(cluster, monkeypatch, tmp_path):
    from distributed.scheduler import KilledWorker

    def given_up(order, payload):
        if payload == 1:
            raise KilledWorker("task", SimpleNamespace(address="tcp://x"), 0)
        return payload, None

    monkeypatch.setattr(dask_workers, "do_task", given_up)
    found = outcomes(workers(cluster.scheduler_address, tmp_path), 4)
    assert {name: outcome.error for name, outcome in found.items() if outcome.error} == {
        1: "dask workers died while they had it: given up twice"
    }


@needs_dask
def test_a_cluster_without_workers_is_waited_for(distributed, doing, tmp_path):
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, dashboard_address=None, host="127.0.0.1", protocol="tcp"
    ) as cluster:
        stream = io.StringIO()
        crew = workers(cluster.scheduler_address, tmp_path, stream=stream)
        with crew:
            running = crew.run(Task(number, number) for number in range(3))
            assert next(running) is None
            assert "has no workers yet; waiting for them" in stream.getvalue()
            cluster.scale(1)
            assert sorted(outcome.value for outcome in running if outcome is not None) == [0, 2, 4]


@needs_dask
def test_work_that_cannot_be_done_ends_the_run(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(dask_workers, "do_task", _wrong)
    with pytest.raises(ValueError, match="workers of tcp://.* must be able to label, got ValueError: no tblite here"):
        outcomes(workers(cluster.scheduler_address, tmp_path), 3)


def _wrong(order, payload):
    raise ValueError("no tblite here (on node-7)")


@needs_dask
def test_a_lost_scheduler_ends_the_run(cluster, doing, tmp_path):
    crew = workers(cluster.scheduler_address, tmp_path)
    with crew:
        running = crew.run(Task(number, number) for number in range(100))
        next(running)
        crew._client.close()
        with pytest.raises(ConnectionError, match="the scheduler at tcp://.* (is gone|cancelled a task)"):
            list(running)


@needs_dask
def test_a_wish_to_stop_is_heard(cluster, doing, tmp_path):
    doing.free.clear()
    crew = workers(cluster.scheduler_address, tmp_path, stopped=lambda: len(doing.begun) > 0)
    began = time.monotonic()
    with crew:
        assert [outcome for outcome in crew.run(Task(number, number) for number in range(9)) if outcome] == []
        assert time.monotonic() - began < 10
        doing.free.set()


@needs_dask
@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("nowhere", ValueError, "--dask must be an address such as tcp://host:8786 or a scheduler file, got 'nowhere'"),
        ("tcp://127.0.0.1:9", ConnectionError, "--dask must be a running scheduler, got 'tcp://127.0.0.1:9'"),
    ],
)
def test_addresses_are_checked(address, error, words, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_workers, "CONNECTING", 1.0)
    with pytest.raises(error, match=words):
        workers(address, tmp_path)


def test_without_dask_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"--dask needs dask.distributed, .*: pip install 'torchmdx\[dask\]'"):
        workers("tcp://127.0.0.1:9", tmp_path)


def test_workers_of_two_kinds_are_refused(tmp_path, monkeypatch, capsys):
    from torchmdx.commands import cli

    monkeypatch.chdir(tmp_path)
    toys.write_frames("a.xyz", 1)
    line = ["label", "a.xyz", "-o", "out.xyz", "--calculator", "lj", "--workers", "2", "--dask", "tcp://localhost:1"]
    assert cli.main(line) == 2
    assert "--workers can't be combined with --dask; got --workers 2" in capsys.readouterr().err


@pytest.fixture
def processes(distributed, tmp_path, monkeypatch):
    """Two workers in processes of their own, as on a cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as made:
        yield made


def crew_of(cluster, **options) -> Crew:
    return Crew(1, options.pop("timeout", None), io.StringIO(), dask=cluster.scheduler_address, **options)


def pids(cluster) -> list[int]:
    return [nanny.pid for nanny in cluster.workers.values()]


@needs_dask
@pytest.mark.nightly
def test_labels_with_a_worker_killed_on_the_way(processes):
    """None is lost, and none is in the output twice."""
    wanted = toys.write_frames("a.xyz", 24)
    killed = threading.Thread(target=_kill_one_after, args=(processes, "evaluations", 6), daemon=True)
    killed.start()
    choice = Choice("toys:Springs", {"log": str(Path("evaluations").resolve()), "delay": 0.2})
    before = set(pids(processes))
    summary = label(StructureFiles((Path("a.xyz"),)), Path("out.xyz"), choice, crew=crew_of(processes))
    killed.join(10)
    assert set(pids(processes)) != before
    assert (summary.num_labelled, summary.failures) == (24, ())
    toys.assert_labelled("out.xyz", wanted)
    begun = Counter(int(line.split()[0]) for line in Path("evaluations").read_text().splitlines())
    assert set(begun) == set(range(24))
    assert sum(begun.values()) <= 24 + PER_THREAD + 1  # those that the killed worker had, at most
    assert sorted(os.listdir()) == ["a.xyz", "evaluations", "out.xyz"]


def _kill_one_after(cluster, log, count):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if Path(log).exists() and len(Path(log).read_text().splitlines()) >= count:
            os.kill(pids(cluster)[0], signal.SIGKILL)
            return
        time.sleep(0.02)


@needs_dask
@pytest.mark.nightly
def test_faults_take_down_a_process_and_not_a_worker(processes):
    wanted = toys.write_frames("a.xyz", 8)
    before = set(pids(processes))
    faults = {"fail": [1], "crash": [2], "nan": [3], "hang": [4]}
    choice = Choice("toys:Springs", faults)
    crew = crew_of(processes, timeout=2.0)
    summary = label(StructureFiles((Path("a.xyz"),)), Path("out.xyz"), choice, crew=crew)
    assert {failure.key[1]: failure.reason for failure in summary.failures} == {
        1: "RuntimeError: SCF not converged",
        2: "the worker died (exit status 3), 2 times",
        3: "ValueError: forces must be finite, got nan",
        4: "no result within 2 s",
    }
    toys.assert_labelled("out.xyz", [wanted[0], *wanted[5:]])
    assert set(pids(processes)) == before


@needs_dask
@pytest.mark.nightly
def test_gfn2_labels_of_a_cluster_are_those_of_this_machine(processes):
    pytest.importorskip("tblite")
    from ase.build import molecule

    frames = []
    for seed in range(6):
        frames.append(molecule("CH3OH"))
        frames[-1].rattle(0.05, seed=seed)
    ase.io.write("a.xyz", frames)
    files = StructureFiles((Path("a.xyz"),))
    label(files, Path("cluster.xyz"), Choice("gfn2-xtb"), crew=crew_of(processes))
    label(files, Path("here.xyz"), Choice("gfn2-xtb"), crew=Crew(1, None, io.StringIO()))
    for one, other in zip(ase.io.read("cluster.xyz", ":"), ase.io.read("here.xyz", ":"), strict=True):
        assert one.get_potential_energy() == other.get_potential_energy()
        np.testing.assert_array_equal(one.get_forces(), other.get_forces())
