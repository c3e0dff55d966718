"""QET (Ko et al., charge-equilibrated TensorNet of matgl): a TensorNet whose atoms exchange charge within a system.

::

    q_i = (μ - χ_i) / η_i,  μ = (Q + Σ_j χ_j / η_j) / Σ_j 1 / η_j                 charges that sum to Q
    V_i = Σ_j w_ij q_j  or, where messages carry an atom's own tensors,  V_i = q_i Σ_j w_ij
    w_ij = k erf(r_ij / (√2 γ_ij)) / r_ij · f(r_ij),  γ_ij² = σ_i² + σ_j²         for neighbours up to the cutoff

χ (electronegativity) and η (hardness) are networks of the features of an atom, or η is a constant of its element. The
charges minimize Σ_i χ_i q_i + η_i q_i² / 2. q and V enter the head with the features; there is no Coulomb energy.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from torchmdx.models.energy_head import GatedHead
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch
from torchmdx.structures.units import COULOMB

HARDNESSES = ("environment", "element")


@dataclass(frozen=True, kw_only=True)
class QETConfig(TensorNetConfig):
    """Settings of a QET: those of its TensorNet with a gated head, and of the equilibration.

    Attributes:
        hardness: "environment", a network of the features of an atom, or "element", a weight of each element.
        coulomb: Energy of two elementary charges 1 Å apart, eV Å.
    """

    charges: ClassVar[bool] = True  # it predicts them
    head: str = "gated"
    num_head_layers: int = 2
    charge_factor: bool = False
    hardness: str = "environment"
    coulomb: float = COULOMB

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("head", "gated"), ("charge_factor", False)):
            if getattr(self, name) != value:
                raise ValueError(f"{name} of a QET must be {value!r}, got {getattr(self, name)!r}")
        if self.hardness not in HARDNESSES:
            raise ValueError(f"hardness must be one of {', '.join(HARDNESSES)}, got {self.hardness!r}")
        number = isinstance(self.coulomb, (int, float)) and not isinstance(self.coulomb, bool)
        if not number or not 0 < self.coulomb < math.inf:
            raise ValueError(f"coulomb must be > 0 eV Å and finite, got {self.coulomb!r}")


class LinearEquilibration(nn.Module):
    """χ [N] and η [N] of atoms, and the widths σ of their charges, from features [N,C]."""

    widths: Tensor

    def __init__(self, config: QETConfig) -> None:
        super().__init__()
        channels = config.num_channels
        self.electronegativity = _network(channels, nn.SiLU)
        self.by_element = config.hardness == "element"
        if self.by_element:
            self.element_hardness = nn.Embedding(config.max_z + 1, 1)
            nn.init.ones_(self.element_hardness.weight)
        else:
            self.hardness = _network(channels, nn.Softplus)
        self.register_buffer("widths", torch.ones(config.max_z + 1))

    def width(self, atomic_numbers: Tensor) -> Tensor:
        """σ [N], Å."""
        return self.widths.index_select(0, atomic_numbers)


def charges_of(share: Tensor, chemical_potential: Tensor) -> Tensor:
    """q = (μ - χ) / η [N] from shares [N,2] and μ [N] of the system of each atom."""
    return chemical_potential * share[:, 1] - share[:, 0]


def chemical_potential(sums: Tensor, charge: Tensor) -> Tensor:
    """μ [S] from the sums [S,2] of shares and total charges [S]; 0 for a system without atoms."""
    softness = torch.where(sums[:, 1] > 0, sums[:, 1], 1.0)
    return (charge + sums[:, 0]) / softness


def unit_potential(distance: Tensor, squared_width: Tensor, config: QETConfig) -> Tensor:
    """w = k erf(r / (√2 γ)) / r · f(r), from r and γ² of the same shape; 0 beyond the cutoff.

    f(r) = 1 - 10 x³ + 15 x⁴ - 6 x⁵, x = r / cutoff
    """
    cutoff = float(config.cutoff)
    inside = distance < cutoff
    r = torch.where(inside, distance, cutoff)
    x = r / cutoff
    envelope = 1 - 10 * x**3 + 15 * x**4 - 6 * x**5
    smeared = torch.erf(r / torch.sqrt(2 * squared_width)) / r
    return torch.where(inside, config.coulomb * smeared * envelope, 0.0)


class QET(nn.Module):
    """Features [N,C+2] of atoms, those of a TensorNet, q and V, normalised together; and charges [N,1]."""

    def __init__(self, config: QETConfig) -> None:
        super().__init__()
        self.config = config
        self.tensornet = TensorNet(config)
        self.equilibration = LinearEquilibration(config)
        self.norm = nn.LayerNorm(config.num_channels + 2)

    def with_tensornet(self, tensornet: nn.Module) -> QET:
        """The same network, sharing its weights, with another module that computes the features of the TensorNet."""
        other = copy.copy(self)
        other._modules = {**self._modules, "tensornet": tensornet}
        return other

    def forward(self, edges: Edges, vectors: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """From edge vectors [E,3] Å."""
        x = self.tensornet(edges, vectors, batch.atomic_numbers, batch.charge.index_select(0, batch.system_index))
        return self.equilibrated(x, edges, torch.linalg.vector_norm(vectors, dim=-1), batch)

    def equilibrated(self, x: Tensor, edges: Edges, distance: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Features [N,C+2] and charges [N,1] from the features [N,C] of the TensorNet and distances [E] Å."""
        charges = self.charges(x, batch)
        squares = self.equilibration.width(batch.atomic_numbers) ** 2
        at_both = squares.index_select(0, edges.target) + squares.index_select(0, edges.source)
        sender = edges.source if self.config.messages == "source" else edges.target
        of_edges = unit_potential(distance, at_both, self.config) * charges.index_select(0, sender)
        potential = torch.zeros_like(charges).index_add(0, edges.target, of_edges)
        joined = self.norm(torch.cat([x, charges[:, None], potential[:, None]], dim=-1))
        return joined, charges[:, None]

    def shares(self, x: Tensor, atomic_numbers: Tensor) -> Tensor:
        """(χ/η, 1/η) [N,2], whose sums over a system determine μ."""
        parts = self.equilibration
        if parts.by_element:
            hardness = parts.element_hardness(atomic_numbers)
        else:
            hardness = parts.hardness(x)
        softness = 1 / hardness
        return torch.cat([parts.electronegativity(x) * softness, softness], dim=-1)

    def charges(self, x: Tensor, batch: Batch) -> Tensor:
        """q [N], e, from the features [N,C] of the TensorNet."""
        share, index = self.shares(x, batch.atomic_numbers), batch.system_index
        sums = share.new_zeros(batch.num_systems, 2).index_add(0, index, share)
        return charges_of(share, chemical_potential(sums, batch.charge).to(x.dtype).index_select(0, index))


def make_qet_head(config: QETConfig) -> GatedHead:
    """A gated head of C+2 features, whose first hidden layer is as wide; the others have C channels."""
    return GatedHead(config.num_channels, config.activation, config.num_head_layers, config.num_channels + 2)


def _network(channels: int, activation: type[nn.Module]) -> nn.Sequential:
    """C -> C -> C -> 1, with an activation after every map."""
    widths = (channels, channels, channels, 1)
    maps = [nn.Linear(one, other) for one, other in itertools.pairwise(widths)]
    return nn.Sequential(*(module for each in maps for module in (each, activation())))
