"""Distributed training: torch.distributed with processes launched by torch's elastic agent."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchmdx.training.config import TrainingSection

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# Limit on waiting for other processes, which may be reading or validating.
TIMEOUT = timedelta(minutes=10)
STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))


class Group:
    """The processes of a training run; by default, a single one."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank

    def sum(self, values: Tensor) -> None:
        """Sums a tensor over all processes, in place."""
        dist.all_reduce(values, op=dist.ReduceOp.SUM)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in order of rank, on every process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


def launched() -> bool:
    """Whether torchrun or `launch` has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def join(device: torch.device) -> Group:
    """Joins the process group; returns this process's rank in it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda":
        if str(device) != "cuda":
            raise ValueError(f"training.device must be cuda for processes started by torchrun, got {device}")
        if local >= torch.cuda.device_count():
            raise ValueError(f"training.devices={local + 1}, but only {torch.cuda.device_count()} GPUs are available")
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    return Group(rank, size, local)


def leave(failed: bool) -> None:
    """Leaves the process group; after a failure, without waiting for processes that may have died."""
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()


def launch(settings: TrainingSection, device: torch.device, function: Callable[..., int], *arguments: Any) -> int:
    """Runs function(*arguments) in devices x nodes processes; returns the exit status.

    Raises:
        ConnectionError: If a process or a node fails, after the other processes have been terminated.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if device.type == "cuda" and settings.devices > torch.cuda.device_count():
        raise ValueError(
            f"training.devices={settings.devices}, but only {torch.cuda.device_count()} GPUs are available"
        )
    if settings.nodes > 1 and settings.rendezvous is None:
        raise ValueError(
            "training.rendezvous must be host:port of the first node if training.nodes > 1, got null; "
            "or start the command with torchrun"
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // settings.devices)))
    launch_config = LaunchConfig(
        min_nodes=settings.nodes,
        max_nodes=settings.nodes,
        nproc_per_node=settings.devices,
        rdzv_backend="c10d",
        rdzv_endpoint=settings.rendezvous or "localhost:0",
        run_id="torchmdx",
        max_restarts=0,
        start_method="spawn",
    )
    try:
        with _quiet():
            elastic_launch(launch_config, _call)(function, *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode in STOPPED:
            return int(failure.exitcode)
        raise ConnectionError(f"worker {rank} (process {failure.pid}) {_ended(failure, settings)}") from None
    except RendezvousError as error:  # the local processes have been terminated
        raise ConnectionError(
            f"a node was lost or did not join ({_reach(settings)}): {str(error).splitlines()[0]} "
            "If training had started, its last checkpoint is intact: continue with --resume"
        ) from None
    except SignalException as signalled:  # the processes received it as well, and have saved their state
        return 128 + int(signalled.sigval)
    return 0


def _ended(failure: ProcessFailure, settings: TrainingSection) -> str:
    """How a worker ended, and what to do. A worker may report a lost node before the agents notice it."""
    message: Any = failure.message
    if isinstance(message, str):  # a traceback, whose last line is the exception
        lines = message.splitlines()[-1:]
    else:  # the text of the exception, whose first line sums it up
        lines = message.get("message", "").splitlines()[:1]
    how = lines[0] if failure.exitcode > 0 and lines else f"exit code {failure.exitcode}"
    nodes = f" (was a node lost? {_reach(settings)})" if settings.nodes > 1 else ""
    return f"failed: {how}{nodes}. The last checkpoint is intact: continue with --resume"


def _reach(settings: TrainingSection) -> str:
    """What a run on several nodes needs."""
    return f"the nodes must be able to reach {settings.rendezvous} throughout the run"


def _call(function: Callable[..., int], *arguments: Any) -> None:
    """Entry point of a process. A stopped one exits at once: the agent no longer accepts results."""
    status = function(*arguments)
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses torch's logs about failed processes, which one error message replaces."""
    loggers = [logging.getLogger(name) for name in ("torch.distributed.elastic", "torch.multiprocessing.spawn")]
    loggers += [
        logger
        for name, logger in logging.Logger.manager.loggerDict.items()
        if name.startswith("torch.distributed.elastic.") and isinstance(logger, logging.Logger)
    ]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
