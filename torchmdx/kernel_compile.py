"""Compiles the Triton kernels of an evaluation side by side, where each would else wait for the one before it.

A kernel is compiled when it is first launched, so a first evaluation takes the sum of all. Here the first launch of a
kernel that is not there yet stops the evaluation; its launches are gone through once more, recorded into a CUDA graph
that is thrown away, so that nothing runs; the kernels met there are compiled by a thread each; and the evaluation is
begun again. Where nothing is missing, it is only run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

log = logging.getLogger(__name__)


class _Missing(Exception):
    """A kernel must be compiled first."""


def _mistaken(constants: dict[Any, Any]) -> bool:
    """Whether one of a kernel's constants is a string, as "bf16", that `preload` would take for the type."""
    from triton.language import dtype

    return any(isinstance(value, str) and dtype.is_dtype(value) for value in constants.values())


def _make(kernel: Any, specialization: str) -> None:
    """A kernel and what launches it, a module in C that the first look at `run` compiles."""
    compiled = kernel.preload(specialization)
    if compiled is not None:
        _ = compiled.run


class _Wanted:
    """Kernels to compile, in Triton's own description, each once."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, str], tuple[Any, str]] = {}

    def note(self, *, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's hook before it compiles: True, so that the kernel is neither compiled nor launched."""
        if not _mistaken(compile["constants"]):
            self.kernels[f"{fn.module}.{fn.name}", key] = fn.jit_function, compile["specialization_data"]
        return True

    def stop(self, *, compile: dict[str, Any], **given: Any) -> bool:
        """The same, and ends the evaluation, but for a kernel that only its launch can compile."""
        if _mistaken(compile["constants"]):
            return False
        self.note(compile=compile, **given)
        raise _Missing

    def compile(self, device: torch.device) -> None:
        """All of them, as many at a time as there are cores."""
        workers = min(len(self.kernels), len(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(workers, initializer=lambda: torch.cuda.set_device(device)) as pool:
            for done in [pool.submit(_make, kernel, data) for kernel, data in self.kernels.values()]:
                done.result()


class _Here(threading.local):
    """What is to be done about kernels that this thread launches; kernels of other threads are none of its business."""

    hook: Callable[..., bool] | None = None


_here = _Here()


def run_compiled(work: Callable[[], object], device: torch.device) -> None:
    """Runs `work`, which may be begun more than once; its kernels are compiled together beforehand.

    work: launches on the current stream, the same at every call, that may also be recorded.
    """
    if device.type != "cuda" or not _hooked():
        work()
        return
    compiled: set[tuple[str, str]] = set()
    while True:
        wanted = _Wanted()
        try:
            with _before_compiling(wanted.stop):
                work()
        except _Missing:
            pass
        else:
            return
        if wanted.kernels.keys() <= compiled:  # Triton does not know it again: then as if this module were not there
            work()
            return
        start = time.perf_counter()
        with _before_compiling(wanted.note), _nothing_running(device):
            work()
        wanted.compile(device)
        compiled |= wanted.kernels.keys()
        log.info("%d kernels compiled in %.1f s", len(wanted.kernels), time.perf_counter() - start)


@functools.cache
def _hooked() -> bool:
    """Whether there is Triton, which then asks this module, once and for all, before it compiles."""
    if importlib.util.find_spec("triton") is None:
        return False
    from triton import knobs

    before = knobs.runtime.jit_cache_hook

    def ask(**given: Any) -> bool | None:
        hook = _here.hook or before
        return None if hook is None else hook(**given)

    knobs.runtime.jit_cache_hook = ask
    return True


@contextlib.contextmanager
def _before_compiling(hook: Callable[..., bool]) -> Iterator[None]:
    _here.hook = hook
    try:
        yield
    finally:
        _here.hook = None


@contextlib.contextmanager
def _nothing_running(device: torch.device) -> Iterator[None]:
    """Launches are recorded and forgotten. What can't be recorded ends the block early, without an error."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with warnings.catch_warnings(), torch.cuda.stream(stream):
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty.*")
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            yield
        except RuntimeError as error:
            # As when an engine reads the device at its first run: it comes to the rest of its kernels later.
            log.debug("kernels were looked for until %s", error)
        finally:
            with contextlib.suppress(RuntimeError):  # a recording that an error has ended
                graph.capture_end()
    graph.reset()
    torch.cuda.current_stream(device).wait_stream(stream)
