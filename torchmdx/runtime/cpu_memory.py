"""What evaluations on the CPU ask of the C libraries: memory for the next one, threads that wait briefly."""

from __future__ import annotations

import ctypes
import functools
import os

# Turns of a loop, some 50 µs, that a thread waits before it sleeps; GNU's OpenMP has 300,000.
SPINS = "1000"
# Parameters of mallopt(3), by their numbers in malloc.h.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
MOST_KEPT, PADDING = 2**31 - 1, 2**26
# Larger blocks still come from the system and go back to it. Old C libraries refuse the first.
LARGEST_KEPT = (2**30, 2**25)
# Who sets one of these has chosen, and is left alone.
CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")


def wait_briefly() -> None:
    """Lets threads that wait for others give the processor up soon; to be called before torch is loaded.

    Beside another program with threads on the same processors, each of the hundreds of parallel loops of a step can
    wait, at full load, for a thread that does not get to run: 12 s instead of 0.2 for 648 atoms, beside a training on
    two. What the environment says stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@functools.cache
def keep_freed_memory() -> bool:
    """Asks the C library, once a process, to keep freed memory up to 2 GiB; False where it cannot or must not.

    glibc gives large blocks back to the system when they are freed, and the system hands them out again page by page,
    zeroed. Steps that need the same blocks every time spent a third to a half of their time on that.
    """
    if any(name in os.environ for name in CHOICES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    kept = any(mallopt(MMAP_THRESHOLD, size) for size in LARGEST_KEPT)
    return bool(kept and mallopt(TRIM_THRESHOLD, MOST_KEPT) and mallopt(TOP_PAD, PADDING))
