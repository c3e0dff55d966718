"""Compiles the Triton kernels of an evaluation side by side, where each would else wait for the one before it.

A kernel is compiled when it is first launched, so a first evaluation takes the sum of all. Here the first launch of a
kernel that is not there yet stops the evaluation; its launches are gone through once more, recorded into a CUDA graph
that is thrown away, so that nothing runs; the kernels met there are compiled by a thread each; and the evaluation is
begun again. Where nothing is missing, it is only run.

Triton describes a kernel to whoever asks before it compiles. It is asked while an evaluation of this package runs, in
the thread that runs it and about the kernels of this package: launches of other threads and of other libraries are as
if this module were not there. A kernel that Triton can't describe, or can't compile from its description, is compiled
where it is launched.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch

from torchmdx.runtime.device_guard import capture_lock, runs_on
from torchmdx.runtime.own_streams import own_stream

log = logging.getLogger(__name__)


class _Missing(Exception):
    """A kernel must be compiled first."""


def _mistaken(constants: dict[Any, Any]) -> bool:
    """Whether one of a kernel's constants is a string, as "bf16", that `preload` would take for the type."""
    from triton.language import dtype

    return any(isinstance(value, str) and dtype.is_dtype(value) for value in constants.values())


def _make(kernel: Any, specialization: str) -> None:
    """A kernel and what launches it, a module in C that the first look at `run` compiles.

    An error is not raised: the launch compiles the kernel then, or raises the error.
    """
    try:
        compiled = kernel.preload(specialization)
        if compiled is not None:
            _ = compiled.run
    except Exception as error:
        log.debug("%s is left to its launch: %s: %s", kernel, type(error).__name__, error)


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


class _Asked(NamedTuple):
    """What answers for a kernel that is missing, and the answer for one that Triton can't describe."""

    hook: Callable[..., bool]
    unknown: bool


class _Here(threading.local):
    """Of the evaluation that this thread runs; other threads see None."""

    asked: _Asked | None = None


_here = _Here()
_lock = threading.Lock()
_running = 0  # evaluations, in all threads, for which Triton's JITFunction is changed
_original: Callable[..., Any] | None = None  # its own _call_hook, from the first change on


@runs_on(lambda _, device: device)
def run_compiled(work: Callable[[], object], device: torch.device) -> None:
    """Runs `work`, which may be begun more than once; its kernels are compiled together beforehand.

    work: launches on the current stream, the same at every call, that may also be recorded.
    """
    if device.type != "cuda" or not _describes():
        work()
        return
    compiled: set[tuple[str, str]] = set()
    while True:
        wanted = _Wanted()
        try:
            with _before_compiling(_Asked(wanted.stop, unknown=False)):
                work()
        except _Missing:
            pass
        else:
            return
        if wanted.kernels.keys() <= compiled:  # Triton does not know it again: then as if this module were not there
            work()
            return
        start = time.perf_counter()
        with _before_compiling(_Asked(wanted.note, unknown=True)), _nothing_running(device):
            work()
        wanted.compile(device)
        compiled |= wanted.kernels.keys()
        log.info("%d kernels compiled in %.1f s", len(wanted.kernels), time.perf_counter() - start)


@functools.cache
def _describes() -> bool:
    """Whether there is a Triton whose parts that are used here have the form they are known in (3.4 to 3.7)."""
    if importlib.util.find_spec("triton") is None:
        return False
    from triton.runtime.jit import JITFunction

    call_hook = getattr(JITFunction, "_call_hook", None)
    known = call_hook is not None and list(inspect.signature(call_hook).parameters)[1:2] == ["hook"]
    if not known or not hasattr(JITFunction, "preload"):
        log.debug("kernels are compiled one after the other: this version of Triton is not known")
        return False
    return True


@contextlib.contextmanager
def _before_compiling(asked: _Asked) -> Iterator[None]:
    """Triton asks about the kernels of this package that this thread launches and that are not compiled yet."""
    before, _here.asked = _here.asked, asked
    _change_triton(+1)
    try:
        yield
    finally:
        _here.asked = before
        _change_triton(-1)


def _change_triton(count: int) -> None:
    """Puts `_call_hook` into JITFunction with the first evaluation that needs it, and takes it out after the last."""
    global _running, _original
    from triton.runtime.jit import JITFunction

    with _lock:
        before, _running = _running, _running + count
        if before == 0:
            _original = JITFunction._call_hook
            JITFunction._call_hook = _call_hook
        elif _running == 0 and JITFunction._call_hook is _call_hook:  # else changed by somebody else meanwhile
            JITFunction._call_hook = _original


def _call_hook(self: Any, hook: Any, *given: Any, **named: Any) -> Any:
    """In place of JITFunction._call_hook, which describes a kernel, at some expense, to `hook` if there is one."""
    original, asked = _original, _here.asked
    assert original is not None
    if asked is not None and self.fn.__module__.startswith("torchmdx."):
        try:
            answer = original(self, asked.hook, *given, **named)
        except _Missing:
            raise
        except Exception as error:  # constants that have no form as text, or a version that is not known
            log.debug("%s is left to its launch: %s: %s", self, type(error).__name__, error)
            answer = asked.unknown
        if answer:
            return answer
    return original(self, hook, *given, **named)


@contextlib.contextmanager
def _nothing_running(device: torch.device) -> Iterator[None]:
    """Launches are recorded and forgotten. What can't be recorded ends the block early, without an error."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = own_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with capture_lock, warnings.catch_warnings(), torch.cuda.stream(stream):
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
