"""CUDA streams that nobody else is handed.

torch.cuda.Stream() hands out the 32 streams of a pool in turn, so what one thread captures on such a stream, another
thread may use meanwhile without knowing; CUDA then refuses the work of both.
"""

from __future__ import annotations

import ctypes
import threading

import torch

NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the legacy default stream

# Streams of a thread live as long as the process: torch's allocator keeps memory by the stream it was used on.
_streams = threading.local()


def own_stream(device: torch.device, number: int = 0) -> torch.cuda.Stream:
    """The stream of this thread with this number on a GPU, made at the first call. Raises RuntimeError."""
    made: dict[tuple[int, int], torch.cuda.Stream] = _streams.__dict__.setdefault("made", {})
    index = torch.cuda.current_device() if device.index is None else device.index
    if (index, number) not in made:
        made[index, number] = _new_stream(torch.device("cuda", index))
    return made[index, number]


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    driver = ctypes.CDLL("libcuda.so.1")
    handle = ctypes.c_void_p()
    with torch.cuda.device(device):
        # The driver makes the stream in the context that is current, which the runtime sets at its first call.
        torch.cuda.current_stream(device).synchronize()
        status = driver.cuStreamCreate(ctypes.byref(handle), NON_BLOCKING)
    if status != 0 or handle.value is None:
        raise RuntimeError(f"a CUDA stream could not be made on {device}: cuStreamCreate returned {status}")
    return torch.cuda.ExternalStream(handle.value, device=device)
