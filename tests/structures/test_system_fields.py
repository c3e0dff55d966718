"""Systems and batches of a wrong dtype or order are refused: compiled code reads their memory as it is declared."""

from dataclasses import replace

import pytest
import torch

from torchmdx import Batch, System, evaluate
from torchmdx.step.captured_step import CapturedStep


@pytest.fixture
def batch(ethanol, cation) -> Batch:
    return Batch.from_systems([System.from_ase(ethanol), System.from_ase(cation)])


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("atomic_numbers", torch.int32, "atomic_numbers of a batch must have dtype torch.int64, got torch.int32"),
        ("atomic_numbers", torch.uint8, "atomic_numbers of a batch must have dtype torch.int64, got torch.uint8"),
        ("system_index", torch.int32, "system_index of a batch must have dtype torch.int64, got torch.int32"),
        ("pbc", torch.int64, "pbc of a batch must have dtype torch.bool, got torch.int64"),
        ("charge", torch.int64, "charge of a batch must have a floating dtype, got torch.int64"),
        ("positions", torch.int64, "positions of a batch must have a floating dtype, got torch.int64"),
    ],
)
def test_tensors_of_another_dtype_are_refused(batch, name, dtype, message):
    with pytest.raises(TypeError, match=message):
        replace(batch, **{name: getattr(batch, name).to(dtype)})


def test_a_system_has_the_dtypes_that_a_batch_has(ethanol):
    system = System.from_ase(ethanol)
    with pytest.raises(TypeError, match="atomic_numbers of a system must have dtype torch.int64, got torch.int32"):
        replace(system, atomic_numbers=system.atomic_numbers.int())
    with pytest.raises(TypeError, match="must have one dtype, got torch.float64 and torch.float32"):
        replace(system, cell=system.cell.float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index.flip(0), "must ascend, got 1 for atom 4 and 0 for atom 5"),
        (lambda index: index + 1, "of a batch of 2 systems must be from 0 to 1, got 1 to 2"),
        (lambda index: index - 1, "of a batch of 2 systems must be from 0 to 1, got -1 to 0"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_systems_of_atoms_in_another_order_are_refused(batch, potential, change, message, device):
    with pytest.raises(ValueError, match=message):
        evaluate(potential, replace(batch.to(device), system_index=change(batch.system_index).to(device)))


def test_a_batch_of_the_right_kind_is_evaluated_as_its_systems(batch, potential, ethanol):
    copied = replace(batch, atomic_numbers=batch.atomic_numbers.int().long())
    found = CapturedStep(potential, copied, mode="eager")(copied.positions)
    assert float(found.energy[0]) == pytest.approx(
        float(evaluate(potential, System.from_ase(ethanol)).energy), abs=1e-8
    )
