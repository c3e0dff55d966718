import pytest
import torch

from torchmdx import System
from torchmdx.evaluation.properties.pairs import Pairs
from torchmdx.neighbors.brute_force import brute_force


def test_a_structure_keeps_its_pairs_far_from_the_origin(make_potential, crystal):
    potential = make_potential().float()
    crystal.positions += 1e6
    pairs = Pairs.of(potential, System.from_ase(crystal))
    assert pairs.batch.positions.dtype == pairs.batch.cell.dtype == torch.float64
    assert pairs.batch.charge.dtype == torch.float32
    assert pairs.batch.positions.abs().max() < 10
    expected = brute_force(pairs.batch, potential.cutoff)
    count = int(pairs.edges.num_edges)
    assert count == int(expected.num_edges)
    assert ends_of(pairs.edges, count) == ends_of(expected, count)
    assert pairs.list().num_pairs == count // 2


def ends_of(edges, count) -> list[tuple[int, int]]:
    return sorted(zip(edges.target[:count].tolist(), edges.source[:count].tolist(), strict=True))


def test_bad_structures_are_refused(make_potential, ethanol):
    potential = make_potential()
    ethanol.positions[3] = ethanol.positions[4]
    with pytest.raises(ValueError, match="atoms must not coincide, got atoms 3 and 4"):
        Pairs.of(potential, System.from_ase(ethanol))
    ethanol.numbers[0] = 80
    with pytest.raises(ValueError, match="knows atomic numbers up to 35, got 80 for atom 0"):
        Pairs.of(potential, System.from_ase(ethanol))
