"""Compiles the Triton kernels of an evaluation in parallel.

Triton compiles each kernel at its first launch, one after the other. Here the first launch of a kernel that is not
compiled yet stops the evaluation. The evaluation is then recorded into a CUDA graph that is discarded, so that nothing
runs, and the missing kernels found on the way are compiled in parallel by threads. Then the evaluation starts again. If
no kernel is missing, the evaluation simply runs.

The missing kernels are found by a hook that Triton calls before it compiles. The hook is active only in the thread that
runs an evaluation of this package, and only for kernels of this package; launches of other threads and libraries are
not affected. A kernel that Triton cannot describe, or cannot compile from its description, is compiled at its launch.
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
    """Whether one of a kernel's constants is a string such as "bf16", which `preload` would mistake for a dtype."""
    from triton.language import dtype

    return any(isinstance(value, str) and dtype.is_dtype(value) for value in constants.values())


def _make(kernel: Any, specialization: str) -> Any:
    """The compiled kernel, or None. The C module of its launcher is then in Triton's cache on disk.

    Errors are not raised here: the launch compiles the kernel, or raises the error.
    """
    from triton.runtime.driver import driver

    try:
        compiled = kernel.preload(specialization)
        if compiled is not None:
            driver.active.launcher_cls(compiled.src, compiled.metadata)
    except Exception as error:
        log.debug("%s will be compiled at its launch: %s: %s", kernel, type(error).__name__, error)
        return None
    return compiled


def _load(compiled: Any) -> None:
    """Loads a kernel and its launcher, which happens when `run` is first accessed. Errors are left to its launch."""
    try:
        _ = compiled.run
    except Exception as error:
        log.debug("%s will be loaded at its launch: %s: %s", compiled, type(error).__name__, error)


def _hash_in_order(function: Any) -> None:
    """Computes Triton's hash of a function, which names its file on disk, after those of the functions that it calls.

    Up to Triton 3.7, a hash contains the constants that a called function reads from its module only if the hash of
    that function is known already. Threads that compute hashes at the same time would find other files, or none, at
    each start of a program.
    """
    from triton.runtime.jit import JITFunction

    if not isinstance(function, JITFunction) or function.hash is not None:
        return
    names, known = function.fn.__code__.co_names, function.fn.__globals__
    called = [known.get(name) for name in names]
    for module in [each for each in called if inspect.ismodule(each)]:
        called += [getattr(module, name, None) for name in names]
    for each in called:
        if each is not function:
            _hash_in_order(each)
    _ = function.cache_key


class _MissingKernels:
    """Kernels to compile, by Triton's description, each once."""

    def __init__(self) -> None:
        self.kernels: dict[tuple[str, str], tuple[Any, str]] = {}

    def note(self, *, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's hook before it compiles. Returns True: Triton then neither compiles nor launches the kernel."""
        if not _mistaken(compile["constants"]):
            self.kernels[f"{fn.module}.{fn.name}", key] = fn.jit_function, compile["specialization_data"]
        return True

    def stop(self, *, compile: dict[str, Any], **given: Any) -> bool:
        """As `note`, and ends the evaluation; False for a kernel that only its launch can compile."""
        if _mistaken(compile["constants"]):
            _hash_in_order(given["fn"].jit_function)
            return False
        self.note(compile=compile, **given)
        raise _Missing

    def compile(self, device: torch.device) -> None:
        """Compiles all kernels, in as many threads as there are cores, then loads them one after the other.

        Launchers are C modules of one name. Up to Triton 3.6, while one thread loads a launcher, another thread that
        loads a second one can replace the first one's function, and its kernel is launched with arguments of the wrong
        number and types. So launchers are loaded for use where no thread of this module loads any.
        """
        for kernel, _ in self.kernels.values():
            _hash_in_order(kernel)
        workers = min(len(self.kernels), len(os.sched_getaffinity(0)))
        with _compiling:
            with ThreadPoolExecutor(workers, initializer=lambda: torch.cuda.set_device(device)) as pool:
                waiting = [pool.submit(_make, kernel, data) for kernel, data in self.kernels.values()]
                compiled = [done.result() for done in waiting]
            for kernel in compiled:
                if kernel is not None:
                    _load(kernel)


class _ActiveHook(NamedTuple):
    """hook: called for a missing kernel. unknown: the answer for a kernel that Triton cannot describe."""

    hook: Callable[..., bool]
    unknown: bool


class _ThreadState(threading.local):
    """The hook of the evaluation that this thread runs; None in other threads."""

    active: _ActiveHook | None = None


_thread = _ThreadState()
_lock = threading.Lock()
_compiling = threading.Lock()  # held while kernels are compiled and loaded
_running = 0  # evaluations in all threads that need Triton's JITFunction patched
_original: Callable[..., Any] | None = None  # JITFunction._call_hook before the first patch


@runs_on(lambda _, device: device)
def run_compiled(work: Callable[[], object], device: torch.device) -> None:
    """Runs `work`, possibly several times, after compiling its missing kernels in parallel.

    Args:
        work: Launches kernels on the current stream, the same ones at every call, and can be captured.
    """
    if device.type != "cuda" or not _triton_is_supported():
        work()
        return
    compiled: set[tuple[str, str]] = set()
    while True:
        missing = _MissingKernels()
        try:
            with _hooked(_ActiveHook(missing.stop, unknown=False)):
                work()
        except _Missing:
            pass
        else:
            return
        if missing.kernels.keys() <= compiled:  # Triton does not find what was compiled: run without this module
            work()
            return
        start = time.perf_counter()
        with _hooked(_ActiveHook(missing.note, unknown=True)), _discarded_recording(device):
            work()
        missing.compile(device)
        compiled |= missing.kernels.keys()
        log.info("%d kernels compiled in %.1f s", len(missing.kernels), time.perf_counter() - start)


@functools.cache
def _triton_is_supported() -> bool:
    """Whether Triton is installed and has the internal interface that this module uses (that of 3.4 to 3.7)."""
    if importlib.util.find_spec("triton") is None:
        return False
    from triton.runtime.jit import JITFunction

    call_hook = getattr(JITFunction, "_call_hook", None)
    known = call_hook is not None and list(inspect.signature(call_hook).parameters)[1:2] == ["hook"]
    if not known or not hasattr(JITFunction, "preload"):
        log.debug("kernels are compiled one after the other: this version of Triton is not supported")
        return False
    return True


@contextlib.contextmanager
def _hooked(active: _ActiveHook) -> Iterator[None]:
    """A context in which the hook is called for missing kernels of this package that this thread launches."""
    before = _thread.active
    _patch_triton(+1)
    try:
        _thread.active = active
        yield
    finally:
        _thread.active = before
        _patch_triton(-1)


def _patch_triton(count: int) -> None:
    """Patches JITFunction for the first evaluation that needs it, and restores it after the last."""
    global _running, _original
    from triton.runtime.jit import JITFunction

    with _lock:
        before, _running = _running, _running + count
        if before == 0:
            _original = JITFunction._call_hook
            JITFunction._call_hook = _call_hook
        elif _running == 0 and JITFunction._call_hook is _call_hook:  # else another library has patched it
            JITFunction._call_hook = _original


def _call_hook(self: Any, hook: Any, *given: Any, **named: Any) -> Any:
    """Replaces JITFunction._call_hook, which describes a kernel to `hook` unless that is None."""
    original, active = _original, _thread.active
    assert original is not None
    if active is not None and self.fn.__module__.startswith("torchmdx."):
        try:
            answer = original(self, active.hook, *given, **named)
        except _Missing:
            raise
        except Exception as error:  # constants that cannot be serialised, or an unsupported version
            log.debug("%s will be compiled at its launch: %s: %s", self, type(error).__name__, error)
            answer = active.unknown
        if answer:
            return answer
    return original(self, hook, *given, **named)


@contextlib.contextmanager
def _discarded_recording(device: torch.device) -> Iterator[None]:
    """Records launches into a graph that is discarded. Work that cannot be recorded ends the block without an error."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    stream = own_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with capture_lock, warnings.catch_warnings(), torch.cuda.stream(stream):
        warnings.filterwarnings("ignore", message=".*CUDA Graph is empty.*")
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            yield
        except RuntimeError as error:
            # For example, an engine reads the device at its first run: the next attempt finds its other kernels.
            log.debug("the search for missing kernels ended at: %s", error)
        finally:
            with contextlib.suppress(RuntimeError):  # an error has already ended the recording
                graph.capture_end()
    graph.reset()
    torch.cuda.current_stream(device).wait_stream(stream)
