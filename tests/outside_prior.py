"""A prior that torchmdx does not know: a harmonic repulsion, smooth at its cutoff, with a table of radii."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from torchmdx import Potential, TensorNetConfig, register_prior
from torchmdx.models.priors.base import Geometry, Prior, PriorConfig


@dataclass(frozen=True, kw_only=True)
class BumpConfig(PriorConfig):
    name: ClassVar[str] = "bump"
    cutoff: float = 3.0
    strength: float = 0.5

    def __post_init__(self) -> None:
        self._require_lengths("cutoff")
        self._require_finite("strength")

    def scaled(self, factor: float) -> Self:
        return self._times("strength", factor)


class Bump(Prior):
    """E = ½ Σ_ij k R_i R_j (1 - (r_ij / cutoff)²)³"""

    def __init__(self, config: BumpConfig) -> None:
        super().__init__()
        self.config = config
        self.max_z = 20
        self.register_buffer("radii", 1 + 0.01 * torch.arange(21, dtype=torch.float64), persistent=False)

    def forward(self, geometry: Geometry) -> torch.Tensor:
        r = geometry.distance
        radius = self.radii.to(r.dtype).index_select(0, geometry.batch.atomic_numbers)
        inside = (1 - (r / self.config.cutoff) ** 2).clamp(min=0) ** 3
        energy = self.config.strength * geometry.at_target(radius) * geometry.at_source(radius) * inside
        return geometry.halved_onto_atoms(energy)


def register() -> None:
    register_prior(BumpConfig, Bump)


def bump_potential(*priors: PriorConfig) -> Potential:
    """A small TensorNet with these priors, or one bump."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = TensorNetConfig(num_channels=8, num_radial=6, num_layers=1, max_z=30, cutoff=4.0)
        return Potential(config, priors or (BumpConfig(),)).eval().requires_grad_(False)
