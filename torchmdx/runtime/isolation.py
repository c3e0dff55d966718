"""Work whose numbers do not depend on settings that the rest of the process has made for itself.

Inference mode, autocast and the default device belong to a thread: the work leaves them. The precision of float32
products (TF32 on a GPU, bfloat16 on some CPUs) belongs to the process: while work of any thread needs exact products,
they are exact, and the last one restores what was set. The default dtype also belongs to the process, and must not be
changed for other threads: allocations name their dtype instead.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar, cast

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")
EXACT, TF32 = "highest", "high"  # the names of torch.set_float32_matmul_precision


def isolated(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator: the function runs in its own thread state, and its products of float32 are exact."""

    @functools.wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        if _thread_is_plain():
            if _products_stay_exact():  # the usual case, kept fast for steps of 100 µs
                return function(*args, **options)
            with float32_products(EXACT):
                return function(*args, **options)
        with ExitStack() as stack:
            _leave_thread_state(stack)
            stack.enter_context(float32_products(EXACT))
            return function(*args, **options)

    return run


def in_own_thread_state(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """A decorator as `isolated`, for a function that chooses the precision of its products itself."""

    @functools.wraps(function)
    def run(*args: Given.args, **options: Given.kwargs) -> Result:
        if _thread_is_plain():
            return function(*args, **options)
        with ExitStack() as stack:
            _leave_thread_state(stack)
            return function(*args, **options)

    return run


class float32_products:
    """A context with products of float32 in this precision, EXACT or TF32.

    EXACT prevails where threads disagree. It is kept by CUDA graphs that are captured in it.
    """

    def __init__(self, precision: str) -> None:
        self.precision = precision
        # Also released if it is forgotten: an interrupt may raise on entering __exit__.
        self._key = weakref.ref(self, _release)

    def __enter__(self) -> None:
        _hold(self._key, self.precision)

    def __exit__(self, *_: object) -> None:
        _release(self._key)


def products_are_exact() -> bool:
    """Whether torch computes products of float32 in float32."""
    try:
        return torch.get_float32_matmul_precision() == EXACT
    except RuntimeError:  # coarser precisions are set by `fp32_precision`, which this function of torch refuses to name
        return False


# Products on GPUs and on CPUs, by the newer settings.
_KINDS: tuple[Any, Any] = (torch.backends.cuda.matmul, cast(Any, torch.backends.mkldnn).matmul)
_lock = threading.RLock()
_holders: dict[weakref.ref[float32_products], tuple[int, str]] = {}  # with thread and precision
_before: tuple[str, str, str] | None = None  # the settings of the process while there are holders


def _products_stay_exact() -> bool:
    """Whether nobody will restore a coarser precision before this thread has finished."""
    if not _holders:
        return products_are_exact()
    with _lock:
        return (threading.get_ident(), EXACT) in _holders.values()


def _hold(key: weakref.ref[float32_products], precision: str) -> None:
    global _before
    with _lock:
        if not _holders:
            _before = _settings()
        _holders[key] = threading.get_ident(), precision
        _apply()


def _release(key: weakref.ref[float32_products]) -> None:
    global _before
    with _lock:
        _holders.pop(key, None)
        if _holders:
            _apply()
        elif _before is not None:
            _restore(*_before)
            _before = None


def _apply() -> None:
    precision = EXACT if any(precision == EXACT for _, precision in _holders.values()) else TF32
    if precision != EXACT or not products_are_exact():
        torch.set_float32_matmul_precision(precision)


def _settings() -> tuple[str, str, str]:
    """Precisions by the names of `fp32_precision`, for CUDA and for oneDNN, and by the older name; makes them exact."""
    of_cuda, of_cpu = (kind.fp32_precision for kind in _KINDS)
    return of_cuda, of_cpu, _exact_but_older_name()


def _exact_but_older_name() -> str:
    """torch refuses to tell the older name where the others contradict it: these become exact first."""
    for kind in _KINDS:
        kind.fp32_precision = "ieee"
    return torch.get_float32_matmul_precision()


def _restore(of_cuda: str, of_cpu: str, older: str) -> None:
    if _exact_but_older_name() != older:
        torch.set_float32_matmul_precision(older)
    for kind, precision in zip(_KINDS, (of_cuda, of_cpu), strict=True):
        kind.fp32_precision = "none"  # inherits `torch.backends.fp32_precision`
        if kind.fp32_precision != precision:
            kind.fp32_precision = precision


def _thread_is_plain() -> bool:
    return not (
        torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or torch.is_autocast_enabled("cuda")
        or torch._C._len_torch_function_stack()  # a default device is one; torch.get_default_device takes 2 µs
    )


def _leave_thread_state(stack: ExitStack) -> None:
    """In inference mode nothing is recorded for gradients, and tensors made there can never be differentiated."""
    if torch.is_inference_mode_enabled():
        stack.enter_context(torch.inference_mode(False))
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))
