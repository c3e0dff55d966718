"""Choosing the device that a computation runs on."""

from __future__ import annotations

import re

import torch


def choose_device(device: torch.device | str | None, name: str = "device") -> torch.device:
    """The requested device; for None a GPU if available, else the CPU.

    Args:
        name: What error messages call the option.

    Raises:
        ValueError: For an unavailable device.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu(:0)?|cuda(:\d+)?", str(device)):
        raise ValueError(f"{name} must be cpu or cuda, got {str(device)!r}")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"{name} {str(device)!r} is not available: torch sees {torch.cuda.device_count()} CUDA GPUs")
    return chosen
