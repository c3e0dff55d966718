"""The Coulomb energy of a region's charges with the fixed charges around it, as OpenMM's NonbondedForce defines it.

::

    E = k Σ_i q_i Σ_j Q_j g(r_ij) + images of the region,  i in the region, j around it

::

  | method | g(r) |
  |---|---|
  | plain | 1 / r |
  | field | 1 / r + a r² - b within the cutoff, with a = (ε - 1) / (2 ε + 1) / c³ and b = 3 ε / (2 ε + 1) / c |
  | lattice | the Ewald sum over all periodic images, with a neutralising background |

In a lattice the charges of the region also interact with their own periodic images, that is, with all images but the
nearest one of each pair. The sum is split at half the box, so that few wave vectors are needed: in real space only the
region's atoms have neighbours, which are few.

Derivatives are written out, block by block of the surroundings, so that memory does not grow with their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from torchmdx.openmm.surroundings_lattice import LatticePart, LatticeSplit, nearest

METHODS = ("plain", "field", "lattice")
MOST_PAIRS = 2**21  # at a time


@dataclass(frozen=True)
class Surroundings:
    """charges: e, of the particles around the region. periodic: distances are those of nearest images.

    cutoff (Å) and dielectric: of the method "field".
    """

    method: str
    charges: tuple[float, ...]
    periodic: bool = False
    cutoff: float = 0.0
    dielectric: float = 1.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")

    @cached_property
    def total(self) -> float:
        """The charge around the region, e."""
        return math.fsum(self.charges)


@dataclass(frozen=True, eq=False)
class Coupling:
    """energy [] e²/Å, and its slopes: of_charges [n] of the region, of_places [n,3], of_around [M,3]; float64."""

    energy: Tensor
    of_charges: Tensor
    of_places: Tensor
    of_around: Tensor


def interact(
    inside: Tensor, places: Tensor, around: Tensor, *, surroundings: Surroundings, charges: Tensor, cell: Tensor,
    split: LatticeSplit | None = None, slopes: bool = True, dtype: torch.dtype = torch.float64,
) -> Coupling:  # fmt: skip
    """Σ q_i Q_j g and images, from charges [n] e and places [n,3] Å of the region, places [M,3] around it.

    Args:
        charges: `surroundings.charges` as a tensor [M].
        cell: [3,3] Å, lower triangular.
        split: Of a lattice sum; None: chosen for this cell.
        slopes: False: those of places are zeros.
        dtype: Of the terms of the sums, whose coordinates are float64.
    """
    q, r = inside.detach().double(), places.detach()
    if surroundings.method == "lattice":
        lattice = LatticePart(q, r, cell, split or LatticeSplit.of(cell, dtype), surroundings.total, slopes)
    else:
        lattice = None
    potentials, of_places, of_around = torch.zeros_like(q), torch.zeros_like(r), torch.zeros_like(around)
    for block in _blocks(len(around), len(q)):
        outer, own = around[block].detach(), charges[block]
        found = _pairs(q, r, outer, own, _Pairs(surroundings, cell, lattice), slopes, dtype)
        potentials = potentials + found[0]
        if slopes:
            of_places, of_around[block] = of_places + found[1], found[2]
        if lattice is not None:
            waves = lattice.with_block(outer, own, dtype)
            if slopes:
                of_around[block] += waves
    energy = (q * potentials).sum()
    if lattice is not None:
        more, of_charges, waves = lattice.of_region()
        energy, potentials = energy + more, potentials + of_charges
        of_places = of_places + waves if slopes else of_places
    return Coupling(energy, potentials, of_places, of_around)


def _blocks(count: int, rows: int) -> Iterator[slice]:
    size = max(1, MOST_PAIRS // max(1, rows))
    return (slice(start, start + size) for start in range(0, count, size))


@dataclass(frozen=True)
class _Pairs:
    """The interaction of two charges within reach."""

    around: Surroundings
    cell: Tensor
    lattice: LatticePart | None

    def shape(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """g and g' / r at distances r, of any shape; NaN at NaN."""
        if self.lattice is not None:
            alpha, reach = self.lattice.split.alpha, self.lattice.split.range
            near, r = ~(r >= reach), r.clamp(max=reach)
            value = torch.erfc(alpha * r) / r
            slope = -(value + 2 * alpha / math.sqrt(math.pi) * torch.exp(-((alpha * r) ** 2))) / r**2
        elif self.around.method == "plain":
            return 1 / r, -1 / r**3
        else:
            cutoff, dielectric = self.around.cutoff, self.around.dielectric
            a = (dielectric - 1) / (2 * dielectric + 1) / cutoff**3
            b = 3 * dielectric / (2 * dielectric + 1) / cutoff
            near, r = ~(r >= cutoff), r.clamp(max=cutoff)
            value, slope = 1 / r + a * r**2 - b, -1 / r**3 + 2 * a
        return torch.where(near, value, 0.0), torch.where(near, slope, 0.0)

    def nearest(self, vectors: Tensor) -> Tensor:
        """The nearest images of vectors [...,3], in a box whose vectors are reduced as OpenMM's."""
        return nearest(vectors, self.cell.to(vectors.dtype)) if self.around.periodic else vectors


def _pairs(
    q: Tensor, r: Tensor, outer: Tensor, charges: Tensor, pairs: _Pairs, slopes: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Potentials [n] at the region, slopes of its places [n,3] and of those of the block [m,3]."""
    centre = r.mean(0)  # coordinates around it are small, so that little is lost by rounding
    vectors = pairs.nearest((r - centre).to(dtype)[:, None] - pairs.nearest(outer - centre).to(dtype))
    value, slope = pairs.shape(torch.linalg.vector_norm(vectors, dim=-1))
    given, own = charges.to(dtype), q.to(dtype)
    potentials = (value * given).sum(-1, dtype=torch.float64)
    if not slopes:
        return potentials, vectors, vectors
    weighted = (slope * given)[..., None] * vectors
    of_places = q[:, None] * weighted.sum(1, dtype=torch.float64)
    return potentials, of_places, -(own[:, None, None] * weighted).sum(0).double()
