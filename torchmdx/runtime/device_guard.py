"""Decorators that make the right GPU current while a public function runs, and the lock of captures.

torch's operations run on the device of their tensors. Triton kernels, CUDA graphs and synchronisation without a device
use the current device of the calling thread, by default GPU 0. Public functions therefore make the device of their
tensors current while they run.

A capture begins by synchronising its device, which CUDA forbids while another thread captures on it. Captures, and
other code that synchronises a whole device, therefore hold `capture_lock`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

from torchmdx.runtime.isolation import in_own_thread_state, isolated

Given = ParamSpec("Given")
Result = TypeVar("Result")
Of = TypeVar("Of", bound=type)
_CPU = torch.device("cpu")
capture_lock = threading.RLock()
_prepared: set[str] = set()  # types of devices whose linear algebra is loaded


def _is_current(device: torch.device) -> bool:
    """Whether this device is already current, or is a CPU; takes a fraction of a microsecond."""
    index = device.index
    # torch.cuda.current_device would also check for a fork and for CUDA's initialisation.
    if index is None or (torch.cuda.is_initialized() and index == torch._C._cuda_getDevice()):
        return True
    return device.type != "cuda"  # last, because it creates a string, and "cpu:0" is rare


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A context in which a GPU is the current device of this thread; does nothing for a CPU."""
    return nullcontext() if _is_current(device) else torch.cuda.device(device)


def runs_on(device_of: Callable[..., torch.device]) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """A decorator: while the function runs, the device that `device_of` returns for its arguments is current."""

    def changed(function: Callable[Given, Result]) -> Callable[Given, Result]:
        @functools.wraps(function)
        def run(*args: Given.args, **options: Given.kwargs) -> Result:
            device = device_of(*args, **options)
            if _is_current(device):
                return function(*args, **options)
            with torch.cuda.device(device):
                return function(*args, **options)

        return run

    return changed


def methods_on_own_device(*names: str, exact: bool = True) -> Callable[[Of], Of]:
    """A class decorator: these methods run with the object's device current, and isolated from settings of the process.

    The device is `self.device`; in `__init__`, before that is set, the device of the first argument, `potential`.

    Args:
        exact: Products of float32 are exact; else the methods choose their precision.
    """
    apart = isolated if exact else in_own_thread_state

    def changed(kind: Of) -> Of:
        for name in names:
            setattr(kind, name, runs_on(_own_device)(apart(getattr(kind, name))))
        return kind

    return changed


def _own_device(self: Any, potential: Any = None, *_: Any, **__: Any) -> torch.device:
    device: torch.device | None = getattr(self, "device", None)
    return device_of_potential(potential) if device is None else device


def device_of_potential(potential: Any = None, *_: Any, **__: Any) -> torch.device:
    """The device for a function whose first argument is a potential or an ensemble; the CPU for anything else."""
    device: torch.device = getattr(potential, "device", _CPU)
    return device


def device_of_positions(_: Any, positions: torch.Tensor, *__: Any, **___: Any) -> torch.device:
    """The device for a method whose first argument is positions."""
    return positions.device


def prepare_linear_algebra(device: torch.device) -> None:
    """Loads torch's linear algebra for GPUs, once a process: torch fails if two threads do so at the same time."""
    if device.type != "cuda" or device.type in _prepared:
        return
    with capture_lock, on_device(device):
        if device.type not in _prepared:
            torch.linalg.inv_ex(torch.eye(3, dtype=torch.float32, device=device))
            _prepared.add(device.type)


def gpu_index(device: torch.device) -> int:
    """The index of a GPU; for "cuda", that of the current one."""
    return torch.cuda.current_device() if device.index is None else device.index
