"""TensorNet2 (Farr et al., arXiv 2601.00581): TensorNet whose messages depend on partial charges that it predicts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.models.activations import ACTIVATIONS
from torchmdx.models.charge_equilibration import ChargeEquilibration
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.embedding import TensorEmbedding, geometry
from torchmdx.models.interaction import Interaction, message
from torchmdx.models.radial import RADIAL_BASES
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensors import invariants
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch

MOST_CHARGES = 1024  # an upper bound like those of a TensorNet


@dataclass(frozen=True, kw_only=True)
class TensorNet2Config(TensorNetConfig):
    """Settings of a TensorNet2: those of a TensorNet, and the number of charge channels."""

    num_charges: int = 16  # K, sets of partial charges that each layer predicts
    charge_slack: float = 0.0  # slack of ChargeEquilibration; 1e-6 for models that torchmd-net trained

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = {field.name: field.default for field in fields(TensorNetConfig)}
        for name in ("head", "messages", "self_message", "readout_activation", "charge_factor"):
            if getattr(self, name) != plain[name]:
                raise ValueError(f"{name} of a TensorNet2 must be {plain[name]!r}, got {getattr(self, name)!r}")
        value = self.num_charges
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"num_charges must be a whole number >= 1, got {value!r}")
        if value > MOST_CHARGES:
            raise ValueError(f"num_charges must be <= {MOST_CHARGES}, got {value}")
        slack = self.charge_slack
        if isinstance(slack, bool) or not isinstance(slack, (int, float)) or not 0 <= slack < 1:
            raise ValueError(f"charge_slack must be >= 0 and < 1, got {slack!r}")


class TensorNet2(nn.Module):
    """Features [N,C] as of TensorNet, and the partial charges [N,K] of the embedding and of every layer.

    X⁰ = embedding,  X^{l+1} = interaction_l(X^l, q^l),  q^l = equilibration_l(X^l)

    The filters of an interaction are a network of (radial basis, charges of the target, charges of the source), times
    the cosine cutoff. The factor 1 + q/10 of TensorNet is 1: the total charge enters through the equilibration only.
    """

    def __init__(self, config: TensorNet2Config) -> None:
        super().__init__()
        self.config = config
        channels, charges, cutoff = config.num_channels, config.num_charges, float(config.cutoff)
        self.basis = RADIAL_BASES[config.radial_basis](config.num_radial, cutoff, config.trainable_basis)
        self.activation = ACTIVATIONS[config.activation]()
        self.embedding = TensorEmbedding(channels, config.num_radial, self.activation, config.max_z)
        self.layers = nn.ModuleList(
            Interaction(channels, config.num_radial + 2 * charges, self.activation, config.group == "O(3)")
            for _ in range(config.num_layers)
        )
        self.charges = nn.ModuleList(
            ChargeEquilibration(channels, charges, self.activation, float(config.charge_slack))
            for _ in range(config.num_layers + 1)
        )
        self.norm = nn.LayerNorm(3 * channels)
        self.readout = nn.Linear(3 * channels, channels)

    def forward(self, edges: Edges, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features [N,C], and charges [N,(L+1)K] of embedding and layers, from edge vectors [E,3] Å."""
        distance, direction = geometry(vectors)
        # The last row is at distance 0, for an atom's message to itself.
        distance = torch.cat([distance, distance.new_zeros(1)])
        radial, envelope = self.basis(distance), cosine_cutoff(distance, float(self.config.cutoff))[:, None]
        x = self.embedding(edges, self.embedding.filter(radial, envelope), direction, batch.atomic_numbers)
        first, *others = self.charges
        charges = [first(x, batch)]
        for layer, equilibrate in zip(self.layers, others, strict=True):
            x = self.interact(cast(Interaction, layer), x, charges[-1], edges, radial, envelope)
            charges.append(equilibrate(x, batch))
        return self.activation(self.readout(self.norm(invariants(x)))), torch.cat(charges, dim=-1)

    def interact(
        self, layer: Interaction, x: Tensor, charges: Tensor, edges: Edges, radial: Tensor, envelope: Tensor
    ) -> Tensor:
        """One layer: tensors [N,9,C] from tensors, charges [N,K], basis [E+1,R] and cutoff function [E+1,1]."""
        at_target, at_source = charges.index_select(0, edges.target), charges.index_select(0, edges.source)
        weights = layer.filter(torch.cat([radial[:-1], at_target, at_source], dim=-1), envelope[:-1])
        at_zero = radial[-1:].expand(len(x), -1)
        own = layer.filter(torch.cat([at_zero, charges, charges], dim=-1), envelope[-1:])
        x, y = layer.send(x)
        m = message(edges.target, weights, own, y, y.index_select(0, edges.source))
        return layer.receive(x, y, m, charges.new_zeros(len(x)))
