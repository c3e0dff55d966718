"""GPU memory: how much is allocated, and an error that explains a shortage."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import torch

from torchmdx.step.results import OutOfDeviceMemory
from torchmdx.structures.system import Batch


def memory_allocated(device: torch.device) -> int:
    """Bytes that torch has allocated for tensors on a GPU; 0 on the CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def release_frames(error: BaseException) -> None:
    """Clears the local variables in an error's traceback, which would otherwise keep their tensors alive."""
    traceback.clear_frames(error.__traceback__)


@contextlib.contextmanager
def memory_explained(batch: Batch, device: torch.device) -> Iterator[None]:
    """Turns torch's out-of-memory error into OutOfDeviceMemory, which states the memory in use and what to change."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        release_frames(error)
        free, total = torch.cuda.mem_get_info(device)
        used = torch.cuda.memory_allocated(device)
        raise OutOfDeviceMemory(
            f"a step of {batch.num_atoms} atoms needs more memory than the GPU has: {used / 2**30:.1f} GiB were "
            f"allocated and {free / 2**30:.1f} of {total / 2**30:.1f} GiB free: {str(error).splitlines()[0]} "
            "Use float32 instead of float64, a smaller skin, fewer atoms or smaller batches, or free other tensors"
        ) from error


def checked_memory(most: int | None, device: torch.device) -> int | None:
    """The bytes that a step may take. Raises ValueError for a number that is not > 0, and without a GPU."""
    if most is None:
        return None
    if isinstance(most, bool) or not most > 0 or most != most or int(most) < 1:
        raise ValueError(f"max_memory must be >= 1 byte, got {most}")
    if device.type != "cuda":
        raise ValueError(f"max_memory needs a GPU, got a potential on the {device}")
    return int(most)


def require_memory(taken: int, most: int | None, batch: Batch) -> None:
    """Raises OutOfDeviceMemory if a step takes more bytes than it may."""
    if most is not None and taken > most:
        raise OutOfDeviceMemory(
            f"max_memory must be at least {taken / 1e9:.3g} GB for {batch.num_atoms:,} atoms in "
            f"{batch.num_systems:,} systems, got {most / 1e9:.3g} GB"
        )
