"""Many atoms in little memory, against the launches that keep all tensors."""

from dataclasses import replace

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import CUTS, batch_of, run
from uncertain import uncertain

from torchmdx.engines.gpu.buffers import Buffers, BufferSizes
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan.launch_sizes import LEAN_ATOMS, ProductBlock, Tiles, first_lean
from torchmdx.neighbors.brute_force import brute_force


@pytest.mark.nightly
@needs_kernels
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "not in place"])
def test_tensors_computed_again_are_those_of_the_forward_pass(make_potential, num_layers, in_place, chiral):
    potential = uncertain(make_potential(num_channels=32, num_layers=num_layers))
    fast = FastTensorNet(potential.to(DEVICE))
    product = ProductBlock(columns=32 if in_place else 16)
    tiles = replace(CUTS["by elements"], lean=True, piece=16, product=product)
    found = run(potential, batch := batch_of(chiral, chiral), tiles=tiles, fast=fast)
    assert found.sizes.lean
    assert found.sizes.in_place == in_place
    kept = [t.clone() for t in (found.energies, found.forces, found.virial)]
    for tensor in found.scratch.tensors():
        tensor.fill_(torch.nan if tensor.is_floating_point() else -7)
    edges = brute_force(batch, potential.cutoff, capacity=found.sizes.capacity)
    single = batch.to(DEVICE, torch.float32)
    inputs = (single.positions, single.atomic_numbers, single.system_index, single.cell, single.charge, edges)
    again = fast.run(*inputs, virial=True)
    for old, new in zip(kept, (again.energies, again.forces, again.virial), strict=True):
        assert torch.equal(old, new)
    torch.testing.assert_close(fast.run(*inputs, forces=False).energies, kept[0], rtol=1e-6, atol=0)
    plain = run(potential, batch, tiles=replace(CUTS["by elements"], product=product), fast=fast)
    assert plain.present is not None
    assert (plain.forces - kept[1]).norm() < 1e-6 * plain.forces.norm()
    for old, new in zip(found.uncertainties, plain.uncertainties, strict=True):
        torch.testing.assert_close(old, new, rtol=1e-5, atol=0)


SHAPES = dict(
    channels=128, hidden=256, layers=2, head_layers=1, head_width=64, head_gated=False, with_forces=True,
    device=torch.device("meta"),
)  # fmt: skip


def test_memory_of_an_atom_in_water():
    atoms, edges = 998_784, 54 * 998_784
    sizes = BufferSizes(atoms, 1, edges, tiles=Tiles.choose(atoms), chain="lean", **SHAPES)
    assert Buffers.allocate(sizes).num_bytes < 37_500 * atoms


def test_tensors_are_computed_again_where_they_would_take_much_of_the_memory():
    assert first_lean(24_000_000_000) == LEAN_ATOMS
    large = first_lean(150_000_000_000)
    assert not Tiles.choose(98_304, large).lean
    assert Tiles.choose(98_304).lean
    assert Tiles.choose(998_784, large).lean
    kept = BufferSizes(1000, 1, 54_000, tiles=Tiles.choose(1000), chain="blocks", **SHAPES)
    assert large * Buffers.allocate(kept).num_bytes / 1000 < 0.15 * 150_000_000_000
