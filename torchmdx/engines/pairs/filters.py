"""Filters of pairs, which depend on the distance only, and of edges, which depend on the charges of both atoms too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchmdx.engines.pairs.edge_values import to_edges
from torchmdx.engines.pairs.multilinear import inputs_with_gradient, partial
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.pairs.products import Linear, RowScale, exact_products_of
from torchmdx.engines.pairs.silu import activate, activate_rows, scaled_slope
from torchmdx.models.interaction import Interaction

ROWS, LINEAR = RowScale(), Linear()
# Narrower maps leave most of a tensor core idle.
LEAST_WIDTH = 16


class _Affine(torch.autograd.Function):
    """x W + b, x [N,I], W [O,I] and b [O], by `Linear`."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.kernels = kernels
        ctx.save_for_backward(x, w, b)
        return kernels.multiply(x, w, b)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, w, b = ctx.saved_tensors
        return None, *_affine_gradients(ctx, x, w, b, gradients[0].contiguous())


def _affine_gradients(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, g: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of x W + b by x, w and b, if needed. ctx: of a function with `kernels`, x, w and b as arguments."""
    for_x, for_w, for_b = inputs_with_gradient(ctx, (x, w, b), 1)
    in_x = partial(LINEAR, 0, None, w, g) if for_x else None
    if for_w and for_b and not torch.is_grad_enabled():
        return in_x, *ctx.kernels.in_weights(g, x, total=True)
    return in_x, partial(LINEAR, 1, x, None, g) if for_w else None, g.sum(0) if for_b else None


class _AffineSiLU(torch.autograd.Function):
    """x W + b, and SiLU of it, in one kernel."""

    @staticmethod
    def forward(ctx: Any, kernels: Any, x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.kernels = kernels
        ctx.set_materialize_grads(False)
        plain, activated = kernels.multiply_silu(x, w, b)
        ctx.save_for_backward(x, w, b, plain)
        return plain, activated

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        x, w, b, plain = ctx.saved_tensors
        of_plain, of_activated = gradients
        if of_activated is not None:
            g = scaled_slope(plain, of_activated.contiguous(), of_plain)
        elif of_plain is not None:
            g = of_plain.contiguous()
        else:
            return None, None, None, None
        return None, *_affine_gradients(ctx, x, w, b, g)


def linear(module: nn.Module, x: Tensor) -> Tensor:
    """A linear map whose result has the dtype of x, under autocast as well."""
    if kernels := _kernels_of(module, x):
        return _Affine.apply(kernels, x.contiguous(), module.weight, module.bias)
    return cast(Tensor, module(x)).to(x.dtype)


def _kernels_of(module: nn.Module, x: Tensor) -> Any:
    """The kernels for a linear map of x; None for torch's own."""
    if not isinstance(module, nn.Linear) or x.dim() != 2 or min(module.weight.shape) < LEAST_WIDTH:
        return None
    return exact_products_of(x, module.weight)


def through(modules: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Applies linear maps and activations in order."""
    left = list(modules)
    while left:
        module = left.pop(0)
        if left and isinstance(left[0], nn.SiLU) and (kernels := _kernels_of(module, x)):
            left.pop(0)
            _, x = _AffineSiLU.apply(kernels, x.contiguous(), module.weight, module.bias)
        else:
            x = linear(module, x) if isinstance(module, nn.Linear) else activate(module, x)
    return x


def _scaled(modules: list[nn.Module], x: Tensor, envelope: Tensor) -> Tensor:
    """As `through`, with rows multiplied by the cutoff function [.,1], and one filter per part: [.,3,C]."""
    *others, last = modules
    if isinstance(last, nn.SiLU):  # activation and scaling in one pass over memory
        x = activate_rows(through(others, x), envelope)
    elif isinstance(last, nn.Linear) and exact_products_of(x, last.weight):
        x = _scaled_linear(last, through(others, x), envelope)
    else:
        x = partial(ROWS, 2, through(modules, x), envelope, None)
    return x.unflatten(-1, (3, x.shape[-1] // 3))


def _scaled_linear(module: nn.Linear, x: Tensor, envelope: Tensor) -> Tensor:
    """e (x W + b) as the product of (e x, e) with (W, b), since rows of x are shorter than rows of the result."""
    columns, parts = [x * envelope], [module.weight]
    if module.bias is not None:
        columns.append(envelope)
        parts.append(module.bias[:, None])
    width = sum(part.shape[1] for part in parts)
    spare = -width % 16  # rows that begin at multiples of 64 bytes
    if spare:
        columns.append(x.new_zeros(len(x), spare))
        parts.append(x.new_zeros(module.out_features, spare))
    return partial(LINEAR, 2, torch.cat(columns, 1), torch.cat(parts, 1), None)


def pair_filters(network: nn.Module, radial: Tensor, envelope: Tensor) -> Tensor:
    """Filters [P+1,3,C] of a layer, or of the embedding, from the basis [P+1,R] and the cutoff function [P+1,1]."""
    return _scaled(list(network) if isinstance(network, nn.Sequential) else [network], radial, envelope)


def edge_filters(layer: Interaction, a: Tensor, t: Tensor, s: Tensor, pairs: PairList, envelope: Tensor) -> Tensor:
    """Filters [E+N,3,C] of a layer, for every edge and for the message of every atom to itself.

    a [P+1,C], t [N,C] and s [N,C] are the terms of the pair, the target and the source in the first linear map of the
    layer's network, including its bias; envelope [P+1,1] is the cutoff function of the pairs.
    """
    return _scaled(list(layer.filters)[1:], to_edges(pairs, a, t, s), to_edges(pairs, envelope))
