"""How many slots a list gets: what it needs now, and room to move."""

from __future__ import annotations

from torchmdx.neighbors.edges import MOST_EDGES

# Density fluctuates by a few per cent in a liquid; a molecule of some atoms can fold, hence the share of each atom.
HEAD_ROOM = 1.15
SLOTS_AN_ATOM = 4
# What kernels report instead of a count when a cell has no volume or needs absurdly many images.
UNCOUNTABLE = 1 << 62


class CapacityError(ValueError):
    """A neighbour list that no capacity can hold; says what it would need."""


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
            "the neighbour list can't be counted: a cell has no volume, is not finite, or is so small that the "
            "cutoff reaches over more than 512 of its images"
        )
    if needed > MOST_EDGES:
        raise CapacityError(
            f"the neighbour list needs {needed} edges, but at most {MOST_EDGES} can be numbered with int32: "
            "use a smaller cutoff or fewer atoms"
        )
