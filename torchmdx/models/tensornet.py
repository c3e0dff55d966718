"""TensorNet (Simeon & De Fabritiis, NeurIPS 2023, arXiv 2306.06482): invariant features of each atom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmdx.models.activations import ACTIVATIONS
from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.embedding import TensorEmbedding, geometry
from torchmdx.models.energy_head import HEADS
from torchmdx.models.interaction import Interaction
from torchmdx.models.radial import RADIAL_BASES
from torchmdx.models.tensors import invariants
from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system_fields import LAST_ELEMENT

# Upper bounds, far above any model in use: a damaged configuration must not request huge amounts of memory.
MOST = {"num_channels": 4096, "num_layers": 64, "num_radial": 4096, "num_head_layers": 64, "max_z": LAST_ELEMENT}
SHORTEST_CUTOFF, LONGEST_CUTOFF = 0.1, 100.0  # Å


@dataclass(frozen=True, kw_only=True)
class TensorNetConfig:
    """Settings of a TensorNet, checked on construction."""

    num_channels: int = 128  # C, tensors per atom
    num_layers: int = 2  # interaction layers; 0: only the embedding
    num_radial: int = 32  # R, functions in the radial basis
    radial_basis: str = "expnorm"  # "expnorm", "gauss" or "bessel"
    trainable_basis: bool = False
    activation: str = "silu"
    cutoff: float = 5.0  # Å
    max_z: int = 100  # largest atomic number the model supports
    group: str = "O(3)"  # "O(3)": mirror images have equal energies; "SO(3)": they may differ
    num_head_layers: int = 0  # hidden layers of the head beyond the first
    head: str = "scalar"  # "scalar"; "gated": wider, times the sigmoid of a second network of the same size
    messages: str = "source"  # whose tensors a message carries: "source", the neighbour's; "target", the atom's own
    self_message: bool = True  # an atom is its own neighbour at distance 0
    readout_activation: bool = True  # the activation is applied to the features
    charge_factor: bool = True  # the total charge q scales tensor products, by 1 + q/10

    def __post_init__(self) -> None:
        least = {"num_channels": 2, "num_layers": 0, "num_radial": 2, "max_z": 1, "num_head_layers": 0}
        for name, bound in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < bound:
                raise ValueError(f"{name} must be a whole number >= {bound}, got {value!r}")
            if value > MOST[name]:
                raise ValueError(f"{name} must be <= {MOST[name]}, got {value}")
        if isinstance(self.cutoff, bool) or not isinstance(self.cutoff, (int, float)):
            raise ValueError(f"cutoff must be a number of Å, got {self.cutoff!r}")
        if not (0 < self.cutoff < math.inf):
            raise ValueError(f"cutoff must be > 0 Å and finite, got {self.cutoff}")
        if not SHORTEST_CUTOFF <= self.cutoff <= LONGEST_CUTOFF:
            raise ValueError(f"cutoff must be from {SHORTEST_CUTOFF} to {LONGEST_CUTOFF} Å, got {self.cutoff}")
        for name in ("trainable_basis", "self_message", "readout_activation", "charge_factor"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        choices = {
            "radial_basis": tuple(RADIAL_BASES),
            "activation": tuple(ACTIVATIONS),
            "group": ("O(3)", "SO(3)"),
            "head": tuple(HEADS),
            "messages": ("source", "target"),
        }
        for name, known in choices.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.trainable_basis and self.radial_basis == "bessel":
            raise ValueError("trainable_basis must be False for the basis bessel, which has no parameters, got True")

    @property
    def num_hops(self) -> int:
        """How many steps from neighbour to neighbour lead to the atoms that the energy of an atom depends on."""
        return 1 if self.messages == "target" else 1 + self.num_layers


class TensorNet(nn.Module):
    """Features [N,C] of atoms, invariant under translation, rotation and, with the group O(3), reflection.

    X⁰ = embedding;  X^{l+1} = interaction_l(X^l);  features = silu(W norm(|I|², |A|², |S|²))
    Without `readout_activation`, features = W norm(|I|², |A|², |S|²).

    ::

        | variable | symbol |
        |---|---|
        | x | X^l [N,9,C], with the parts I, A, S (see tensors.py) |
        | norm, readout | layer norm, and W with its bias; `activation` may replace silu |
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        channels, cutoff = config.num_channels, float(config.cutoff)
        self.basis = RADIAL_BASES[config.radial_basis](config.num_radial, cutoff, config.trainable_basis)
        self.activation = ACTIVATIONS[config.activation]()
        self.embedding = TensorEmbedding(channels, config.num_radial, self.activation, config.max_z)
        self.layers = nn.ModuleList(
            Interaction(
                channels, config.num_radial, self.activation, config.group == "O(3)", config.messages == "source"
            )
            for _ in range(config.num_layers)
        )
        self.norm = nn.LayerNorm(3 * channels)
        self.readout = nn.Linear(3 * channels, channels)

    def filters(self, distance: Tensor) -> list[Tensor]:
        """Filters [E,3,C] of the embedding and of every layer at distances [E], Å: they depend on nothing else."""
        radial = self.basis(distance)
        envelope = cosine_cutoff(distance, float(self.config.cutoff))[:, None]
        return [layer.filter(radial, envelope) for layer in (self.embedding, *self.layers)]

    def forward(self, edges: Edges, vectors: Tensor, atomic_numbers: Tensor, charge: Tensor) -> Tensor:
        """Features [N,C] from edge vectors [E,3] Å, atomic_numbers [N] and the charge [N] of each atom's system."""
        distance, direction = geometry(vectors)
        # The filters of an atom's message to itself, at distance 0, are the last row.
        first, *others = self.filters(torch.cat([distance, distance.new_zeros(1)]))
        if not self.config.self_message:
            first, *others = (torch.cat([f[:-1], torch.zeros_like(f[-1:])]) for f in (first, *others))
        if not self.config.charge_factor:
            charge = torch.zeros_like(charge)
        x = self.embedding(edges, first, direction, atomic_numbers)
        for layer, weights in zip(self.layers, others, strict=True):
            x = layer(x, edges, weights, charge)
        return self.features(x)

    def features(self, x: Tensor) -> Tensor:
        """Features [N,C] from the tensors [N,9,C] of the last layer."""
        features = self.readout(self.norm(invariants(x)))
        return self.activation(features) if self.config.readout_activation else features
