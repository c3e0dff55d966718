"""Batches of an exploration on a cluster."""

import pickle
import re

import pytest

from tests.learning.conftest import settings
from torchmdx.datasets.labelling.workers import Outcome
from torchmdx.learning import cluster
from torchmdx.learning.exploring import explore
from torchmdx.learning.run_folder import RunFolder, StoppedBySignal
from torchmdx.learning.stages import start
from torchmdx.runtime.interrupt import Interrupts

TWO_BATCHES = {"batch_atoms": 4}


class Here:
    """Stands for a cluster: does all tasks in this process, the last one first, and stops after `most` of them.

    Attributes:
        did: Names of tasks, of all clusters.
    """

    did: list[str] = []
    most, error = 99, None

    def __init__(self, work, address, *, timeout, log, stopped, stream, purpose):
        assert (address, purpose) == ("tcp://nowhere:1", "explore")
        self.work = pickle.loads(pickle.dumps(work))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def run(self, tasks):
        do = self.work.prepare(0)
        yield None
        for task in list(reversed(list(tasks)))[: self.most]:
            self.did.append(task.name.stem)
            yield Outcome(task.name, task.payload, None if self.error else do(task.payload, lambda: None), self.error)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(cluster, "DaskWorkers", Here)
    monkeypatch.setattr(cluster, "require_dask", lambda: None)
    monkeypatch.setattr(Here, "did", [])
    return Here


def begun(folder, finished, **explore):
    """A run before its first exploration, with the potential of another run."""
    start = {"structures": finished[0].start.structures, "checkpoint": str(finished[1] / "potential.safetensors")}
    config = settings(folder, start=start | {"count": 0}, explore=TWO_BATCHES | explore)
    run = RunFolder(config, Interrupts(), lambda text: None)
    run.open()
    return run


def explored(run):
    start(run)
    result = explore(run, 1)
    return result, [path.read_bytes() for path in sorted(run.place(1, "explore").glob("batch-*.npz"))]


def test_a_cluster_finds_the_frames_that_one_process_finds(tmp_path, finished, here):
    alone, files = explored(begun(tmp_path / "alone", finished))
    shared, found = explored(begun(tmp_path / "shared", finished, dask="tcp://nowhere:1"))
    assert found == files
    assert len(files) == 2
    assert {key: alone[key] for key in alone if key != "seconds"} == {k: shared[k] for k in shared if k != "seconds"}
    assert here.did == ["batch-001", "batch-000"]


def test_complete_batches_are_kept_after_a_signal(tmp_path, finished, here, monkeypatch):
    run = begun(tmp_path, finished, dask="tcp://nowhere:1")
    monkeypatch.setattr(run, "interrupted", lambda: True)
    monkeypatch.setattr(here, "most", 1)
    with pytest.raises(StoppedBySignal):
        explored(run)
    again = begun(tmp_path, finished, dask="tcp://nowhere:1")
    explored(again)
    assert here.did == ["batch-001", "batch-000"]


def test_a_batch_that_workers_fail_is_named(tmp_path, finished, here, monkeypatch):
    monkeypatch.setattr(here, "error", "out of memory")
    said = "workers of tcp://nowhere:1 must explore batch-001, got out of memory"
    with pytest.raises(ValueError, match=re.escape(said)):
        explored(begun(tmp_path, finished, dask="tcp://nowhere:1"))


def test_workers_with_another_version_are_refused(tmp_path):
    work = cluster.ExploreWork(None, 1.0, [], b"", "cpu", "float32", "0.0")
    with pytest.raises(ValueError, match="all processes must explore with torchmdx 0.0, got a worker with"):
        work.prepare(0)
