"""TensorNet and TensorNet2 on pairs: functions of the distance once per pair, messages as multilinear forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.engines.pairs.atom_functions import NORM, normalised, product, updated
from torchmdx.engines.pairs.filters import edge_filters, linear, pair_filters, through
from torchmdx.engines.pairs.messages import EdgeMessages, Messages, SurroundingsForm
from torchmdx.engines.pairs.multilinear import Form, partial, quadratic
from torchmdx.engines.pairs.pair_list import PairList, sum_rows, take_rows
from torchmdx.engines.pairs.pair_values import pair_values
from torchmdx.engines.pairs.products import PartLinear, PartSums, Products
from torchmdx.engines.pairs.qet import joined_features
from torchmdx.engines.pairs.row_norm import normalised_rows
from torchmdx.engines.pairs.silu import activate
from torchmdx.models.charge_equilibration import LEAST_SHARE, ChargeEquilibration
from torchmdx.models.embedding import TensorEmbedding
from torchmdx.models.interaction import Interaction
from torchmdx.models.qet import QET
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import PartwiseLinear
from torchmdx.structures.system import Batch

SCALE_PARTS, NORMS = PartSums(parts=3), PartSums(parts=3, metric=True)
LINEAR = PartLinear()


def features(
    network: TensorNet | TensorNet2 | QET, pairs: PairList, vectors: Tensor, batch: Batch
) -> tuple[Tensor, Tensor | None]:
    """Features [N,C], and charges [N,(L+1)K] of a TensorNet2 or [N,1] of a QET, from vectors [P,3] of the pairs."""
    if isinstance(network, QET):
        x, _ = features(network.tensornet, pairs, vectors, batch)
        return joined_features(network, x, pairs, vectors, batch)
    directions, radial, envelope = pair_values(network, vectors)
    x = _embedding(network.embedding, pairs, directions, radial, envelope, batch.atomic_numbers)
    if isinstance(network, TensorNet2):
        x, charges = _charged_layers(network, pairs, x, radial, envelope, batch)
    else:
        x, charges = _layers(network, pairs, x, radial, envelope, batch), None
    return read(network, x), charges


def read(network: TensorNet | TensorNet2, x: Tensor) -> Tensor:
    """Features [N,C] from the tensors [N,9,C] of the last layer."""
    norms = quadratic(NORMS, x).flatten(1)
    features = linear(network.readout, normalised_rows(network.norm, norms))
    return activate(network.activation, features) if network.config.readout_activation else features


def _layers(network: TensorNet, pairs: PairList, x: Tensor, radial: Tensor, envelope: Tensor, batch: Batch) -> Tensor:
    charge = batch.charge.index_select(0, batch.system_index) if network.config.charge_factor else None
    for module in network.layers:
        layer = cast(Interaction, module)
        x = _interaction(layer, Messages(pairs), x, pair_filters(layer.filters, radial, envelope), charge)
    return x


def _charged_layers(
    network: TensorNet2, pairs: PairList, x: Tensor, radial: Tensor, envelope: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Tensors of the last layer, and the charges of the embedding and of all layers."""
    first, *others = (cast(ChargeEquilibration, module) for module in network.charges)
    charges = [_equilibrated(first, x, batch)]
    for module, equilibrate in zip(network.layers, others, strict=True):
        layer = cast(Interaction, module)
        a, t, s = _first_linear(cast(nn.Linear, layer.filters[0]), radial, charges[-1])
        weights = edge_filters(layer, a, t, s, pairs, envelope)
        x = _interaction(layer, EdgeMessages(pairs), x, weights, None)
        charges.append(_equilibrated(equilibrate, x, batch))
    return x, torch.cat(charges, dim=-1)


def _first_linear(first: nn.Linear, radial: Tensor, charges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Terms of the first linear map of (basis, charges of target, charges of source), one from each of the three."""
    width, count = radial.shape[1], charges.shape[1]
    of_pair, of_target, of_source = first.weight.split([width, count, count], dim=1)
    a = nn.functional.linear(radial, of_pair, first.bias).to(radial.dtype)
    t, s = (nn.functional.linear(charges, weight).to(charges.dtype) for weight in (of_target, of_source))
    return a, t, s


def _equilibrated(equilibrate: ChargeEquilibration, x: Tensor, batch: Batch) -> Tensor:
    """As `ChargeEquilibration`, charges [N,K]."""
    norms = quadratic(NORMS, x)
    invariants = torch.cat([x[:, 0], norms[:, 1], norms[:, 2]], dim=-1)
    proposed, root_weight = through(equilibrate.network, normalised_rows(equilibrate.norm, invariants)).chunk(2, dim=-1)
    weight = root_weight**2 + LEAST_SHARE
    sums = sum_rows(torch.cat([proposed, weight], dim=-1), batch.system_index, batch.num_systems)
    charge_sum, weight_sum = sums.chunk(2, dim=-1)
    of_systems = torch.cat([batch.charge[:, None] - charge_sum, weight_sum + equilibrate.slack], dim=-1)
    missing, weight_sum = take_rows(of_systems, batch.system_index, batch.num_systems).chunk(2, dim=-1)
    return proposed + weight / weight_sum * missing


def _mixed(linear: PartwiseLinear, x: Tensor) -> Tensor:
    """As `PartwiseLinear`, without copying the parts."""
    weights = torch.stack([linear.scalar.weight, linear.vector.weight, linear.symmetric.weight])
    return partial(LINEAR, 2, x, weights, None)


def _embedding(
    layer: TensorEmbedding, pairs: PairList, directions: Tensor, radial: Tensor, envelope: Tensor, numbers: Tensor
) -> Tensor:
    """As `TensorEmbedding`, tensors [N,9,C]."""
    elements = torch.stack(layer.pair_shares(numbers), 1)
    weights = pair_filters(layer.filters, radial, envelope)
    return gated(layer, partial(SurroundingsForm(pairs), 3, directions, weights, elements, None))


def gated(layer: TensorEmbedding, x: Tensor) -> Tensor:
    """Tensors [N,9,C] from the sums over neighbours [N,9,C], which include an atom's message to itself."""
    gate = through(layer.gate, normalised_rows(layer.norm, quadratic(NORM, x).squeeze(1)))
    return partial(SCALE_PARTS, 0, None, _mixed(layer.mix, x), gate.unflatten(-1, (3, layer.num_channels)))


def _interaction(layer: Interaction, messages: Form, x: Tensor, weights: Tensor, charge: Tensor | None) -> Tensor:
    return interaction(layer, x, charge, lambda y: partial(messages, 2, weights, y, None))


def interaction(layer: Interaction, x: Tensor, charge: Tensor | None, received: Callable[[Tensor], Tensor]) -> Tensor:
    """As `Interaction`, tensors [N,9,C]; received: computes M from Y of the sources. charge [N]: None means 0."""
    x = normalised(x)
    y = _mixed(layer.mix_in, x)
    # Without gathering, the sum of filters is what neighbours send whose tensors are ones.
    m = received(y) if layer.gathers else received(torch.ones_like(y)) * y
    factor = None if charge is None else (1 + 0.1 * charge)[:, None]
    p = product(y, m, factor) if layer.reflections else 2 * partial(Products(symmetric=False), 2, y, m, None)
    return updated(x, _mixed(layer.mix_out, normalised(p)), factor)
