"""TensorNet for training: filters once a pair, nothing per edge in memory, differentiable as often as it takes.

The same weights and the same numbers as `torchmdx.models.tensornet`, which stays the reference. What is different is
the order of the work: what depends on a distance is computed for pairs, and messages are the multilinear forms of
`torchmdx.models.forms`, whose derivatives of any order are forms again. Sums run in a fixed order, so that a step
repeated on a GPU gives the same bits. Nothing is read on the host, and all shapes are those of the list's capacity.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.forces import Result, per_volume
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.embedding import TensorEmbedding
from torchmdx.models.forms import Messages, PartLinear, PartSums, Products, RowScale, Surroundings
from torchmdx.models.heads import ScalarHead
from torchmdx.models.interaction import Interaction
from torchmdx.models.multilinear import partial, quadratic
from torchmdx.models.pairs import PairList, sum_rows
from torchmdx.models.potential import Potential
from torchmdx.models.smooth import activate, activate_rows
from torchmdx.models.tensornet import TensorNet
from torchmdx.models.tensors import PartwiseLinear, from_direction
from torchmdx.neighbors.edges import Edges
from torchmdx.system import Batch

SCALE, SCALE_PARTS = PartSums(parts=1), PartSums(parts=3)
NORM, NORMS = PartSums(parts=1, metric=True), PartSums(parts=3, metric=True)
LINEAR, ROWS = PartLinear(), RowScale()


def pairwise_energy(
    potential: Potential, batch: Batch, edges: Edges, reverse: Tensor, positions: Tensor, strain: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Energies [S] and of atoms [N], eV, float64, of a TensorNet potential.

    Differentiable in positions [N,3], strain [S,3,3] and weights.

    edges, reverse: of an EdgeSearch with reverse=True. strain: symmetric; see `torchmdx.forces.strained`.
    """
    network = potential.network
    pairs = PairList.of(edges, reverse)
    vectors = pairs.vectors(positions, batch.cell, batch.system_index, strain)
    charge = batch.charge.index_select(0, batch.system_index)
    features = _features(network, pairs, vectors, batch.atomic_numbers, charge)
    output = potential.head.network
    outputs = _linear(output[2], activate(output[1], _linear(output[0], features))).squeeze(-1)
    energies = outputs.double() * potential.scale
    energies = energies + potential.reference_energies.index_select(0, batch.atomic_numbers)
    shares = potential.shift / batch.counts().clamp(min=1)
    energies = energies + shares.index_select(0, batch.system_index)
    return sum_rows(energies, batch.system_index, batch.num_systems), energies


def _features(network: TensorNet, pairs: PairList, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
    """Features [N,C] from vectors [P,3] of the pairs."""
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
    x = _embedding(network.embedding, pairs, directions, radial, envelope, atomic_numbers)
    for module in network.layers:
        layer = cast(Interaction, module)
        x = _interaction(layer, pairs, x, _filters(layer.filters, radial, envelope), charge)
    norms = quadratic(NORMS, x).flatten(1)
    return activate(network.activation, _linear(network.readout, network.norm(norms)))


def _filters(network: nn.Module, radial: Tensor, envelope: Tensor) -> Tensor:
    """Filters [P+1,3,C] of a layer, or of the embedding, from the basis [P+1,R] and the cutoff function [P+1,1]."""
    values, modules = radial, list(network) if isinstance(network, nn.Sequential) else [network]
    together = isinstance(modules[-1], nn.SiLU)
    for module in modules[:-1] if together else modules:
        values = _linear(module, values) if isinstance(module, nn.Linear) else activate(module, values)
    values = activate_rows(values, envelope) if together else partial(ROWS, 2, values, envelope, None)
    return values.unflatten(-1, (3, values.shape[-1] // 3))


def _linear(module: nn.Module, x: Tensor) -> Tensor:
    """A linear map whose result has the dtype of x, under autocast as well."""
    return cast(Tensor, module(x)).to(x.dtype)


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
    weights = _filters(layer.filters, radial, envelope)
    x = partial(Surroundings(pairs), 3, directions, weights, shares, None)
    first, act, second, last = layer.gate
    hidden = activate(act, _linear(first, layer.norm(quadratic(NORM, x).squeeze(1))))
    gate = activate(last, _linear(second, hidden))
    return partial(SCALE_PARTS, 0, None, _mixed(layer.mix, x), gate.unflatten(-1, (3, layer.num_channels)))


def _interaction(layer: Interaction, pairs: PairList, x: Tensor, weights: Tensor, charge: Tensor) -> Tensor:
    """As `Interaction`, tensors [N,9,C]."""
    x = _normalised(x)
    y = _mixed(layer.mix_in, x)
    m = partial(Messages(pairs), 2, weights, y, None)
    factor = (1 + 0.1 * charge)[:, None]
    if layer.reflections:
        p = _times(factor, partial(Products(symmetric=True), 2, y, m, None))
    else:
        p = 2 * partial(Products(symmetric=False), 2, y, m, None)
    d = _mixed(layer.mix_out, _normalised(p))
    # DD is half of DD + DD, whose form is symmetric.
    return x + d + _times(factor / 2, quadratic(Products(symmetric=True), d))


def _times(factor: Tensor, x: Tensor) -> Tensor:
    """x [N,9,C] times factor [N,1]."""
    return partial(ROWS, 2, x.flatten(1), factor, None).unflatten(1, (9, -1))


def differentiate_pairwise(
    potential: Potential,
    batch: Batch,
    edges: Edges,
    reverse: Tensor,
    *,
    forces: bool = True,
    stress: bool = False,
    create_graph: bool = True,
) -> Result:
    """As `torchmdx.forces.differentiate`; reverse: the slot of each edge's other direction [E]."""
    with torch.enable_grad():
        positions = batch.positions.detach().requires_grad_()
        strain = symmetric = None
        if stress:
            strain = positions.new_zeros(batch.num_systems, 3, 3).requires_grad_()
            symmetric = (strain + strain.transpose(1, 2)) / 2
        energy, energies = pairwise_energy(potential, batch, edges, reverse, positions, symmetric)
        inputs = ([positions] if forces else []) + ([] if strain is None else [strain])
        found = iter(torch.autograd.grad(energy.sum(), inputs, create_graph=create_graph) if inputs else ())
    if not create_graph:
        energy, energies = energy.detach(), energies.detach()
    return Result(
        energy=energy,
        energies=energies,
        forces=-next(found) if forces else None,
        stress=per_volume(next(found), batch.cell) if stress else None,
    )


def serves(potential: Potential) -> bool:
    """Whether a potential is one that this module computes: a TensorNet with a plain head, and no priors."""
    if type(potential.network) is not TensorNet or type(potential.head) is not ScalarHead:
        return False
    return not potential.prior_configs and not potential.config.num_head_layers
