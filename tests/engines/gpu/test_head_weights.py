"""Matrices of both kinds of head, as blocks of atoms and single atoms read them."""

import pytest
import torch

from torchmdx import Potential, TensorNetConfig
from torchmdx.engines.gpu.head_weights import HeadWeights

SIZES = dict(num_channels=12, num_layers=0, num_radial=4, max_z=9)


def packed(**settings):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(**SIZES, **settings)).requires_grad_(False)
    return potential, HeadWeights.pack(potential, 16)


@pytest.mark.parametrize("layers", [0, 2])
def test_matrices_of_a_gated_head_compute_it(layers):
    potential, weights = packed(head="gated", num_head_layers=layers)
    features = torch.randn(5, 12)
    x = torch.nn.functional.pad(features, (0, 4))
    first, *others = weights.layers(weights.into)
    z = x @ first + weights.bias[0]
    for matrices, bias in zip(others, weights.bias[1:], strict=True):
        halves = torch.nn.functional.silu(z).split(16, dim=1)
        z = torch.cat([half @ matrix for half, matrix in zip(halves, matrices, strict=True)], dim=1) + bias
    values, gates = torch.nn.functional.silu(z).split(16, dim=1)
    _, bias, gate_bias = weights.constants
    out = (values @ weights.last[0] + bias) * torch.sigmoid(gates @ weights.last[1] + gate_bias)
    torch.testing.assert_close(out.float(), potential.head(features))
    assert weights.gated
    assert weights.num_layers == layers + 1


def test_backward_matrices_are_the_transposed_ones():
    _, weights = packed(head="gated", num_head_layers=1)
    for into, back in zip(weights.layers(weights.into), weights.layers(weights.back), strict=True):
        assert torch.equal(into.transpose(-1, -2), back)


@pytest.mark.parametrize("layers", [0, 2])
def test_matrices_of_a_plain_head_compute_it(layers):
    potential, weights = packed(num_head_layers=layers)
    features = torch.randn(5, 12)
    x = torch.nn.functional.pad(features, (0, 4)) @ weights.into
    for matrix, bias in zip(weights.more, weights.bias, strict=False):
        x = torch.nn.functional.silu(x + bias) @ matrix
    hidden = torch.nn.functional.silu(x + weights.bias[-1])
    torch.testing.assert_close((hidden @ weights.last + weights.constants[1]).float(), potential.head(features))
    assert torch.equal(weights.into.T, weights.back)
    assert torch.equal(weights.more.transpose(1, 2), weights.more_back)
    assert not weights.gated
    assert weights.num_layers == len(weights.bias) == layers + 1
