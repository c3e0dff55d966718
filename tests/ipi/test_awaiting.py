"""Incomplete batches of i-PI's ffdirect, with a driver that counts what it is asked."""

import threading

import numpy as np
import pytest

from torchmdx.ipi.awaiting import launch_when_awaited

forcefields = pytest.importorskip("ipi.engine.forcefields")
Atoms = pytest.importorskip("ipi.engine.atoms").Atoms
Cell = pytest.importorskip("ipi.engine.cell").Cell
Dummy_driver = pytest.importorskip("ipi.pes.dummy").Dummy_driver


class Counting(Dummy_driver):
    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.asked: list[int] = []

    def compute(self, cell, pos):
        self.asked.append(len(pos))
        return [(float(place[0, 0]), place, np.zeros((3, 3)), "") for place in pos]


@pytest.fixture
def forcefield(monkeypatch):
    monkeypatch.setattr(forcefields.FFDirect, "start", forcefields.FFDirect.start)
    monkeypatch.setattr(forcefields, "load_pes", lambda pes, path: Counting)
    launch_when_awaited(Counting)
    launch_when_awaited(Counting)  # once is enough
    found = forcefields.FFDirect(pes="custom", pes_path="x.py", batch_size=4)
    monkeypatch.setattr(forcefields.softexit, "register_function", lambda *a, **k: None)
    found.start()
    return found


def requests(forcefield, count: int) -> list:
    found = []
    for k in range(count):
        atoms = Atoms(2)
        atoms.q[:] = k
        found.append(forcefield.queue(atoms, Cell(np.eye(3))))
    return found


def test_waiting_launches_what_is_left(forcefield):
    found = requests(forcefield, 6)
    assert forcefield.driver.asked == [4]
    assert [request["status"] for request in found] == ["Done"] * 4 + ["Running"] * 2
    assert found[4]._event_done.wait(timeout=0.01)
    assert forcefield.driver.asked == [4, 2]
    assert [request["result"][0] for request in found] == [0, 1, 2, 3, 4, 5]
    assert found[5]._event_done.wait(timeout=0.01)
    assert forcefield.driver.asked == [4, 2]


def test_several_threads_launch_it_once(forcefield):
    found = requests(forcefield, 3)
    threads = [threading.Thread(target=request._event_done.wait, args=(1.0,)) for request in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert forcefield.driver.asked == [3]


def test_other_drivers_are_left_alone(forcefield, monkeypatch):
    monkeypatch.setattr(forcefields, "load_pes", lambda pes, path: Dummy_driver)
    other = forcefields.FFDirect(pes="custom", pes_path="x.py", batch_size=4)
    other.start()
    (request,) = requests(other, 1)
    assert type(request._event_done) is threading.Event
    assert not request._event_done.wait(timeout=0.01)
