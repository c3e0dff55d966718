"""Dispersion of DFT-D2 (Grimme 2006), for checkpoints trained with it. Use D3 for new models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchmdx.models.priors.base import Geometry, Prior, PriorConfig


@dataclass(frozen=True, kw_only=True)
class D2Config(PriorConfig):
    """Settings of the D2 dispersion.

    Attributes:
        c6: eV Å⁶, and radii: Å, both by atomic number from element 0 on.
        cutoff: Å, sharp.
        steepness: D of the damping.
    """

    name: ClassVar[str] = "d2"
    cutoff: float
    c6: tuple[float, ...]
    radii: tuple[float, ...]
    steepness: float = 20.0

    def __post_init__(self) -> None:
        self._require_lengths("cutoff")
        self._require_finite("steepness")
        for table in ("c6", "radii"):
            object.__setattr__(self, table, tuple(float(value) for value in getattr(self, table)))
        if len(self.c6) != len(self.radii) or len(self.c6) < 2:
            raise ValueError(
                f"c6 and radii of the prior d2 must list the same elements, got {len(self.c6)} and {len(self.radii)}"
            )

        if not all(math.isfinite(value) for table in (self.c6, self.radii) for value in table[1:]):
            raise ValueError("c6 and radii of the prior d2 must be finite, got NaN or infinity")

    def scaled(self, factor: float) -> Self:
        return replace(self, c6=tuple(value * factor for value in self.c6))


class D2(Prior):
    """E = -½ Σ_ij sqrt(C_i C_j) / r_ij⁶ / (1 + exp(-d (r_ij / (R_i + R_j) - 1)))"""

    config: D2Config
    reach = 1
    c6: Tensor
    radii: Tensor

    def __init__(self, config: D2Config) -> None:
        super().__init__()
        self.config = config
        self.max_z = len(config.c6) - 1
        # Values of element 0 are not used, and may be NaN in files.
        self.register_buffer("c6", torch.tensor((0.0, *config.c6[1:]), dtype=torch.float64), persistent=False)
        self.register_buffer("radii", torch.tensor((1.0, *config.radii[1:]), dtype=torch.float64), persistent=False)

    def forward(self, geometry: Geometry) -> Tensor:
        r, numbers = geometry.distance, geometry.batch.atomic_numbers
        inside = r < self.config.cutoff
        r = torch.where(inside, r, self.config.cutoff)
        root = self.c6.sqrt().to(r.dtype).index_select(0, numbers)
        radius = self.radii.to(r.dtype).index_select(0, numbers)
        reach = geometry.at_target(radius) + geometry.at_source(radius)
        damping = torch.sigmoid(self.config.steepness * (r / reach - 1))
        energy = -geometry.at_target(root) * geometry.at_source(root) / r**6 * damping
        return geometry.halved_onto_atoms(torch.where(inside, energy, 0.0))
