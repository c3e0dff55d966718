"""Processes that workers of a cluster start for their tasks."""

import threading
import time

import numpy as np
import pytest
import toys

from torchmdx.datasets.labelling import dask_post
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.dask_post import Order, close_posts, do_task
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.work import FrameToLabel, LabelWork

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("quick_workers")]


def order(tmp_path, run, **options) -> Order:
    return Order(run, LabelWork(Choice("toys:Springs", options), tmp_path / "files"), None, tmp_path / "log")


def frame(number=0) -> FrameToLabel:
    return FrameToLabel((0, number), UnlabelledStructure.from_ase(toys.frames(number + 1)[number]))


def test_a_process_serves_the_tasks_of_a_thread_until_its_run_ends(tmp_path):
    log = tmp_path / "evaluations"
    first = order(tmp_path, "first", log=str(log))
    for number in range(3):
        labels, error = do_task(first, frame(number))
        assert error is None
        np.testing.assert_allclose(labels.forces, -toys.STIFFNESS * toys.frames(3)[number].positions)
    assert len({line.split()[1] for line in log.read_text().splitlines()}) == 1
    close_posts("another")
    assert [key[0] for key in dask_post._POSTS._posts] == ["first"]
    close_posts("first")
    assert dask_post._POSTS._posts == {}


def test_a_running_task_is_cancelled_with_its_run(tmp_path):
    hanging = order(tmp_path, "hanging", hang=[0], log=str(tmp_path / "evaluations"))
    found = []
    thread = threading.Thread(target=lambda: found.append(do_task(hanging, frame())))
    thread.start()
    until = time.monotonic() + 60
    while not (tmp_path / "evaluations").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    close_posts("hanging")
    thread.join(20)
    assert found == [(None, "the run was stopped")]


def test_processes_without_tasks_end(tmp_path, monkeypatch):
    monkeypatch.setattr(dask_post, "IDLE", 0.2)
    monkeypatch.setattr(dask_post, "LOOKING", 0.1)
    posts = dask_post._Posts()
    monkeypatch.setattr(dask_post, "_POSTS", posts)
    do_task(order(tmp_path, "idle"), frame())
    until = time.monotonic() + 20
    while posts._posts:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_calculator_that_cannot_be_made_names_the_machine(tmp_path):
    wrong = Order("wrong", LabelWork(Choice("toys:not_made"), tmp_path / "files"), None, tmp_path / "log")
    with pytest.raises(ValueError, match=r"toys:not_made could not be made .* no parameters here \(on .+\)"):
        do_task(wrong, frame())
    close_posts("wrong")
