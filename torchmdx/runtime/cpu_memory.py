"""Memory of evaluations on the CPU: how much is available, keeping freed memory; and threads that wait only briefly."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

# Iterations of the loop in which a thread waits before it sleeps, about 50 µs; the default of GNU OpenMP is 300,000.
SPINS = "1000"
# Parameters of mallopt(3), as numbered in malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
MOST_KEPT, PADDING = 2**31 - 1, 2**26
# Larger blocks are still returned to the system. Old C libraries refuse the first value.
LARGEST_KEPT = (2**30, 2**25)
# If the user sets one of these variables, nothing is changed.
CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def wait_briefly() -> None:
    """Makes waiting OpenMP threads yield their processor early; must be called before torch is loaded.

    If another program uses the same processors, each of the hundreds of parallel loops of a step can spin while it
    waits for a thread that is not running: 12 s instead of 0.2 s for 648 atoms, next to a training on two cores.
    Settings in the environment take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@functools.cache
def keep_freed_memory() -> bool:
    """Makes glibc keep up to 2 GiB of freed memory, once per process; False if it cannot, or the user set it otherwise.

    By default glibc returns large freed blocks to the system, which zeroes them page by page when they are allocated
    again. A step that needs the same blocks every time would spend a third to a half of its time on that.
    """
    if any(name in os.environ for name in CHOICES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    kept = any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST_KEPT)
    return bool(kept and mallopt(TRIM_THRESHOLD, MOST_KEPT) and mallopt(TOP_PAD, PADDING))


def available_bytes() -> int | None:
    """Memory that this process can still get, of machine and control group; None if the system does not say."""
    found = [_in_meminfo(), _in_control_group()]
    return min((value for value in found if value is not None), default=None)


def _in_meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _in_control_group(folder: Path = Path("/sys/fs/cgroup")) -> int | None:
    """What is left below the limit of the control group, as in containers."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        freeable = [
            line.split()[1]
            for line in (folder / "memory.stat").read_text().splitlines()[:50]
            if line.startswith("inactive_file ")
        ]
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used) + int(freeable[0] if freeable else 0)
