"""The uncertainty of forces by the rigidity of a last layer, which takes a backward pass for each of its inputs.

With f the inputs of the last layer of a structure, and R of `Uncertainty.root`::

    σ(F_i)² = (b/a)² Σ_k |∂(fᵀ R)_k / ∂r_i|²

the sum of the variances of the three components of the force on atom i. b is the factor of forces.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from torchmdx.engines.pairs.energy import pairwise_energy
from torchmdx.engines.plan import Network
from torchmdx.evaluation.properties.pairs import Pairs
from torchmdx.models.potential import Potential
from torchmdx.runtime.device_guard import device_of_potential, runs_on
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system import System


@runs_on(device_of_potential)
@isolated
def force_uncertainties(potential: Potential, system: System) -> Tensor:
    """σ(F_i) [N] of the force on each atom, eV/Å, float64; the length of the deviation, as that of a spread.

    It takes a backward pass of the network for each input of the last layer: some 65 times the time of an evaluation.

    Raises:
        ValueError: For a potential that does not know its uncertainty, and as `Pairs.of`.
    """
    known = potential.uncertainty
    if known is None:
        raise ValueError(
            f"uncertainties of forces need a potential that knows its uncertainty, got {potential.card.title} without: "
            "`torchmdx uncertainty FILE DATA` adds it"
        )
    if not system.num_atoms:
        return torch.zeros(0, dtype=torch.float64, device=potential.device)
    pairs = Pairs.of(potential, system)
    with torch.enable_grad():
        positions = pairs.batch.positions.detach().requires_grad_()
        inputs = potential.head.last_layer_inputs(_features(potential, pairs, positions))
        columns = inputs.double().sum(0) @ known.root.to(potential.device)
        squares = positions.new_zeros(system.num_atoms)
        for column in columns:
            (slope,) = torch.autograd.grad(
                column, positions, retain_graph=True, materialize_grads=True, allow_unused=True
            )
            squares = squares + (slope**2).sum(-1)
    return known.force_factor_or_factor / known.factor * squares.detach().sqrt()


def _features(potential: Potential, pairs: Pairs, positions: Tensor) -> Tensor:
    """Features [N,C], from the network on pairs, or for other models from the reference."""
    batch, edges, seen = pairs.batch, pairs.edges, list[Tensor]()
    if Network.of(potential).has_pairs:
        bare = potential.with_priors(())
        pairwise_energy(bare, batch, edges, pairs.reverse, positions, seen=seen.append)
        return seen[0]
    dtype = potential.dtype
    vectors = edges.vectors(positions, batch.cell, batch.system_index).to(dtype)
    rounded = replace(batch, positions=positions.detach().to(dtype), cell=batch.cell.to(dtype))
    return potential.features(rounded, edges, vectors)[0]
