"""To how many channels and charges the GPU kernels pad a network: to powers of two."""

from __future__ import annotations

FEWEST_CHARGES = 8  # twice as many are the fewest columns of a product


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count` and at least 16, the least a block product takes."""
    return max(16, 1 << (count - 1).bit_length())


def padded_charges(count: int) -> int:
    """The smallest power of two that is at least `count` and at least FEWEST_CHARGES."""
    return max(FEWEST_CHARGES, 1 << (count - 1).bit_length())
