"""Blocks that are joined before they are checked."""

import numpy as np
import wrong_labels

from torchmdx.datasets.blocks import FrameBlock, Remark, Unreadable
from torchmdx.datasets.units import Units
from torchmdx.datasets.usable import TOGETHER, joined, usable

LABELS = frozenset(("energy", "forces"))


def blocks(count):
    return [FrameBlock(k, frame, LABELS) for k, frame in enumerate(wrong_labels.frames(count))]


def test_consecutive_blocks_are_joined_in_order():
    some = blocks(6)
    found = list(joined(iter([*some[:3], Unreadable(3, 1, "x"), *some[4:], Remark("y")])))
    assert [type(one).__name__ for one in found] == ["FrameBlock", "Unreadable", "FrameBlock", "Remark"]
    assert [(one.first, len(one.frames)) for one in found if isinstance(one, FrameBlock)] == [(0, 3), (4, 2)]
    other = FrameBlock(6, some[5].frames, frozenset(("energy",)))
    assert [len(one.frames) for one in joined(iter([*some, other]))] == [6, 1]
    assert max(len(one.frames) for one in joined(iter(blocks(TOGETHER + 3)))) == TOGETHER


def test_broken_and_missing_frames_are_told_with_their_numbers():
    some = blocks(5)
    some[1].frames.positions[0] = np.nan
    some[2].frames.positions[1] = some[2].frames.positions[0] + 0.01
    some[3].frames.energy[:] = np.nan
    (whole,) = joined(iter(FrameBlock(k + 7, one.frames, LABELS) for k, one in enumerate(some)))
    found = usable(whole, Units(), False)
    assert found.numbers.tolist() == [7, 10, 11]
    assert sorted(found.broken) == [8, 9]
    assert "positions must be finite" in found.broken[8]
    assert "at least 0.1 Å apart" in found.broken[9]
    assert (found.count, found.missing) == (5, {"energy": 1, "forces": 0})
    assert len(found.distance) == len(found.pair) == len(found.whole) == 4
