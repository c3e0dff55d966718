"""What audits draw: systems and atoms, by a number."""

import torch

from torchmdx import Batch, System
from torchmdx.step.drawn import MOST_ATOMS, Drawn, draw, draw_centres, select
from torchmdx.structures.domain import Domain


def test_a_batch_that_fits_is_compared_as_a_whole():
    assert draw([3, 0, 200, 397], 1) == Drawn((0, 1, 2, 3))
    assert draw([3, 800], 5) == Drawn((0, 1))
    assert draw([3000], 5) == Drawn((0,))


def test_a_large_system_does_not_hide_behind_a_small_one():
    assert draw([3, 20_000], 5) == Drawn((0,), part=1)
    assert draw([20_000, 3], 5) == Drawn((1,), part=0)
    assert draw([20_000], 5) == Drawn((), part=0)


def test_each_system_is_drawn_at_some_time_and_equal_numbers_draw_equally():
    counts = [50] * 60 + [2000, 5000, 700]
    drawn = [draw(counts, number) for number in range(60)]
    assert drawn == [draw(counts, number) for number in range(60)]
    assert len(set(drawn)) == 60
    seen = {system for each in drawn for system in (*each.whole, each.part)}
    assert set(range(len(counts))) <= seen
    for each in drawn:
        assert sum(counts[system] for system in each.whole if counts[system] <= MOST_ATOMS) == MOST_ATOMS
        assert sum(system >= 60 for system in (*each.whole, *filter(None, [each.part]))) == 1


def chain(count):
    return System.create(torch.arange(3.0 * count).reshape(count, 3).tolist(), [1] * count)


def test_atoms_are_drawn_from_the_whole_system():
    batch = Batch.of([chain(4), chain(100), chain(7)])
    drawn = [draw_centres(batch, 1, number) for number in range(40)]
    assert drawn[3] == draw_centres(batch, 1, 3) != drawn[4]
    every = {atom for centres in drawn for atom in centres}
    assert every == set(range(4, 104))
    assert all(len(set(centres)) == len(centres) > 1 for centres in drawn)


def test_padding_atoms_of_a_domain_are_not_drawn():
    batch = Batch.of(chain(10))
    hops = torch.tensor([0] * 3 + [1] * 3 + [2] * 4, dtype=torch.int32)
    domain = Domain(**vars(batch), hops=hops, within=torch.tensor([3, 6], dtype=torch.int32))
    assert {atom for number in range(20) for atom in draw_centres(domain, 0, number)} == set(range(6))


def test_selected_systems_are_those_of_the_batch():
    systems = [chain(2), System.create([], []), chain(3), chain(1)]
    systems[2] = System(*(getattr(systems[2], name) for name in ("positions", "atomic_numbers", "cell", "pbc")), 2.0)
    part, atoms = select(Batch.of(systems), (1, 2, 3))
    assert atoms.tolist() == [2, 3, 4, 5]
    assert part.system_index.tolist() == [1, 1, 1, 2]
    assert part.charge.tolist() == [0.0, 2.0, 0.0]
    assert torch.equal(part.positions, torch.cat([systems[2].positions, systems[3].positions]))
