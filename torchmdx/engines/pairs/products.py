"""Multilinear forms of the tensors of one atom: products, sums over parts, linear maps.

Tensors of atoms are [N,9,C] (see tensors.py). k(m) is the part that component m belongs to. The derivatives are Triton
kernels with sums in a fixed order on a GPU; those of products are kernels in C on a CPU with a compiler. Elsewhere
they are torch operations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.cpu import pair_forms as compiled
from torchmdx.models.tensors import PARTS, product, symmetric_product, to_components
from torchmdx.runtime.isolation import products_are_exact

Arguments = tuple[Any, ...]  # tensors, and None for the one that the derivative is by
# With this number of atoms or more, sums over atoms are single matrix products. Unlike batched products, these are
# divided along the sum, so that they fill a GPU.
MANY_ATOMS = 1024


@dataclass(frozen=True)
class PartSums:
    """T(a, b, h) = Σ_i,m,c a[i,m,c] b[i,m,c] h[i,k(m),c]: tensors scaled part by part, sums of products over parts.

    parts=1: h is [N,1,C], one value for all components. metric: b is replaced by `undual(b)`, so that products are
    inner products of matrices: T(x, x, .) contains squared Frobenius norms.
    """

    parts: int = 3
    metric: bool = False

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to a, b [N,9,C] or h [N,parts,C]."""
        a, b, h = arguments
        if slot == 2:
            if kernels := kernels_of(a, b):
                return kernels.part_sums(a, b, self.parts, self.metric)
            both = a * (undual(b) if self.metric else b)
            return part_sums(both) if self.parts == 3 else both.sum(1, keepdim=True)
        other = b if slot == 0 else a
        if kernels := kernels_of(other, h):
            return kernels.scale_parts(other, h, self.metric)
        return (to_components(h) if self.parts == 3 else h) * (undual(other) if self.metric else other)


class PartLinear:
    """T(x, w, g) = Σ_n,m,o,i g[n,m,o] w[k(m),o,i] x[n,m,i]: linear maps of channels, w [3,C,C], one for each part."""

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to x [N,9,C], w or g [N,9,C]. Parts are views, multiplied in batches of their components."""
        x, w, g = arguments
        if slot == 1:
            exact = exact_products_of(x, g)
            return exact.in_weights(g, x)[0] if exact else self._in_weights(x, g)
        given = x if slot == 2 else g
        if exact := exact_products_of(given, w):
            return exact.multiply(given, w, back=slot == 0)
        out = torch.empty_like(given)
        for k in range(3):
            matrix = w[k].T if slot == 2 else w[k]
            values = _part(given, k)
            torch.bmm(values, matrix.expand(len(values), -1, -1), out=_part(out, k))
        return out

    def _in_weights(self, x: Tensor, g: Tensor) -> Tensor:
        if len(x) < MANY_ATOMS:
            return torch.stack([torch.bmm(_part(g, k).mT, _part(x, k)).sum(0) for k in range(3)])
        out = x.new_zeros(3, x.shape[2], x.shape[2])
        for k in range(3):
            for component in range(PARTS[k].start, PARTS[k].stop):
                out[k].addmm_(g[:, component].T, x[:, component])
        return out


class Linear:
    """T(x, w, g) = Σ_n,o,i g[n,o] w[o,i] x[n,i]: a linear map by tensor cores, see `exact_products_of`."""

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to x [N,I], w [O,I] or g [N,O]."""
        x, w, g = arguments
        if slot == 1:
            return _exact_products().in_weights(g, x)[0]
        given = x if slot == 2 else g
        return _exact_products().multiply(given, w, back=slot == 0)


class RowScale:
    """T(v, e, h) = Σ_p,k e[p] v[p,k] h[p,k]: rows multiplied by a factor, and sums of products of rows."""

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to v [P,K], e [P,1] or h [P,K]."""
        v, e, h = arguments
        if slot == 1:
            return _kernels().row_products(v, h) if v.is_cuda else (v * h).sum(1, keepdim=True)
        other = h if slot == 0 else v
        return _kernels().row_scale(other, e) if e.is_cuda else e * other


@dataclass(frozen=True)
class Products:
    """T(a, b, h) = Σ h · components of AB, or with `symmetric` of AB + BA, channel by channel."""

    symmetric: bool

    def partial(self, slot: int, arguments: Arguments) -> Tensor:
        """With respect to a, b or h [N,9,C]. Transposition changes the sign of the vector part; see `dual`."""
        if kernels := kernels_of(*(x for x in arguments if x is not None)):
            return kernels.products(slot, self.symmetric, *arguments)
        a, b, h = arguments
        multiply: Callable[[Tensor, Tensor], Tensor] = symmetric_product if self.symmetric else product
        if slot == 2:
            return multiply(a, b)
        if slot == 0:
            return undual(multiply(dual(h), transposed(b)))
        return undual(multiply(transposed(a), dual(h)))


def dual(h: Tensor) -> Tensor:
    """Components of the matrix H with Σ h·x = <H, X> for every X: the inverse of the metric of components."""
    s, a, (qxx, qxy, qxz, qyy, qyz) = h[:, :1] / 3, h[:, 1:4] / 2, h[:, 4:].split(1, 1)
    return torch.cat([s, a, (2 * qxx - qyy) / 3, qxy / 2, qxz / 2, (2 * qyy - qxx) / 3, qyz / 2], 1)


def undual(x: Tensor) -> Tensor:
    """The inverse of `dual`: the coefficients of the linear form <., X>, one per component."""
    s, a, (qxx, qxy, qxz, qyy, qyz) = 3 * x[:, :1], 2 * x[:, 1:4], x[:, 4:].split(1, 1)
    return torch.cat([s, a, 2 * qxx + qyy, 2 * qxy, 2 * qxz, 2 * qyy + qxx, 2 * qyz], 1)


def transposed(x: Tensor) -> Tensor:
    """Components of the transposed matrices."""
    return torch.cat([x[:, :1], -x[:, 1:4], x[:, 4:]], 1)


def _part(x: Tensor, k: int) -> Tensor:
    """Components of one part, [its number of components,N,C], as a view."""
    return x[:, PARTS[k]].transpose(0, 1)


def part_sums(x: Tensor) -> Tensor:
    """Sums [..,3,C] over the components of each part of x [..,9,C]."""
    return torch.stack([x[..., part, :].sum(-2) for part in PARTS], -2)


def kernels_of(*tensors: Tensor) -> Any:
    """The kernels for these tensors, Triton's or those in C; None for torch operations."""
    if tensors[0].is_cuda:
        return _kernels()
    return compiled if compiled.serves(*tensors) else None


def exact_products_of(*tensors: Tensor) -> Any:
    """The kernels that multiply by tensor cores, exact to float32, if float32 on a GPU asks for it; else None."""
    if not tensors[0].is_cuda or any(x.dtype != torch.float32 for x in tensors):
        return None
    if not products_are_exact() or torch.is_autocast_enabled("cuda"):
        return None  # torch's own products are coarser, and faster
    return _exact_products()


def _exact_products() -> Any:
    from torchmdx.engines.pairs.kernels import linear as linear_kernels

    return linear_kernels


def _kernels() -> Any:
    from torchmdx.engines.pairs.kernels import multilinear as form_kernels

    return form_kernels
