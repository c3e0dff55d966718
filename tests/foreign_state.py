"""Settings of a process or a thread that other packages make, and that must change no result of torchmdx."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def setting(change: Callable[[object], object], value: object, back: object) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(back)


@contextmanager
def newer_precisions(precision: str) -> Iterator[None]:
    """As programs set it that are written for torch 2.9 or newer."""
    kinds = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    for kind in kinds:
        kind.fp32_precision = precision
    try:
        yield
    finally:
        for kind in kinds:
            kind.fp32_precision = "none"


STATES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "float64 by default": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
    "bfloat16 by default": lambda: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "high precision": lambda: setting(torch.set_float32_matmul_precision, "high", "highest"),
    "medium precision": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "fp32_precision": lambda: newer_precisions("tf32"),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "another device by default": lambda: setting(torch.set_default_device, "meta", None),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast of a GPU": lambda: torch.autocast("cuda", torch.float16),
}
