"""The capacity of a list: the edges it needs now, plus head room; and the limits on it."""

from __future__ import annotations

import os
import resource

from torchmdx.neighbors.edges import MOST_EDGES

# The density of a liquid fluctuates by a few per cent; a small molecule can fold, hence the slots per atom.
HEAD_ROOM = 1.15
SLOTS_AN_ATOM = 4
# Kernels report this instead of a count if a cell has no volume or needs too many images.
UNCOUNTABLE = 1 << 62
# Memory per edge during a search on the CPU: 20 bytes in the list, the rest in the arrays of the search.
BYTES_AN_EDGE = 64


class CapacityError(ValueError):
    """A neighbour list that no capacity can hold; the message says how many edges it needs."""


def with_head_room(needed: int, num_atoms: int) -> int:
    """Slots for a list that needs `needed` of them now: a sixth more, in whole blocks of 128."""
    require_addressable(needed)
    wanted = int(needed * HEAD_ROOM) + SLOTS_AN_ATOM * num_atoms + 1
    return min(-(-wanted // 128) * 128, MOST_EDGES)


def require_capacity(capacity: int) -> None:
    """Raises ValueError unless the capacity is a number of slots that int32 can address."""
    if not 0 < capacity <= MOST_EDGES:
        raise ValueError(f"capacity must be from 1 to {MOST_EDGES} edges, got {capacity}")


def require_addressable(needed: int) -> None:
    """Raises CapacityError for a list that is too long for int32, or that could not be counted at all."""
    if needed >= UNCOUNTABLE:
        raise CapacityError(
            "the neighbour list can't be counted: a cell has changed too much since the search was allocated; "
            "allocate it for the new cell"
        )
    if needed > MOST_EDGES:
        raise CapacityError(
            f"the neighbour list needs {needed} edges, but at most {MOST_EDGES} can be numbered with int32: "
            "use a smaller cutoff or fewer atoms"
        )


def memory_for_edges() -> int:
    """How many edges a search on the CPU can hold in the memory of this machine, or in the limit of this process."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return (memory if limit == resource.RLIM_INFINITY else min(memory, limit)) // BYTES_AN_EDGE


def require_memory(needed: int) -> None:
    """Raises CapacityError for a list on the CPU that exceeds the memory."""
    if needed > (most := memory_for_edges()):
        raise CapacityError(
            f"the neighbour list needs about {needed} edges, but memory holds at most {most}: use a smaller cutoff or "
            "fewer atoms, or check whether the cell has collapsed"
        )
