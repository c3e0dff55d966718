"""Work in blocks of atoms: which atoms and edges a block has, and which of them are evaluated."""

import pytest
import torch
from ase.build import bulk

from torchmdx import Batch, System
from torchmdx.evaluation.block_plan import BlockPlan, Extent, blocks_of
from torchmdx.neighbors.brute_force import brute_force


@pytest.fixture
def batch(ethanol, crystal) -> Batch:
    diamond = bulk("C") * (2, 2, 1)
    return Batch.of([System.from_ase(atoms) for atoms in (ethanol, diamond, crystal)])


def test_blocks_hold_every_atom_and_edge_once(batch):
    edges = brute_force(batch, 4.0, capacity=2000)
    for most_atoms, most_edges in ((1, 10**6), (3, 50), (10**6, 1), (10**6, 10**6)):
        found = blocks_of(edges, most_atoms, most_edges)
        assert [block.atoms.start for block in found] == [0, *(block.atoms.stop for block in found[:-1])]
        assert [block.edges.start for block in found] == [0, *(block.edges.stop for block in found[:-1])]
        assert (found[-1].atoms.stop, found[-1].edges.stop) == (batch.num_atoms, int(edges.num_edges))
        for block in found:
            num_atoms, num_edges = block.atoms.stop - block.atoms.start, block.edges.stop - block.edges.start
            assert num_atoms == 1 or (num_atoms <= most_atoms and num_edges <= most_edges)
            targets = edges.target[block.edges]
            assert bool(((targets >= block.atoms.start) & (targets < block.atoms.stop)).all())


def test_blocks_end_where_they_are_divided(batch):
    edges = brute_force(batch, 4.0)
    stops = [block.atoms.stop for block in blocks_of(edges, 4, 10**6, divided_at=[2, 9, 9, batch.num_atoms])]
    assert stops == [2, 6, 9, 13, 17, 20]


def test_only_the_atoms_of_an_extent_are_evaluated_and_differentiated(batch):
    edges, values = brute_force(batch, 4.0), torch.rand(batch.num_atoms, 2, dtype=torch.float64, requires_grad=True)
    plan, seen = BlockPlan(edges, blocks_of(edges, 4, 10**6, divided_at=[3, 9])), []
    found = plan.run(lambda block, own: seen.append(block.atoms.stop) or own**2, (values,), extent=Extent(9, 3))
    assert torch.equal(found, values[:9] ** 2)
    assert seen == [3, 7, 9]
    (slope,) = torch.autograd.grad(found.sum(), values)
    assert torch.equal(slope[:3], 2 * values[:3])
    assert not slope[3:].any()


def test_without_atoms_there_is_one_empty_block():
    edges = brute_force(Batch.of(System.create([], [])), 4.0)
    plan = BlockPlan(edges, blocks_of(edges, 4, 10))
    assert plan.run(lambda block, own: own + 1, (torch.zeros(0, 5),)).shape == (0, 5)
