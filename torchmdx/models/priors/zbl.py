"""Screened repulsion of nuclei at short distances (Ziegler, Biersack, Littmark 1985)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from torchmdx.models.cutoff import cosine_cutoff
from torchmdx.models.priors.base import Geometry, Prior, PriorConfig
from torchmdx.structures.system_fields import LAST_ELEMENT
from torchmdx.structures.units import BOHR, COULOMB

# φ(x) = Σ a exp(-b x), the universal screening function.
SCREENING = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))


@dataclass(frozen=True, kw_only=True)
class ZBLConfig(PriorConfig):
    """Settings of the ZBL repulsion.

    Attributes:
        cutoff: Å, beyond which no pair interacts. Without `radii` the cosine cutoff takes the energy to zero there.
        radii: By atomic number, Å, from element 0 on, or "covalent" for ASE's covalent radii: the energy of a pair then
            goes to zero at the sum of the radii, so that bonds are unaffected. The last radius applies to later
            elements.
        length, exponent: Define the screening length, length / (Z_i^exponent + Z_j^exponent), Å.
        strength: K, the Coulomb constant, eV Å.
    """

    name: ClassVar[str] = "zbl"
    cutoff: float = 4.0
    radii: tuple[float, ...] | str | None = None
    length: float = 0.8854 * BOHR
    exponent: float = 0.23
    strength: float = COULOMB

    def __post_init__(self) -> None:
        self._require_lengths("cutoff", "length")
        self._require_finite("exponent", "strength")
        if self.radii is None:
            return
        object.__setattr__(self, "radii", _radii(self.radii))

    def scaled(self, factor: float) -> Self:
        return self._times("strength", factor)


class ZBL(Prior):
    """E = ½ Σ_ij k Z_i Z_j / r_ij · φ(r_ij / a_ij) · f(r_ij),  a_ij = length / (Z_i^p + Z_j^p)

    f is the cosine cutoff, or with radii the polynomial 1 - 28 u⁶ + 48 u⁷ - 21 u⁸ of u = r_ij / (R_i + R_j), whose
    value, slope and curvature vanish at u = 1: (1 - u)³ (1 + 3 u + 6 u² + 10 u³ + 15 u⁴ + 21 u⁵).
    """

    config: ZBLConfig
    reach = 1
    radii: Tensor | None

    def __init__(self, config: ZBLConfig) -> None:
        super().__init__()
        self.config = config
        radii = None
        if config.radii is not None:
            known = [float(radius) for radius in config.radii]
            known += [known[-1]] * (LAST_ELEMENT + 1 - len(known))
            radii = torch.tensor(known, dtype=torch.float64)
        self.register_buffer("radii", radii, persistent=False)

    def forward(self, geometry: Geometry) -> Tensor:
        config, r = self.config, geometry.distance
        z = geometry.batch.atomic_numbers.to(r.dtype)
        z_target, z_source = geometry.at_target(z), geometry.at_source(z)
        power = z**config.exponent
        x = r / config.length * (geometry.at_target(power) + geometry.at_source(power))
        screening = sum(
            (a * torch.exp(-b * x) for a, b in SCREENING[1:]), SCREENING[0][0] * torch.exp(-SCREENING[0][1] * x)
        )
        energy = config.strength * z_target * z_source / r * screening * self.envelope(geometry)
        return geometry.halved_onto_atoms(energy)

    def envelope(self, geometry: Geometry) -> Tensor:
        """f [E], which is 0 beyond the cutoff."""
        r, cutoff = geometry.distance, float(self.config.cutoff)
        if self.radii is None:
            return cosine_cutoff(r, cutoff)
        radius = self.radii.to(r.dtype).index_select(0, geometry.batch.atomic_numbers)
        u = r / (geometry.at_target(radius) + geometry.at_source(radius))
        inside = (u < 1) & (r < cutoff)
        u = torch.where(inside, u, 1.0)
        rest = 1 + u * (3 + u * (6 + u * (10 + u * (15 + u * 21))))
        return torch.where(inside, (1 - u) ** 3 * rest, 0.0)


def _radii(radii: tuple[float, ...] | str) -> tuple[float, ...]:
    if radii == "covalent":
        from ase.data import covalent_radii

        return tuple(float(radius) for radius in covalent_radii)
    if isinstance(radii, str) or not radii:
        raise ValueError(f"radii of the prior zbl must be 'covalent' or numbers of Å, got {radii!r}")
    values = tuple(float(radius) for radius in radii)
    if len(values) < 2:
        raise ValueError(f"radii of the prior zbl must begin with those of elements 0 and 1, got {len(values)}")
    if not all(0 < radius < 100 for radius in values[1:]):
        raise ValueError(f"radii of the prior zbl must be > 0 Å and < 100 Å, got {min(values[1:])}")
    return values
