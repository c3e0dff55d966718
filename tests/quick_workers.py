"""Worker processes of the package as forks of one process that has imported torch: two seconds less for each.

The package spawns its workers. A fixture of conftest.py, `quick_workers`, puts `FORKS` in place of the module
multiprocessing where it does; tests of how a process starts go without it. Each worker gets the environment, the
signals that are blocked, and the number of threads that one that is spawned has.
"""

import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import SimpleNamespace

PRELOADED = [
    "torchmdx.datasets.labelling.workers",
    "torchmdx.datasets.parallel_xyz",
    "torchmdx.dynamics.dynamics",
    "torchmdx.dynamics.process_loop",
    "torchmdx.step.captured_step",
]


class Forked(ForkServerProcess):
    """Started as spawned processes are."""

    def run(self) -> None:
        environment, blocked = self.given
        os.environ.clear()
        os.environ.update(environment)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        import torch

        torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        super().run()

    def start(self) -> None:
        self.given = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, ())
        super().start()


class Forks(ForkServerContext):
    """A context that preloads what workers import."""

    Process = Forked


def forks_of(method: str) -> Forks:
    """In place of `multiprocessing.get_context`."""
    assert method == "spawn", method
    context = Forks()
    context.set_forkserver_preload(PRELOADED)
    return context


FORKS = SimpleNamespace(**{**vars(multiprocessing), "get_context": forks_of})
