"""What a network reads of the vectors of pairs: directions, radial basis and cutoff function.

On a GPU, with the exponential basis and no trained parameters in it, values and derivatives are one kernel each.
Elsewhere, and for second derivatives by the vectors, they are torch operations.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.cutoff_copies import PAIRS, require_repeated
from torchmdx.engines.pairs.multilinear import inputs_with_gradient, second_derivatives
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.radial import ExpNormalBasis
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import from_direction

Values = tuple[Tensor, Tensor, Tensor]


def pair_values(network: TensorNet | TensorNet2, vectors: Tensor) -> Values:
    """Directions [P+1,9], radial basis [P+1,R] and cutoff function [P+1,1] of vectors [P,3].

    The last row is that of an atom with itself, at distance 0.
    """
    if kernels := pair_kernels_of(network, vectors):
        return _PairValues.apply(kernels, network, vectors.contiguous())
    return _composed(network, vectors)


def _composed(network: TensorNet | TensorNet2, vectors: Tensor) -> Values:
    distance = torch.linalg.vector_norm(vectors, dim=-1)
    direction = vectors / distance[:, None]
    distance = torch.cat([distance, distance.new_zeros(1)])
    radial = network.basis(distance)
    envelope = cosine_cutoff(distance, float(network.config.cutoff))[:, None]
    if not network.config.self_message:
        envelope = torch.cat([envelope[:-1], torch.zeros_like(envelope[-1:])])
    directions = from_direction(direction)
    # An atom has no direction to itself: its message has a scalar part only, a constant.
    alone = directions.new_zeros(1, 9)
    alone[:, :1].fill_(1.0)
    return torch.cat([directions, alone]), radial, envelope


class _PairValues(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, network: Any, vectors: Tensor) -> Values:
        ctx.kernels, ctx.network = kernels, network
        ctx.save_for_backward(vectors)
        cutoff, own = float(network.config.cutoff), bool(network.config.self_message)
        return kernels.values(vectors, network.basis.means, network.basis.betas, cutoff, own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        g, gr, ge = (x.contiguous() for x in gradients)
        return None, None, _PairValuesGradient.apply(ctx.kernels, ctx.network, *ctx.saved_tensors, g, gr, ge)


class _PairValuesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernels: Any, network: Any, vectors: Tensor, g: Tensor, gr: Tensor, ge: Tensor) -> Tensor:
        ctx.kernels, ctx.network = kernels, network
        ctx.save_for_backward(vectors, g, gr, ge)
        return kernels.gradient(
            vectors, network.basis.means, network.basis.betas, float(network.config.cutoff), g, gr, ge
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        vectors, g, gr, ge = ctx.saved_tensors
        t, basis = gradients[0].contiguous(), ctx.network.basis
        needed = inputs_with_gradient(ctx, (vectors, g, gr, ge), 2)
        if not torch.is_grad_enabled() and not needed[0]:
            found = ctx.kernels.change(vectors, basis.means, basis.betas, float(ctx.network.config.cutoff), t)
            return None, None, None, *found
        values, again = functools.partial(_composed, ctx.network), torch.is_grad_enabled()
        return None, None, *second_derivatives(values, (vectors,), (g, gr, ge), (t,), again=again)


def pair_kernels_of(network: TensorNet | TensorNet2, vectors: Tensor) -> Any:
    """The kernels for vectors on a GPU and a basis that they have, else None."""
    if not vectors.is_cuda or not has_kernels(network):
        return None
    from torchmdx.engines.pairs.kernels import pair_values as kernels

    return kernels


def has_kernels(network: TensorNet | TensorNet2) -> bool:
    """Whether the basis is the exponential one, with the network's cutoff and without trained parameters.

    Raises:
        ValueError: Where the kernels repeat another cutoff function than that of the models.
    """
    basis = network.basis
    if type(basis) is not ExpNormalBasis or float(network.config.cutoff) != basis.cutoff:
        return False
    require_repeated(basis.cutoff, PAIRS)
    return not any(x.requires_grad for x in basis.parameters())
