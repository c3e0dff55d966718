import copy
import os
import pickle
import threading

import pytest

from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time


@one_thread_at_a_time("add")
class Counter:
    def __init__(self):
        self.lock, self.inside, self.most = ThreadLock(), 0, 0

    def add(self, pause):
        self.inside += 1
        self.most = max(self.most, self.inside)
        pause.wait(0.02)
        self.inside -= 1


def test_methods_of_one_object_run_one_at_a_time():
    counter, pause = Counter(), threading.Event()
    threads = [threading.Thread(target=counter.add, args=(pause,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (counter.most, counter.inside) == (1, 0)


@pytest.mark.parametrize("way", [copy.deepcopy, lambda lock: pickle.loads(pickle.dumps(lock))])
def test_a_copy_is_a_free_lock(way):
    lock = ThreadLock()
    with lock, lock:  # reentrant
        other = way(lock)
        entered = threading.Event()

        def enter():
            with other:
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert entered.wait(5)
        thread.join()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_finds_its_locks_free():
    lock, held, done = ThreadLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        free = lock._lock.acquire(blocking=False)
        os._exit(0 if free else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
