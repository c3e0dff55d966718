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
