"""How long pools of steps keep them: by the memory that they take on a GPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Protocol, TypeVar

import torch

from torchmdx.step.captured_step import CapturedStep

# The part of a GPU's memory that the steps of a pool may take together.
MEMORY_SHARE = 0.25


class Kept(Protocol):
    """What a pool keeps for a size: a step, and its bytes when they were last counted."""

    step: CapturedStep
    num_bytes: int


Key = TypeVar("Key", bound=Hashable)
Slot = TypeVar("Slot", bound=Kept)


def require_limits(most_steps: int | None, most_memory: int | None) -> None:
    """Raises ValueError for a limit below 1."""
    for name, most in (("most_steps", most_steps), ("most_memory", most_memory)):
        if most is not None and most < 1:
            raise ValueError(f"{name} must be >= 1, got {most}")


def chosen_limits(
    device: torch.device, most_steps: int | None, most_memory: int | None, most_cpu_steps: int
) -> tuple[int | None, int | None]:
    """(steps, bytes) that a pool keeps at most. On a GPU None means any number of steps, and MEMORY_SHARE of it."""
    if device.type != "cuda":
        return most_steps or most_cpu_steps, most_memory
    if most_memory is None:
        most_memory = int(MEMORY_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return most_steps, most_memory


def drop_for_one_more(slots: OrderedDict[Key, Slot], most_steps: int | None) -> None:
    """Drops the least recently used steps until another one may be made."""
    while most_steps is not None and len(slots) >= most_steps:
        slots.popitem(last=False)


def drop_until_they_fit(slots: OrderedDict[Key, Slot], used: Slot, most_memory: int | None) -> None:
    """Drops the least recently used steps, after an evaluation with `used`, until the others take `most_memory`."""
    num_bytes = used.step.memory_bytes()
    if num_bytes == used.num_bytes or most_memory is None:
        return
    used.num_bytes = num_bytes
    while len(slots) > 1 and sum(slot.num_bytes for slot in slots.values()) > most_memory:
        slots.popitem(last=False)
