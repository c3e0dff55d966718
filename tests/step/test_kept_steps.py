"""Limits of pools: what is refused, what is chosen on a CPU, and which steps are dropped."""

from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
import torch

from torchmdx.step.kept_steps import chosen_limits, drop_for_one_more, drop_until_they_fit, require_limits


@dataclass
class FakeStep:
    size: int

    def memory_bytes(self) -> int:
        return self.size


@dataclass
class FakeSlot:
    step: FakeStep
    num_bytes: int = field(default=0)


def slots(*sizes: int) -> OrderedDict[int, FakeSlot]:
    """Slots whose memory has been counted, the least recently used first."""
    return OrderedDict((size, FakeSlot(FakeStep(size), size)) for size in sizes)


def test_limits_below_one_are_refused():
    require_limits(None, None)
    require_limits(1, 1)
    with pytest.raises(ValueError, match="most_steps must be >= 1, got 0"):
        require_limits(0, None)
    with pytest.raises(ValueError, match="most_memory must be >= 1, got -5"):
        require_limits(None, -5)


def test_limits_on_a_cpu():
    cpu = torch.device("cpu")
    assert chosen_limits(cpu, None, None, 8) == (8, None)
    assert chosen_limits(cpu, 3, 1000, 8) == (3, 1000)


@pytest.mark.gpu
def test_limits_on_a_gpu():
    cuda = torch.device("cuda")
    steps, memory = chosen_limits(cuda, None, None, 8)
    assert steps is None
    assert memory == torch.cuda.get_device_properties(cuda).total_memory // 4
    assert chosen_limits(cuda, 2, 1000, 8) == (2, 1000)


def test_the_least_recently_used_makes_room_for_another():
    kept = slots(1, 2, 3)
    drop_for_one_more(kept, None)
    assert list(kept) == [1, 2, 3]
    drop_for_one_more(kept, 3)
    assert list(kept) == [2, 3]
    drop_for_one_more(kept, 1)
    assert not kept


def test_steps_are_dropped_until_the_others_fit():
    kept = slots(30, 40, 50)
    drop_until_they_fit(kept, kept[50], 100)  # its memory has not changed since it was counted
    assert list(kept) == [30, 40, 50]
    kept[50].step.size = 55
    drop_until_they_fit(kept, kept[50], None)
    assert list(kept) == [30, 40, 50]
    drop_until_they_fit(kept, kept[50], 100)
    assert list(kept) == [40, 50]
    kept[50].step.size = 500
    drop_until_they_fit(kept, kept[50], 100)  # the one in use stays, however large it is
    assert list(kept) == [50]
