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
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

METHODS = ("plain", "field", "lattice")
WIDTH = 3.7  # α times the range of the real sum: it ends at erfc(3.7) = 2e-7
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


def coupling(
    inside: Tensor, places: Tensor, around: Tensor, *, surroundings: Surroundings, charges: Tensor, cell: Tensor
) -> Tensor:
    """Σ q_i Q_j g and images, e²/Å, from charges [n] e and places [n,3] Å of the region, places [M,3] around it.

    Args:
        charges: `surroundings.charges` as a tensor [M].
        cell: [3,3] Å, lower triangular. Differentiable once, in charges and places; all float64.
    """
    energy: Tensor = _Coupling.apply(inside, places, around, charges, cell, surroundings)
    return energy


class _Coupling(torch.autograd.Function):
    """Gradients are computed along with the energy, block by block, so that memory does not grow with M n."""

    @staticmethod
    def forward(context: Any, inside: Tensor, places: Tensor, around: Tensor, *fixed: Any) -> Tensor:
        charges, cell, surroundings = fixed
        wanted = any(context.needs_input_grad[:3])
        q, r, outer = (x.detach() for x in (inside, places, around))
        slopes = [torch.zeros_like(x) for x in (q, r, outer)]
        energy = torch.zeros_like(cell[0, 0])
        for block in [*_blocks(len(outer), len(q)), None]:
            own = [x.clone().requires_grad_(wanted) for x in (q, r, outer[block or slice(0)])]
            with torch.set_grad_enabled(wanted):
                sums = _Sums(own[0], own[1], charges, cell, surroundings)
                part = sums.alone() if block is None else sums.with_block(own[2], charges[block])
            energy = energy + part.detach()
            if wanted and part.requires_grad:
                of_q, of_r, of_outer = torch.autograd.grad(part, own, materialize_grads=True)
                slopes[0] += of_q
                slopes[1] += of_r
                if block is not None:
                    slopes[2][block] = of_outer
        context.save_for_backward(*slopes)
        return energy

    @staticmethod
    def backward(context: Any, *outputs: Any) -> tuple[Tensor | None, ...]:
        (given,) = outputs
        return (*(given * slope for slope in context.saved_tensors), None, None, None)


def _blocks(count: int, rows: int) -> Iterator[slice]:
    size = max(1, MOST_PAIRS // max(1, rows))
    return (slice(start, start + size) for start in range(0, count, size))


class _Sums:
    """The parts of the energy for a region with charges q [n] at r [n,3]."""

    def __init__(self, q: Tensor, r: Tensor, charges: Tensor, cell: Tensor, surroundings: Surroundings) -> None:
        self.q, self.r, self.charges, self.cell, self.around = q, r, charges, cell, surroundings
        if surroundings.method == "lattice":
            self.range = 0.5 * float(cell.diagonal().min())
            self.alpha = WIDTH / self.range
            self.waves = _Waves(cell, self.alpha)

    def with_block(self, outer: Tensor, charges: Tensor) -> Tensor:
        """With the charges at `outer` [m,3]."""
        if self.around.method != "lattice":
            r = self._distances(self.r, outer)
            return ((self.q[:, None] * charges) * self._shape(r)).sum()
        r = self._distances(self.r, outer)
        near = r < self.range
        r = torch.where(near, r, self.range)
        direct = ((self.q[:, None] * charges) * torch.where(near, torch.erfc(self.alpha * r) / r, 0.0)).sum()
        ours, theirs = self.waves.amplitudes(self.q, self.r), self.waves.amplitudes(charges, outer)
        return direct + self.waves.weighted(ours, theirs)

    def alone(self) -> Tensor:
        """What the region has without particles around it."""
        return self._images() + self._background() if self.around.method == "lattice" else self.q.new_zeros(())

    def _images(self) -> Tensor:
        """The charges of the region with their own images: the whole sum without each pair's nearest image."""
        ours, count = self.waves.amplitudes(self.q, self.r), len(self.q)
        first, second = torch.triu_indices(count, count, 1, device=self.q.device)
        r = torch.linalg.vector_norm(self._nearest(self.r[first] - self.r[second]), dim=-1)
        removed = (self.q[first] * self.q[second] * torch.erf(self.alpha * r) / r).sum()
        own = self.alpha / math.sqrt(math.pi) * (self.q**2).sum()
        return self.waves.weighted(ours, ours) / 2 - removed - own

    def _background(self) -> Tensor:
        """Of the uniform charge that neutralises the cell: the part with charges of the region."""
        volume = self.cell.diagonal().prod()
        total = self.q.sum()
        return -math.pi / (2 * volume * self.alpha**2) * total * (total + 2 * self.charges.sum())

    def _shape(self, r: Tensor) -> Tensor:
        if self.around.method == "plain":
            return 1 / r
        cutoff, dielectric = self.around.cutoff, self.around.dielectric
        a = (dielectric - 1) / (2 * dielectric + 1) / cutoff**3
        b = 3 * dielectric / (2 * dielectric + 1) / cutoff
        near = r < cutoff
        r = torch.where(near, r, cutoff)
        return torch.where(near, 1 / r + a * r**2 - b, 0.0)

    def _distances(self, ours: Tensor, theirs: Tensor) -> Tensor:
        return torch.linalg.vector_norm(self._nearest(ours[:, None] - theirs), dim=-1)

    def _nearest(self, vectors: Tensor) -> Tensor:
        """The nearest images of vectors [...,3], in a box whose vectors are reduced as OpenMM's."""
        if not self.around.periodic:
            return vectors
        for axis in (2, 1, 0):
            count = torch.round(vectors[..., axis : axis + 1].detach() / self.cell[axis, axis])
            vectors = vectors - count * self.cell[axis]
        return vectors


class _Waves:
    """The reciprocal sum: amplitudes Σ q exp(i k r) at the wave vectors k of half of a box of wave numbers.

    The factors of the exponential along the three lattice vectors are multiplied as matrices.
    """

    def __init__(self, cell: Tensor, alpha: float) -> None:
        inverse = torch.linalg.inv(cell)
        largest = 2 * alpha * WIDTH
        counts = [math.ceil(largest * float(torch.linalg.vector_norm(row)) / (2 * math.pi)) for row in cell]
        ranges = [torch.arange(-n, n + 1, device=cell.device, dtype=cell.dtype) for n in counts]
        ranges[2] = ranges[2][counts[2] :]  # exp(-i k r) is the conjugate
        self.inverse, self.ranges = inverse, ranges
        numbers = torch.stack(torch.meshgrid(*ranges, indexing="ij"), -1)
        squares = ((2 * math.pi * numbers @ inverse.T) ** 2).sum(-1)
        used = (squares > 0) & (squares <= largest**2)
        squares = torch.where(used, squares, 1.0)
        both = torch.where(numbers[..., 2] > 0, 2.0, 1.0)
        volume = cell.diagonal().prod()
        shape = torch.exp(-squares / (4 * alpha**2)) / squares
        self.weights = torch.where(used, 4 * math.pi / volume * both * shape, 0.0)

    def amplitudes(self, q: Tensor, r: Tensor) -> Tensor:
        """[A,B,C] complex, for charges q [m] at r [m,3]."""
        parts = []
        for axis, numbers in enumerate(self.ranges):
            phases = 2 * math.pi * (r @ self.inverse)[:, axis : axis + 1] * numbers
            parts.append(torch.complex(torch.cos(phases), torch.sin(phases)))
        first, second, third = parts
        pairs = (second[:, :, None] * third[:, None, :]).flatten(1)
        return (first.T @ (q[:, None] * pairs)).view(first.shape[1], second.shape[1], third.shape[1])

    def weighted(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """Σ_k w(k) Re(ours conj(theirs))."""
        return (self.weights * (ours.real * theirs.real + ours.imag * theirs.imag)).sum()
