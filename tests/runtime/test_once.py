"""Results that several threads ask for."""

import threading
import time

import pytest

from torchmdx.runtime.once import ahead, once


def test_threads_wait_for_the_one_that_computes():
    calls, found = [], []

    @once
    def square(x, *, sign=1):
        calls.append(x)
        time.sleep(0.1)
        return sign * x * x

    threads = [threading.Thread(target=lambda: found.append(square(3))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (calls, found) == ([3], [9] * 4)
    assert (square(3, sign=-1), square(2)) == (-9, 4)
    assert calls == [3, 3, 2]


def test_work_ahead_of_its_use_is_done_once_and_its_errors_are_left_to_the_user():
    calls, begun = [], threading.Event()

    @once
    def failing_first():
        calls.append(1)
        begun.set()
        time.sleep(0.1)
        if len(calls) == 1:
            raise ValueError("once")
        return 5

    ahead("test", failing_first)
    assert begun.wait(10)
    assert failing_first() == 5  # computed again, after the thread has failed
    ahead("test", failing_first)
    assert failing_first() == 5
    assert len(calls) == 2


def test_without_another_thread_the_user_computes(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    result = once(lambda: 5)
    ahead("test", result)
    assert result() == 5


def test_errors_are_not_kept():
    @once
    def refuse():
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            refuse()
