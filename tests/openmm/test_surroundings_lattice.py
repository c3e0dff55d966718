"""How a lattice sum is split, for which boxes that serves, and when another is chosen; the sums are in
test_surroundings.py."""

import pytest
import torch

from torchmdx import System
from torchmdx.openmm import surroundings_lattice as module
from torchmdx.openmm.surroundings_lattice import MARGIN, KeptSplit, LatticeSplit
from torchmdx.structures.system import Batch

CELL = torch.tensor([[20.0, 0, 0], [4.0, 22.0, 0], [-5.0, 6.0, 24.0]], dtype=torch.float64)


def batch(factor):
    return Batch.of(System.create([[0.0, 0, 0]], [1], factor * CELL.numpy(), True))


def test_pairs_reach_up_to_half_the_box():
    split = LatticeSplit.of(CELL)
    assert max(LatticeSplit.of(CELL, torch.float32).counts) < max(split.counts)
    assert split.range == pytest.approx(0.5 * 20 * (1 - MARGIN))
    # A wave vector k has the numbers k . a / 2π.
    assert all(count * 2 * torch.pi / length >= split.longest
               for count, length in zip(split.counts, split.lengths, strict=True))  # fmt: skip


@pytest.mark.parametrize(("factor", "fine"), [(1, True), (1 + MARGIN / 2, True), (1 - MARGIN / 2, True),
                                              (1 + 2 * MARGIN, False), (1 - 2 * MARGIN, False)])  # fmt: skip
def test_boxes_that_it_serves(factor, fine):
    assert bool(LatticeSplit.of(CELL).fits(batch(factor))) is fine


def test_another_is_chosen_when_a_launch_needs_it_and_flagged_at_a_replay(monkeypatch):
    kept, overflow = KeptSplit(), torch.zeros((), dtype=torch.bool)
    first = kept.serve(batch(1), overflow, torch.float64)
    assert kept.serve(batch(1 + MARGIN / 2), overflow, torch.float64) is first
    assert kept.serve(batch(1.2), overflow, torch.float64) is not first
    monkeypatch.setattr(module, "shapes_are_fixed", lambda tensor: True)  # as in a capture
    latest = kept.serve(batch(1.2), overflow, torch.float64)
    assert not overflow
    assert kept.serve(batch(1), overflow, torch.float64) is latest
    assert overflow
    kept.forget()
    with pytest.raises(RuntimeError, match="an evaluation must have run before it is captured"):
        kept.serve(batch(1), overflow, torch.float64)
