"""Evaluations in a process that was forked, as Python's `multiprocessing` does on Linux up to version 3.13.

A forked process has only the thread that called fork. If its parent has evaluated before, OpenMP waits there forever
for threads that do not exist, and CUDA cannot be used. With one thread, OpenMP needs no others.
"""

from __future__ import annotations

import os
import warnings

import torch

HOW = (
    "Start worker processes with multiprocessing.get_context('spawn'), or fork before the first evaluation; see "
    "'Parallel runs' in the documentation"
)


class _ForkedProcess:
    """What this process has used, and what its parent had used when it was forked."""

    evaluates = False
    forked = False
    gpu_is_lost = False
    warned = False


def check_fork(device: torch.device) -> None:
    """Called before an evaluation on a device. Does nothing unless this process was forked after an evaluation.

    There it warns once that one thread is used.

    Raises:
        RuntimeError: If torch was set to more threads, which would hang, or if the parent used the GPU.
    """
    _ForkedProcess.evaluates = True
    if not _ForkedProcess.forked:
        return
    if device.type == "cuda":
        if _ForkedProcess.gpu_is_lost:
            raise RuntimeError(f"a forked process can't use {device}, which its parent has used. {HOW}.")
        return
    if (count := torch.get_num_threads()) > 1:
        raise RuntimeError(
            f"this process was forked after an evaluation and can use only one thread, got {count} from "
            f"torch.set_num_threads. {HOW}."
        )
    if not _ForkedProcess.warned:
        _ForkedProcess.warned = True
        text = "this process was forked after an evaluation, so it evaluates with one thread"
        warnings.warn(f"{text}. {HOW}.", RuntimeWarning, stacklevel=2)


def _before_fork() -> None:
    _ForkedProcess.gpu_is_lost = _ForkedProcess.gpu_is_lost or torch.cuda.is_initialized()


def _after_fork_in_child() -> None:
    if _ForkedProcess.evaluates:
        _ForkedProcess.forked, _ForkedProcess.warned = True, False
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
