"""Several processes that train one potential: torch.distributed, launched by torch's own elastic agent."""

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

# How long a process waits for the others, which may be reading or validating.
PATIENCE = timedelta(minutes=10)
STOPPED = tuple(128 + number for number in (signal.SIGINT, signal.SIGTERM))


class Group:
    """The processes of a training; one alone by default."""

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank

    def sum(self, values: Tensor) -> None:
        """Adds up a tensor over all processes, in place."""
        dist.all_reduce(values, op=dist.ReduceOp.SUM)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in order, in each of them."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found


def launched() -> bool:
    """Whether torchrun, or an agent of `spread`, has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def join(device: torch.device) -> Group:
    """This process's place among those that were launched."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if device.type == "cuda":
        if str(device) != "cuda":
            raise ValueError(f"training.device must be cuda where torchrun starts processes, got {device}")
        if local >= torch.cuda.device_count():
            raise ValueError(
                f"training.devices must be at most {torch.cuda.device_count()}, the GPUs here, got {local + 1}"
            )
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    return Group(rank, size, local)


def leave(failed: bool) -> None:
    """Ends what `join` began; after a failure, without waiting for processes that may be gone."""
    if dist.is_initialized() and not failed:
        dist.destroy_process_group()


def spread(settings: TrainingSection, device: torch.device, function: Callable[..., int], *given: Any) -> int:
    """Runs function(*given) in devices x nodes processes; returns the first one's status.

    Raises ConnectionError when one of them, or a whole node, ends early: the others are ended too.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if device.type == "cuda" and settings.devices > torch.cuda.device_count():
        raise ValueError(
            f"training.devices must be at most {torch.cuda.device_count()}, the GPUs here, got {settings.devices}"
        )
    if settings.nodes > 1 and settings.rendezvous is None:
        raise ValueError(
            "training.rendezvous must be host:port of the first node where training.nodes is more than 1, got null; "
            "or start the command by torchrun"
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // settings.devices)))
    launch = LaunchConfig(
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
            elastic_launch(launch, _call)(function, *given)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode in STOPPED:
            return int(failure.exitcode)
        raise ConnectionError(f"worker {rank} (process {failure.pid}) {_ended(failure, settings)}") from None
    except RendezvousError as error:  # the processes here have been ended
        raise ConnectionError(
            f"{_reach(settings)}, but one is lost or did not come: {str(error).splitlines()[0]} "
            "If training had begun, its last checkpoint is whole: go on with --resume"
        ) from None
    except SignalException as signalled:  # which the processes got as well, and have saved their state
        return 128 + int(signalled.sigval)
    return 0


def _ended(failure: ProcessFailure, settings: TrainingSection) -> str:
    """How a worker ended, and what to do. One that lost another node may tell it before the agents notice."""
    message: Any = failure.message
    if isinstance(message, str):  # a traceback, which ends in the exception's words
        lines = message.splitlines()[-1:]
    else:  # the exception's words, their gist first
        lines = message.get("message", "").splitlines()[:1]
    how = lines[0] if failure.exitcode > 0 and lines else f"exit code {failure.exitcode}"
    nodes = f" ({_reach(settings)}: was one lost?)" if settings.nodes > 1 else ""
    return f"ended: {how}{nodes}. The last checkpoint is whole: go on with --resume"


def _reach(settings: TrainingSection) -> str:
    """What several nodes need."""
    return f"the nodes must reach each other at {settings.rendezvous} until the end"


def _call(function: Callable[..., int], *given: Any) -> None:
    """In a process of its own. One that was stopped ends at once: the agent takes no results any more."""
    status = function(*given)
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch logs of processes that end: it is said in one sentence afterwards."""
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
