"""Domain: shapes, conversion, and energies of owned atoms."""

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.structures.domain import Domain, of_owned


def domain(**changes) -> Domain:
    batch = Batch.of(System.create([[0.0, 0, 0], [0, 0, 1], [0, 0, 2]], [8, 1, 1]))
    given = dict(hops=torch.tensor([0, 1, 2], dtype=torch.int32), within=torch.tensor([1, 2], dtype=torch.int32))
    return Domain(**vars(batch), **(given | changes))


def test_conversion_and_copies_keep_the_hops():
    part = domain()
    for other in (part.to(dtype=torch.float32), part.clone()):
        assert isinstance(other, Domain)
        assert other.hops.tolist() == [0, 1, 2]
        assert other.within.tolist() == [1, 2]
    other = domain(hops=torch.tensor([0, 0, 1], dtype=torch.int32), within=torch.tensor([2, 3], dtype=torch.int32))
    part.copy_(other)
    assert part.hops.tolist() == [0, 0, 1]
    assert part.within.tolist() == [2, 3]


def test_energies_of_other_atoms_do_not_count():
    energies = torch.tensor([1.0, 2.0, 3.0])
    assert of_owned(energies, domain()).tolist() == [1, 0, 0]
    assert of_owned(energies, Batch.of(System.create([[0.0, 0, 0]] * 3, [1, 1, 1]))) is energies


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"hops of shape \[3\].*got 1, \[2\] and 1"):
        domain(hops=torch.zeros(2, dtype=torch.int32))
