"""Arrays that compiled code would misread are refused, by the helper and at the boundaries that use it."""

from dataclasses import replace

import pytest
import torch

from torchmdx import Batch, System
from torchmdx.engines.cpu import coulomb
from torchmdx.engines.cpu.build import tensornet_library
from torchmdx.engines.cpu.engine import CompiledTensorNet
from torchmdx.engines.cpu.pair_forms import products
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.neighbors.backends.cell_list import CellList
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime.c_arrays import address


def test_the_address_is_that_of_the_values():
    array = torch.arange(6, dtype=torch.int32).view(2, 3)
    assert address("values", array, torch.int32, shape=(2, 3)) == array.data_ptr()
    assert address("values", array[1:], torch.int64, torch.int32) == array.data_ptr() + 12


@pytest.mark.parametrize(
    ("array", "got"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), r"got float64 of shape \[2, 3\] on cpu"),
        (torch.zeros(3, 2, dtype=torch.float32), r"got float32 of shape \[3, 2\] on cpu"),
        (torch.zeros(3, 2, dtype=torch.float32).T, r"got float32 of shape \[2, 3\] and strides \[1, 2\] on cpu"),
        (torch.zeros(2, 3, dtype=torch.float32, device="meta"), r"got float32 of shape \[2, 3\] on meta"),
    ],
)
def test_an_array_of_another_kind_is_refused_with_the_requirement(array, got):
    with pytest.raises(ValueError, match=r"needs forces as contiguous float32 of shape \[2, 3\] on cpu, " + got):
        address("forces", array, torch.float32, shape=(2, 3))


@pytest.fixture
def batch(ethanol) -> Batch:
    return Batch.of(System.from_ase(ethanol))


def test_the_engine_refuses_positions_that_it_would_misread(make_kind, batch):
    if tensornet_library() is None:
        pytest.skip("needs the compiled library")
    potential = make_kind("tensornet", torch.float32)
    network, edges = CompiledTensorNet(potential, batch.num_atoms, 1), brute_force(batch, potential.cutoff)
    for positions, message in (
        (batch.positions.bfloat16(), "needs positions as contiguous float32 or float64 .*, got bfloat16"),
        (batch.positions[:-1], r"of shape \[9, 3\] on cpu, got float64 of shape \[8, 3\]"),
    ):
        with pytest.raises(ValueError, match=message):
            network.run(batch, positions, batch.cell, edges, forces=True, virial=False)
    short = replace(edges, source=edges.source.long())
    with pytest.raises(ValueError, match="needs source as contiguous int32 .*, got int64"):
        network.run(batch, batch.positions, batch.cell, short, forces=True, virial=False)


def test_the_cell_list_refuses_buffers_that_it_would_misread(batch):
    edges = brute_force(batch, 4.0)
    with pytest.raises(ValueError, match="needs needed as contiguous int64 .*, got int32"):
        CellList(batch, 4.0, replace(edges, needed=edges.needed.int()))
    search = CellList(batch, 4.0, edges)
    with pytest.raises(ValueError, match=r"needs positions as contiguous float64 of shape \[9, 3\]"):
        search.fill(batch.positions[:5], batch.cell)


def test_kernels_refuse_arrays_of_different_dtypes(batch):
    if not coulomb.available():
        pytest.skip("needs the compiled library")
    a = torch.ones(2, 9, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="needs the arrays of products as contiguous float64 on cpu, got float32"):
        products(2, True, a, a.float(), None)
    edges, prior = brute_force(batch, 6.0), Coulomb(CoulombConfig(cutoff=6.0), 1)
    with pytest.raises(ValueError, match="needs shifts as contiguous int32 .*, got int64"):
        coulomb.evaluate(prior, batch, replace(edges, shifts=edges.shifts.long()), torch.ones(9, 1))
