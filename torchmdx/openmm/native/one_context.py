"""One CUDA context for OpenMM and torch: switching between two would take the GPU about 0.3 ms at each step."""

from __future__ import annotations

import ctypes
import logging
import os

from torchmdx.openmm.native.build import BuildError, context_library

log = logging.getLogger(__name__)

OFF = "TORCHMDX_OWN_CONTEXT"
LIBRARY, DRIVER = "libOpenMMCUDA.so", "libcuda.so.1"
_told: set[str] = set()


def share_context(library: str = LIBRARY, driver: str = DRIVER) -> str | None:
    """Makes new CUDA Contexts of OpenMM use the device's primary context. Returns None, or why that failed.

    Existing Contexts are not affected. $TORCHMDX_OWN_CONTEXT=1 turns it off.
    """
    if os.environ.get(OFF, "0") not in ("", "0"):
        return f"${OFF} is set"
    try:
        functions = context_library()
    except BuildError as error:
        return str(error)
    message = ctypes.create_string_buffer(1024)
    done = functions.share_context(library.encode(), driver.encode(), message, len(message))
    return None if done else message.value.decode()


def share_or_warn() -> str | None:
    """As `share_context`; a failure is logged once, with its effect."""
    reason = share_context()
    if reason is not None and reason not in _told:
        _told.add(reason)
        log.warning("OpenMM keeps a CUDA context of its own, which costs about 0.3 ms per step: %s", reason)
    return reason


def unshare_context() -> None:
    """Undoes `share_context`. No CUDA Context of OpenMM may exist."""
    context_library().unshare_context()


def contexts_handed_out() -> tuple[int, int]:
    """How many contexts OpenMM has received, and how many of them it has destroyed."""
    created, destroyed = ctypes.c_int(), ctypes.c_int()
    context_library().context_counts(ctypes.byref(created), ctypes.byref(destroyed))
    return created.value, destroyed.value
