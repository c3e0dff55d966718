"""Tabulated filters: the edge filters of a TensorNet as smooth piecewise polynomials of the distance.

The filters f(r) of a trained network depend on the distance alone, so they can be read from a table instead of being
evaluated by small networks for every edge. The table is a piecewise polynomial with the exact value and slope at both
ends of every interval and at nodes between them. Value and slope are continuous, so forces computed as the derivative
of the table conserve the energy.

Knots are uniform in a stretched distance x(r), see engines/knots.py. In interval k = floor(x), with t = x - k - origin,
a filter is Σ_q a_q t^q. The table stores these coefficients and not values and slopes at the knots, because differences
of nearly equal values would amplify the rounding to float32. The fifth degree needs 190 to 350 intervals, 10 to 40 of
them beyond half of the cutoff, for an error of 1e-6: those that most edges fall into fit into first-level caches. The
ninth needs 190 for 1e-10 in float64. There, powers are of the distance from the middle of an interval: those from its
end would amplify rounding.
"""

from __future__ import annotations

import copy
import hashlib
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.engines.hermite import FIFTH, NINTH, Polynomial
from torchmdx.engines.knots import FOR_FLOAT32, FOR_FLOAT64, MOST_INTERVALS, Ranges, Stretch
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.interaction import Interaction
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.runtime.cpu_threads import limited_to
from torchmdx.runtime.isolation import isolated
from torchmdx.runtime.notes import name_of, note, noted

# Where in every interval the table is compared with the exact filters; none is a node.
PROBES = (0.1, 0.2, 0.4, 0.6, 0.8)
FINEST = 1e-9  # below, rounding may keep more intervals from being better
# Of a set's largest value or slope: errors are compared with no less.
SMALLEST = 1e-6

NOTES = "tables"  # spacings that were found
DEGREE = FIFTH.degree
# Largest error of a filter's value and slope, relative to the largest value and slope of its set; and in float64.
BOUND, BOUND_DOUBLE = 1e-6, 1e-10


class TabulatedFilters(nn.Module):
    """Callable like `TensorNet.filters`: distances [E], Å -> one [E,3,C] for the embedding and for every layer.

    coefficients [L+1,n,D+1,3,C] of powers of t - origin; own [L+1,3,C], the exact filters of distance 0 (an atom's
    message to itself).

    Args:
        error: The largest measured error of values and of slopes, relative to the largest value and slope of the set,
            in the ranges of distances that a `Spacing` has.
    """

    coefficients: Tensor
    own: Tensor

    def __init__(self, coefficients: Tensor, own: Tensor, stretch: Stretch, error: float, origin: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("coefficients", coefficients)
        self.register_buffer("own", own)
        self.stretch, self.origin = stretch, origin
        self.error = error

    def forward(self, distance: Tensor) -> list[Tensor]:
        x = self.stretch(distance)
        interval = x.detach().long().clamp(0, self.stretch.num_intervals - 1)
        t = (x - interval - self.origin)[:, None, None]
        inside = (distance < self.stretch.cutoff)[:, None, None]
        found = []
        for table, at_zero in zip(self.coefficients, self.own, strict=True):
            *rest, value = table.index_select(0, interval).unbind(1)
            for coefficient in reversed(rest):
                value = coefficient + t * value
            value = torch.where(inside, value, 0.0)
            found.append(torch.where((distance == 0)[:, None, None], at_zero, value))
        return found


@isolated
def tabulate(
    network: Any,
    bound: float = BOUND,
    dtype: torch.dtype = torch.float32,
    polynomial: Polynomial = FIFTH,
    name: str | None = None,
) -> TabulatedFilters:
    """Table of a network's filters whose measured error is within `bound`, on the network's device.

    Small tables decide the spacing of the knots, by the rule of `dtype`. The number of intervals follows from the error
    of the slope, which is proportional to its power of minus the degree. A table of MOST_INTERVALS, or one that more
    intervals do not improve, is returned whatever its error: see `.error`.

    Args:
        network: A TensorNet, or another module with the `config`, `norm` and `filters(distances)` of a TensorNet.
        name: That identifies the network: the spacing that was found for it is noted in the cache, and found there,
            which takes a fifth of the time. The table is the same.

    Raises:
        ValueError: If the bound is not > 0.
    """
    if not bound > 0:
        raise ValueError(f"bound must be > 0, got {bound}")
    exact, cutoff = copy.deepcopy(network).double(), float(network.config.cutoff)
    spacing, degree = FOR_FLOAT64 if dtype == torch.float64 else FOR_FLOAT32, polynomial.degree
    # One thread: equal bits whatever their number, and no waiting for others on a busy machine, which took a minute.
    with torch.no_grad(), limited_to(1):
        known = None if name is None else name_of(name, bound, degree, spacing.facts)
        table = None if known is None else _built_before(exact, known, cutoff, polynomial, spacing.ranges)
        if table is not None:
            return table.to(dtype)
        table = min(
            (_build(exact, stretch, polynomial, spacing.ranges) for stretch in spacing.first(cutoff)),
            key=lambda table: spacing.cost(table.stretch, table.error / bound, degree),
        )
        while bound < table.error < math.inf and table.stretch.num_intervals < MOST_INTERVALS:
            finer = _build(exact, spacing.finer(table.stretch, table.error / bound, degree), polynomial, spacing.ranges)
            if finer.error > table.error and table.error < FINEST:
                break
            table = finer
    if known is not None:
        stretch = table.stretch
        note(NOTES, known, [stretch.num_intervals, stretch.uniform, stretch.decay, table.error])
    return table.to(dtype)


def _built_before(
    network: Any, known: str, cutoff: float, polynomial: Polynomial, ranges: Ranges
) -> TabulatedFilters | None:
    """The table of a spacing that was noted; None if there is none, or if its error is not what it was."""
    match noted(NOTES, known):
        case [int(count), float(uniform), float(decay), float(error)] if 0 < count <= MOST_INTERVALS:
            table = _build(network, Stretch(count, cutoff, uniform, decay), polynomial, ranges)
            return table if table.error == error else None
    return None


def _filters(network: Any, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Exact filters [L+1,E,3,C] and their slopes."""
    return _with_slopes(lambda r: torch.stack(network.filters(r)), distance)


def _with_slopes(function: Callable[[Tensor], Tensor], distance: Tensor) -> tuple[Tensor, Tensor]:
    """Values [L+1,E,3,C] of a function of each distance alone, and their slopes.

    Two reverse derivatives: the gradient of a weighted sum is linear in the weights, and its derivative in them is the
    slopes. torch's forward mode would import torch._dynamo, and `grad_outputs` sympy: seconds of the first step.
    """
    with torch.enable_grad():
        distance = distance.detach().requires_grad_()
        values = function(distance)
        weights = torch.zeros_like(values, requires_grad=True)
        (gradient,) = torch.autograd.grad((weights * values).sum(), distance, create_graph=True)
        (slopes,) = torch.autograd.grad(gradient.sum(), weights)
    return values.detach(), slopes


def _build(network: Any, stretch: Stretch, polynomial: Polynomial, ranges: Ranges) -> TabulatedFilters:
    """A float64 table and its error against the exact filters."""
    n = stretch.num_intervals
    options: dict[str, Any] = dict(dtype=torch.float64, device=network.norm.weight.device)
    place, count = torch.tensor(polynomial.nodes, **options), len(polynomial.nodes)
    distance = stretch.inverse((torch.arange(n, **options)[:, None] + place).flatten())
    # Value and slope of the filters are 0 at the cutoff; a rounded distance would leave a step there.
    distance[0], distance[-1] = stretch.cutoff, 0.0
    values, slopes = _filters(network, distance)
    slopes = slopes / stretch.slope(distance)[:, None, None]
    own = values[:, -1].clone()
    if not getattr(network.config, "self_message", True):
        own.zero_()
    values, slopes = (x.unflatten(1, (n, count)) for x in (values, slopes))
    # Of differences from a value of the interval, which are small and lose the least.
    level = values[:, :, count // 2]
    given = torch.stack([values - level[:, :, None], slopes], dim=3).flatten(2, 3)
    coefficients = torch.einsum("pq,lnqsc->lnpsc", polynomial.solve.to(given.device), given)
    coefficients[:, :, 0] += level
    table = TabulatedFilters(coefficients, own, stretch, math.inf, polynomial.origin)
    table.error = _error(network, table, ranges)
    return table


def _error(network: Any, table: TabulatedFilters, ranges: Ranges) -> float:
    """Largest error of value or slope at PROBES, relative to the largest value or slope of each set of filters.

    In each range of distances, divided by its factor: see `Spacing`.
    """
    n, cutoff = table.stretch.num_intervals, table.stretch.cutoff
    device = table.own.device
    worst = 0.0
    for probe in PROBES:
        x = torch.arange(n, dtype=torch.float64, device=device) + probe
        r = table.stretch.inverse(x)
        tabulated = _with_slopes(lambda s: torch.stack(table(s)), r)
        for exact, approximate in zip(_filters(network, r), tabulated, strict=True):
            largest, errors = (found.abs().amax(dim=(2, 3)) for found in (exact, exact - approximate))
            least = (SMALLEST * largest.amax(1)).clamp(min=torch.finfo(torch.float64).tiny)[:, None]
            for start, factor in ranges:
                inside = r >= start * cutoff
                scale = (largest * inside).amax(1, keepdim=True).clamp(min=least)
                error = float((errors * inside / scale).max()) / factor
                worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


class RadialShares(nn.Module):
    """The parts of a TensorNet2 that depend on distances alone, for `tabulate`: distances -> [E,3,C] per table.

    The filters of the embedding; then, for each layer, the radial part of the first map of the filters' network with
    its bias, as the first of three parts. The other two are zero.
    """

    def __init__(self, network: TensorNet2) -> None:
        super().__init__()
        self.network, self.config, self.norm = network, network.config, network.norm

    def filters(self, distance: Tensor) -> list[Tensor]:
        radial = self.network.basis(distance)
        envelope = cosine_cutoff(distance, float(self.config.cutoff))[:, None]
        found = [self.network.embedding.filter(radial, envelope)]
        for layer in self.network.layers:
            assert isinstance(layer, Interaction)
            first = layer.filters[0]
            assert isinstance(first, nn.Linear)
            share = nn.functional.linear(radial, first.weight[:, : radial.shape[1]], first.bias)
            nothing = torch.zeros_like(share)
            found.append(torch.stack([share, nothing, nothing], dim=1))
        return found


# A table takes one or two seconds to compute and a few MB. The last ones are cached by the weights of their network.
MOST_KEPT = 16
_kept: dict[str, TabulatedFilters] = {}
_lock = threading.Lock()


def table_of(
    network: TensorNet | TensorNet2, of: Callable[[Any], nn.Module] = lambda network: network
) -> TabulatedFilters:
    """The network's table in its dtype and on its device, within its bound if MOST_INTERVALS suffice.

    Networks with bit-identical weights share one table. of: returns the module with the filters of a network.
    """
    filters = of(network)
    key = fingerprint(filters)
    with _lock:
        table = _kept.get(key)
    if table is None:
        dtype = network.readout.weight.dtype
        rule = (BOUND_DOUBLE, dtype, NINTH) if dtype == torch.float64 else (BOUND, dtype, FIFTH)
        table = tabulate(filters, *rule, key)
    with _lock:
        _kept.pop(key, None)
        _kept[key] = table  # the newest is the last entry
        while len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
    return table


def fingerprint(network: nn.Module) -> str:
    """SHA-256 of a network's modules, settings, weights and buffers. Copies them from the device."""
    digest = hashlib.sha256(f"{network} {getattr(network, 'config', None)}".encode())
    with torch.no_grad():
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.device}".encode())
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
