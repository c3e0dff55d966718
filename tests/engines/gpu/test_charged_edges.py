"""The network of edges of TensorNet2's kernels: all the ways to evaluate it agree."""

from dataclasses import replace

import pytest
import torch
from charged_buffers import replanned
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import CUTS, batch_of
from test_gpu_tensornet2 import assert_agrees, evaluated

from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.plan.launch_sizes import TwoMaps
from torchmdx.evaluation.derivatives import evaluate


@pytest.mark.nightly
@needs_kernels
@pytest.mark.parametrize(("keeps", "layers"), [(False, 1), (True, 2)])
def test_two_maps_in_one_kernel_agree(make_potential, keeps, layers, ethanol, wire):
    potential = make_potential(model="tensornet2", num_channels=32, num_layers=layers)
    batch, tiles = batch_of(ethanol, wire), replace(CUTS["coarse"], two_maps=TwoMaps())
    fast = replanned(FastTensorNet2(potential.to(DEVICE)), keeps_slopes=keeps, piece=48)
    buffers = evaluated(potential, batch, fast=fast, tiles=tiles, forces=False)
    assert buffers.scratch.charged.piece is None
    alone = buffers.energy.clone()
    fast = replanned(FastTensorNet2(potential.float().to(DEVICE)), keeps_slopes=keeps, piece=48)
    assert_agrees(potential, batch, of_system=1, fast=fast, tiles=tiles)
    torch.testing.assert_close(alone, evaluate(potential.double(), batch).energy, atol=1e-5, rtol=1e-7)


@pytest.mark.nightly
@needs_kernels
def test_values_that_are_not_finite_show_behind_two_maps(make_potential, ethanol):
    potential = make_potential(model="tensornet2", num_channels=32, num_layers=1)
    potential.network.layers[0].filters[0].bias.data[3] = float("nan")
    fast = FastTensorNet2(potential.to(DEVICE), bound=1.0)
    found = evaluated(potential, batch_of(ethanol), fast=fast, tiles=replace(CUTS["coarse"], two_maps=TwoMaps()))
    assert found.energy.isnan().all()


@pytest.mark.nightly
@needs_kernels
def test_what_is_made_again_in_pieces_is_the_same(make_potential, ethanol, wire):
    potential = make_potential(model="tensornet2", num_channels=16, num_layers=2)
    batch = batch_of(ethanol, wire)
    whole = evaluated(potential, batch)
    kept = [t.clone() for t in (whole.energies, whole.forces, whole.virial)]
    fast = replanned(FastTensorNet2(potential.float().to(DEVICE)), keeps_slopes=False, piece=48)
    pieces = evaluated(potential, batch, fast=fast)
    assert len(pieces.scratch.charged.piece) == 48
    assert pieces.scratch.charged.z2 == []
    for old, new in zip(kept, (pieces.energies, pieces.forces, pieces.virial), strict=True):
        torch.testing.assert_close(new, old, atol=1e-6, rtol=1e-6)
