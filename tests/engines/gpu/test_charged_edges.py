"""The network of edges of TensorNet2's kernels: all the ways to evaluate it agree."""

import pytest
import torch
from charged_buffers import replanned
from interpreter import DEVICE, needs_kernels
from test_gpu_tensornet import batch_of
from test_gpu_tensornet2 import evaluated

from torchmdx.engines.gpu.tensornet2 import FastTensorNet2


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
