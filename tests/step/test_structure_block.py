"""A block holds what a step takes over: the same values as separate tensors, under one address."""

from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from torchmdx import Batch, System
from torchmdx.step import structure_block
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.placement import place
from torchmdx.step.structure_block import ALIGNMENT, StructureBlock
from torchmdx.structures.domain import Domain


def batch_of(seed: int, charged: bool = False, sizes=(5, 0, 7)) -> Batch:
    rng = np.random.default_rng(seed)
    systems = [
        System.create(
            rng.normal(size=(size, 3)),
            rng.integers(1, 9, size),
            9 * np.eye(3) + rng.normal(size=(3, 3)),
            rng.integers(0, 2, 3).astype(bool),
            float(rng.integers(-1, 2)),
            rng.normal(size=size) if charged else None,
        )
        for size in sizes
    ]
    return Batch.from_systems(systems)


def domain_of(seed: int) -> Domain:
    hops = torch.tensor([0, 0, 1, 1, 2], dtype=torch.int32) + seed
    return Domain(**vars(batch_of(seed, sizes=(5,))), hops=hops, within=torch.tensor([2, 4]) + seed)


def values(batch: Batch) -> dict[str, torch.Tensor]:
    given = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in given.items() if value is not None}


def assert_same(found: Batch, wanted: Batch) -> None:
    assert type(found) is type(wanted)
    assert values(found).keys() == values(wanted).keys()
    for name, value in values(wanted).items():
        assert getattr(found, name).dtype == value.dtype, name
        assert torch.equal(getattr(found, name).cpu(), value), name


KINDS = {
    "plain": batch_of,
    "partial charges": lambda seed: batch_of(seed, charged=True),
    "a domain": domain_of,
    "no atoms": lambda seed: batch_of(seed, sizes=(0,)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_has_the_values_of_each_structure_in_turn(kind, dtype, device):
    first, second = (KINDS[kind](seed) for seed in (0, 1))
    block = StructureBlock.of(first.to(device), dtype)
    ordered = block.ordered()
    assert_same(block.batch, first)
    shared = {"positions": first.positions, "cell": first.cell}
    assert_same(replace(ordered, **shared), replace(first.to(dtype=dtype), **shared))
    kept = {name: view.data_ptr() for name, view in block.views.items()}
    placement = place(second, dtype)
    block.take(second, placement)
    assert_same(block.batch, second)
    assert_same(replace(ordered, **shared), replace(second.to(dtype=dtype), **shared))
    views = {name: view.cpu() for name, view in block.views.items()}
    assert torch.equal(views["input"], torch.cat([second.positions.flatten(), second.cell.flatten()]))
    assert views["order"].tolist() == list(range(second.num_atoms))
    np.testing.assert_array_equal(views["images"], placement.images)
    np.testing.assert_array_equal(views["origin"], placement.origin)
    assert float(views["far"]) == placement.far
    assert {name: view.data_ptr() for name, view in block.views.items()} == kept
    assert all(address % ALIGNMENT == 0 for name, address in kept.items() if block.views[name].numel())


def test_values_do_not_overlap():
    block = StructureBlock.of(batch_of(0, charged=True), torch.float32)
    spans = sorted((view.data_ptr(), view.data_ptr() + view.nbytes) for view in block.views.values() if view.numel())
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_many_atoms_have_no_block(monkeypatch):
    monkeypatch.setattr(structure_block, "FEWEST_ATOMS", 12)
    assert StructureBlock.of(batch_of(0), torch.float32) is None
    assert StructureBlock.of(batch_of(0, sizes=(11,)), torch.float32) is not None


@pytest.mark.parametrize("fewest", [0, 6000], ids=["without a block", "with a block"])
def test_a_step_takes_structures_with_and_without_a_block(trained, ethanol, crystal, device, monkeypatch, fewest):
    """Both ways to the results of a step that was made for the structure."""
    monkeypatch.setattr(structure_block, "FEWEST_ATOMS", fewest)
    potential = trained(device, torch.float64)
    for one, other in ((ethanol, ethanol[::-1]), (crystal, crystal[::-1])):
        one, other = (System.from_ase(atoms) for atoms in (one, other))
        step = CapturedStep(potential, one, stress=True)
        assert (step.block is None) == (fewest == 0)
        step(one.positions.numpy(), one.cell.numpy())
        step.assign(other)
        found = step(other.positions.numpy(), other.cell.numpy())
        made = CapturedStep(potential, other, stress=True)
        wanted = made(other.positions.numpy(), other.cell.numpy())
        np.testing.assert_allclose(found.forces, wanted.forces, atol=1e-11)
        np.testing.assert_allclose(found.energy, wanted.energy, atol=1e-11)
        assert step.num_recoveries == 0
