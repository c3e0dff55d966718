"""Work on a GPU that need not be the current one of its thread.

torch's own operations run where their tensors are. Triton launches on the current device of the calling thread, which
is GPU 0 unless somebody has changed it; so do CUDA graphs, and synchronisation without a device. Public entries
therefore make the device of their tensors current, for as long as they run.

A capture begins by synchronising its device, which CUDA forbids while another thread captures on it: captures, and what
else has to wait for a whole device, take turns by `capture_lock`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

from torchmdx.runtime.inference_mode import outside_inference_mode

Given = ParamSpec("Given")
Result = TypeVar("Result")
Of = TypeVar("Of", bound=type)
_CPU = torch.device("cpu")
capture_lock = threading.RLock()


def _is_current(device: torch.device) -> bool:
    """Whether nothing has to be changed for work on this device; costs a fraction of a microsecond."""
    index = device.index
    # Not torch.cuda.current_device, which looks for a fork and for CUDA's set-up once more.
    if index is None or (torch.cuda.is_initialized() and index == torch._C._cuda_getDevice()):
        return True
    return device.type != "cuda"  # last, since it makes a string, and "cpu:0" is rare


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """A GPU as the current device of this thread, and the one before afterwards; nothing to do for a CPU."""
    return nullcontext() if _is_current(device) else torch.cuda.device(device)


def runs_on(device_of: Callable[..., torch.device]) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """A function during which the device that `device_of` finds among its arguments is current."""

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


def entries(*names: str) -> Callable[[Of], Of]:
    """A class whose methods of these names run on its own device, and outside of torch.inference_mode.

    Its own device is `self.device`; in `__init__`, before there is one, that of its first argument, `potential`.
    """

    def changed(kind: Of) -> Of:
        for name in names:
            setattr(kind, name, runs_on(_own_device)(outside_inference_mode(getattr(kind, name))))
        return kind

    return changed


def _own_device(self: Any, potential: Any = None, *_: Any, **__: Any) -> torch.device:
    device: torch.device | None = getattr(self, "device", None)
    return device_of_potential(potential) if device is None else device


def device_of_potential(potential: Any = None, *_: Any, **__: Any) -> torch.device:
    """Of a function whose first argument is a potential or an ensemble; what is neither, the function refuses."""
    device: torch.device = getattr(potential, "device", _CPU)
    return device


def device_of_positions(_: Any, positions: torch.Tensor, *__: Any, **___: Any) -> torch.device:
    """Of a method whose first argument is positions."""
    return positions.device


def gpu_index(device: torch.device) -> int:
    """The number of a GPU; that of the current one for "cuda"."""
    return torch.cuda.current_device() if device.index is None else device.index
