"""TensorNet and TensorNet2 on pairs: what depends on a distance once a pair, messages as forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.engines.pairs.filters import ROWS, edge_filters, linear, pair_filters, through
from torchmdx.engines.pairs.messages import EdgeMessages, Messages, Surroundings
from torchmdx.engines.pairs.multilinear import Form, partial, quadratic
from torchmdx.engines.pairs.pair_list import PairList, sum_rows, take_rows
from torchmdx.engines.pairs.products import PartLinear, PartSums, Products
from torchmdx.engines.pairs.silu import activate
from torchmdx.models.charge_equilibration import LEAST_SHARE, ChargeEquilibration
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.embedding import TensorEmbedding
from torchmdx.models.interaction import Interaction
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import PartwiseLinear, from_direction
from torchmdx.system import Batch

SCALE, SCALE_PARTS = PartSums(parts=1), PartSums(parts=3)
NORM, NORMS = PartSums(parts=1, metric=True), PartSums(parts=3, metric=True)
LINEAR = PartLinear()


def features(
    network: TensorNet | TensorNet2, pairs: PairList, vectors: Tensor, batch: Batch
) -> tuple[Tensor, Tensor | None]:
    """Features [N,C], and charges [N,(L+1)K] of a TensorNet2, from vectors [P,3] of the pairs."""
    distance = torch.linalg.vector_norm(vectors, dim=-1)
    direction = vectors / distance[:, None]
    # An atom's message to itself has the filter of distance 0, carried as one row more.
    distance = torch.cat([distance, distance.new_zeros(1)])
    radial = network.basis(distance)
    envelope = cosine_cutoff(distance, float(network.config.cutoff))[:, None]
    directions = from_direction(direction)
    # The filter of an atom itself has no direction, which is a constant: only its scalar is seen.
    alone = directions.new_zeros(1, 9)
    alone[:, :1].fill_(1.0)
    directions = torch.cat([directions, alone])
    x = _embedding(network.embedding, pairs, directions, radial, envelope, batch.atomic_numbers)
    if isinstance(network, TensorNet2):
        x, charges = _charged_layers(network, pairs, x, radial, envelope, batch)
    else:
        x, charges = _layers(network, pairs, x, radial, envelope, batch), None
    return read(network, x), charges


def read(network: TensorNet | TensorNet2, x: Tensor) -> Tensor:
    """Features [N,C] from the tensors [N,9,C] of the last layer."""
    norms = quadratic(NORMS, x).flatten(1)
    return activate(network.activation, linear(network.readout, network.norm(norms)))


def _layers(network: TensorNet, pairs: PairList, x: Tensor, radial: Tensor, envelope: Tensor, batch: Batch) -> Tensor:
    charge = batch.charge.index_select(0, batch.system_index)
    for module in network.layers:
        layer = cast(Interaction, module)
        x = _interaction(layer, Messages(pairs), x, pair_filters(layer.filters, radial, envelope), charge)
    return x


def _charged_layers(
    network: TensorNet2, pairs: PairList, x: Tensor, radial: Tensor, envelope: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Tensors of the last layer, and the charges of embedding and layers."""
    first, *others = (cast(ChargeEquilibration, module) for module in network.charges)
    charges = [_equilibrated(first, x, batch)]
    for module, equilibrate in zip(network.layers, others, strict=True):
        layer = cast(Interaction, module)
        a, t, s = _shares(cast(nn.Linear, layer.filters[0]), radial, charges[-1])
        weights = edge_filters(layer, a, t, s, pairs, envelope)
        x = _interaction(layer, EdgeMessages(pairs), x, weights, None)
        charges.append(_equilibrated(equilibrate, x, batch))
    return x, torch.cat(charges, dim=-1)


def _shares(first: nn.Linear, radial: Tensor, charges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first linear map of (basis, charges of target, charges of source), of each of the three alone."""
    width, count = radial.shape[1], charges.shape[1]
    of_pair, of_target, of_source = first.weight.split([width, count, count], dim=1)
    a = nn.functional.linear(radial, of_pair, first.bias).to(radial.dtype)
    t, s = (nn.functional.linear(charges, weight).to(charges.dtype) for weight in (of_target, of_source))
    return a, t, s


def _equilibrated(equilibrate: ChargeEquilibration, x: Tensor, batch: Batch) -> Tensor:
    """As `ChargeEquilibration`, charges [N,K]."""
    norms = quadratic(NORMS, x)
    invariants = torch.cat([x[:, 0], norms[:, 1], norms[:, 2]], dim=-1)
    first, spread = through(equilibrate.network, equilibrate.norm(invariants)).chunk(2, dim=-1)
    share = spread**2 + LEAST_SHARE
    sums = sum_rows(torch.cat([first, share], dim=-1), batch.system_index, batch.num_systems)
    proposed, shares = sums.chunk(2, dim=-1)
    whole = torch.cat([batch.charge[:, None] - proposed, shares + equilibrate.slack], dim=-1)
    missing, shares = take_rows(whole, batch.system_index, batch.num_systems).chunk(2, dim=-1)
    return first + share / shares * missing


def _normalised(x: Tensor) -> Tensor:
    """X / (|X|² + 1)."""
    return partial(SCALE, 0, None, x, 1 / (quadratic(NORM, x) + 1))


def _mixed(linear: PartwiseLinear, x: Tensor) -> Tensor:
    """As `PartwiseLinear`, without copies of parts."""
    weights = torch.stack([linear.scalar.weight, linear.vector.weight, linear.symmetric.weight])
    return partial(LINEAR, 2, x, weights, None)


def _embedding(
    layer: TensorEmbedding, pairs: PairList, directions: Tensor, radial: Tensor, envelope: Tensor, numbers: Tensor
) -> Tensor:
    """As `TensorEmbedding`, tensors [N,9,C]."""
    shares = torch.stack(layer.pair_shares(numbers), 1)
    weights = pair_filters(layer.filters, radial, envelope)
    return gated(layer, partial(Surroundings(pairs), 3, directions, weights, shares, None))


def gated(layer: TensorEmbedding, x: Tensor) -> Tensor:
    """Tensors [N,9,C] from the sums over neighbours [N,9,C], an atom's message to itself among them."""
    gate = through(layer.gate, layer.norm(quadratic(NORM, x).squeeze(1)))
    return partial(SCALE_PARTS, 0, None, _mixed(layer.mix, x), gate.unflatten(-1, (3, layer.num_channels)))


def _interaction(layer: Interaction, messages: Form, x: Tensor, weights: Tensor, charge: Tensor | None) -> Tensor:
    return interaction(layer, x, charge, lambda y: partial(messages, 2, weights, y, None))


def interaction(layer: Interaction, x: Tensor, charge: Tensor | None, received: Callable[[Tensor], Tensor]) -> Tensor:
    """As `Interaction`, tensors [N,9,C]; received: M from Y. Without a charge [N], as if it were 0."""
    x = _normalised(x)
    y = _mixed(layer.mix_in, x)
    m = received(y)
    factor = None if charge is None else (1 + 0.1 * charge)[:, None]
    if layer.reflections:
        p = _times(factor, partial(Products(symmetric=True), 2, y, m, None))
    else:
        p = 2 * partial(Products(symmetric=False), 2, y, m, None)
    d = _mixed(layer.mix_out, _normalised(p))
    # DD is half of DD + DD, whose form is symmetric.
    square = quadratic(Products(symmetric=True), d)
    return torch.add(x + d, square, alpha=0.5) if factor is None else x + d + _times(factor / 2, square)


def _times(factor: Tensor | None, x: Tensor) -> Tensor:
    """x [N,9,C] times factor [N,1]."""
    if factor is None:
        return x
    return partial(ROWS, 2, x.flatten(1), factor, None).unflatten(1, (9, -1))
