"""CUDA streams that belong to one thread.

torch.cuda.Stream() returns the 32 streams of a pool in turn. While one thread captures on such a stream, another thread
may use the same stream unknowingly, and CUDA then refuses the work of both.
"""

from __future__ import annotations

import ctypes
import threading

import torch

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream

# Streams live as long as the process, because torch's allocator caches memory per stream.
_streams = threading.local()


def own_stream(device: torch.device, number: int | tuple[int, int] = 0) -> torch.cuda.Stream:
    """This thread's stream with this number, or these, on a GPU, created at the first call. Raises RuntimeError."""
    made: dict[tuple[int, int | tuple[int, int]], torch.cuda.Stream] = _streams.__dict__.setdefault("made", {})
    index = torch.cuda.current_device() if device.index is None else device.index
    if (index, number) not in made:
        made[index, number] = _new_stream(torch.device("cuda", index))
    return made[index, number]


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        # The driver creates the stream in the current context, which the runtime sets at its first call. A capture has
        # made such a call, and must not wait.
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream(device).synchronize()
        status = driver.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
    if status != 0 or handle.value is None:
        raise RuntimeError(f"a CUDA stream could not be created on {device}: cuStreamCreate returned {status}")
    return torch.cuda.ExternalStream(handle.value, device=device)
