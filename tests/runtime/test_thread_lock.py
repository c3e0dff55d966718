import copy
import os
import pickle
import subprocess
import sys
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
        free = lock.acquire(blocking=False)
        os._exit(0 if free else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_while_its_thread_holds_a_lock_can_release_it():
    lock, other = ThreadLock(), ThreadLock()
    with lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock._is_owned() and not other._is_owned() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


INTERRUPTED = """
import random, signal, sys, threading
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time

@one_thread_at_a_time("work")
class Shared:
    def __init__(self):
        self.lock = ThreadLock()
    def work(self):
        with self.lock:
            return 1

random.seed(0)
signal.signal(signal.SIGALRM, signal.default_int_handler)
shared = Shared()

def answer():
    with shared.lock:
        answers.append(1)

for number in range(1, 5001):
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, 3e-5))
        while True:
            shared.work()
    except KeyboardInterrupt:
        pass
    answers = []
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    thread.join(5)
    if not answers:
        sys.exit(f"the lock is held after interrupt {number}")
"""


def test_no_interrupt_leaves_the_lock_held():
    run = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
