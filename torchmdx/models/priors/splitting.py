"""The splitting of an Ewald sum into pairs and waves that an accuracy needs, and whether waves are summed on a mesh."""

from __future__ import annotations

import math
from dataclasses import dataclass

DEFAULT_CUTOFF = 9.0  # Å, of the part over pairs, where nothing else is given
SHORTEST, LONGEST = 7.0, 12.0  # Å, between which a step chooses it by size
VECTOR_COST = 0.3  # of the work for an atom and a vector, in that for an atom and a neighbour
DENSITY = 0.1  # atoms per Å³, of liquids and solids; the splitting depends on its sixth root
MESH_CUTOFF = 10.0  # Å, of the part over pairs, where the rest is on a mesh
MOST_WORK = 4_000_000  # atoms of a system times vectors, beyond which a mesh is faster


@dataclass(frozen=True)
class Splitting:
    """What an accuracy needs: pairs up to `cutoff`, Å, α, 1/Å, and vectors up to `longest`, 1/Å."""

    accuracy: float
    cutoff: float
    alpha: float
    longest: float

    @classmethod
    def of(cls, accuracy: float, cutoff: float) -> Splitting:
        """For a root mean square force error of `accuracy`, relative to the forces of neighbouring charges.

        The estimates of Kolafa and Perram (Mol. Simul. 9, 351, 1992) for the sums over pairs and over vectors are both
        2 Q / √(N V) · √(α / s) · exp(-s²), with s = α · cutoff for the one and s = longest / 2α for the other, and Q
        the sum of the squared charges of N atoms. Both errors get the same part. The force of a neighbour is taken as
        Q / N · (N / V)^(2/3), so that the charges cancel.
        """
        exponent = math.log(2 * math.sqrt(2) * DENSITY ** (-1 / 6) / math.sqrt(cutoff) / accuracy)
        exponent = max(exponent, 1.0)
        return cls(accuracy, cutoff, math.sqrt(exponent) / cutoff, 2 * exponent / cutoff)

    @classmethod
    def balanced(cls, accuracy: float, volume: float) -> Splitting:
        """The splitting that takes the least work in a cell of this volume, Å³.

        An atom has 4π/3 ρ c³ neighbours in a cutoff c, and there are V (2 s² / c)³ / 12π² vectors: their sum, weighted
        by the work for each, is least where c⁶ is proportional to the volume.
        """
        exponent = cls.of(accuracy, DEFAULT_CUTOFF).exponent
        sixth = VECTOR_COST * volume * (2 * exponent) ** 3 / (16 * math.pi**3 * DENSITY)
        return cls.of(accuracy, min(max(sixth ** (1 / 6), SHORTEST), LONGEST))

    @property
    def exponent(self) -> float:
        """s²: what is left out is of the size of exp(-s²)."""
        return (self.alpha * self.cutoff) ** 2

    @property
    def shift(self) -> float:
        """erfc(α c) / c, which pairs are shifted by."""
        return math.erfc(self.alpha * self.cutoff) / self.cutoff

    @property
    def own_potential(self) -> float:
        """What is subtracted for a unit charge in its own potential: its wave, and its share of the shift."""
        return 2 * self.alpha / math.sqrt(math.pi) + self.shift

    @property
    def background(self) -> float:
        """The integral over the sphere of what a pair contributes, which a uniform background cancels, Å²."""
        a, c = self.alpha, self.cutoff
        first = c**2 / 2 * math.erfc(a * c) + math.erf(a * c) / (4 * a**2)
        first -= c * math.exp(-((a * c) ** 2)) / (2 * a * math.sqrt(math.pi))
        return 4 * math.pi * (first - self.shift * c**3 / 3)


def takes_mesh(splitting: Splitting, atoms: float, volume: float) -> bool:
    """Whether a mesh is faster than a sum over vectors, for the atoms and the volume, Å³, of a system."""
    vectors = volume * splitting.longest**3 / (12 * math.pi**2)
    return atoms * vectors > MOST_WORK
