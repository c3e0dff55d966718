"""The part of a lattice sum beyond pairs: waves, and the region's own images, with derivatives that are written out.

The factors of exp(i k r) along the three lattice vectors are multiplied as matrices. Nothing is read on the host once a
`LatticeSplit` is there, so that a graph can record it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.models.priors.ewald import inverse
from torchmdx.structures.system import Batch

# α times the range of the sum over pairs, by the dtype of its terms: forces have errors of 1e-6 and 1e-5.
WIDTHS = {torch.float64: 3.7, torch.float32: 3.5}
PART = 512  # atoms of a sum
MARGIN = 0.02  # by which a box may change before a sum is split anew


@dataclass(frozen=True)
class LatticeSplit:
    """How a lattice sum is split: range Å of the sum over pairs, and the largest wave numbers along lattice vectors.

    lengths Å: of the lattice vectors that it was chosen for. It serves boxes of which none is longer by more than
    MARGIN, and that are not much smaller.
    """

    range: float
    counts: tuple[int, ...]
    lengths: tuple[float, ...]
    width: float

    @classmethod
    def of(cls, cell: Tensor, dtype: torch.dtype = torch.float64) -> LatticeSplit:
        """For a box [3,3] Å and terms in a dtype. Reads the device."""
        rows, width = cell.detach().double().cpu(), WIDTHS[dtype]
        lengths = torch.linalg.vector_norm(rows, dim=-1).tolist()
        reach = 0.5 * float(rows.diagonal().min()) * (1 - MARGIN)
        longest = 2 * width / reach * width
        counts = tuple(math.ceil(longest * length * (1 + MARGIN) / (2 * math.pi)) for length in lengths)
        return cls(reach, counts, tuple(lengths), width)

    @property
    def alpha(self) -> float:
        """1/Å."""
        return self.width / self.range

    @property
    def longest(self) -> float:
        """The longest wave vector, 1/Å."""
        return 2 * self.alpha * self.width

    def fits(self, batch: Batch) -> Tensor:
        """Whether it serves the box of a batch, [] bool."""
        cell = batch.cell[0].detach()
        rows = torch.linalg.vector_norm(cell, dim=-1)
        fine = 0.5 * cell.diagonal().min() >= self.range
        for row, length in zip(rows, self.lengths, strict=True):
            fine = fine & (row <= length * (1 + MARGIN))
        return fine


class KeptSplit:
    """The split of a step: chosen when an evaluation is launched, kept while it fits, and fixed in a capture."""

    def __init__(self) -> None:
        self.latest: LatticeSplit | None = None

    def serve(self, batch: Batch, overflow: Tensor, dtype: torch.dtype) -> LatticeSplit:
        """The split for a batch and terms in a dtype; overflow: set at a replay that it does not fit."""
        if shapes_are_fixed(batch.positions):
            if self.latest is None:
                raise RuntimeError("an evaluation must have run before it is captured")
            overflow.logical_or_(~self.latest.fits(batch))
        elif self.latest is None or not bool(self.latest.fits(batch)):
            self.latest = LatticeSplit.of(batch.cell[0], dtype)
        return self.latest

    def forget(self) -> None:
        """Lets the next launch choose another."""
        self.latest = None


def nearest(vectors: Tensor, cell: Tensor) -> Tensor:
    """The nearest images of vectors [...,3], in a box whose vectors are reduced as OpenMM's."""
    for axis in (2, 1, 0):
        count = torch.round(vectors[..., axis : axis + 1] / cell[axis, axis])
        vectors = vectors - count * cell[axis]
    return vectors


class LatticePart:
    """What a lattice sum has beyond pairs within its range, for a region with charges q [n] at r [n,3].

    total: charge around the region, e.
    """

    def __init__(self, q: Tensor, r: Tensor, cell: Tensor, split: LatticeSplit, total: float, slopes: bool) -> None:
        self.q, self.r, self.cell, self.split, self.total, self.slopes = q, r, cell, split, total, slopes
        self.inverse = inverse(cell[None])[0]
        numbers = [torch.arange(-n, n + 1, device=cell.device, dtype=cell.dtype) for n in split.counts]
        self.numbers = [*numbers[:2], numbers[2][split.counts[2] :]]  # exp(-i k r) is the conjugate
        self.weights = self._weights()
        self.factors = self._factors(r, torch.float64)
        self.ours = self._amplitudes(q, self.factors)
        self.theirs = torch.zeros_like(self.ours)

    def _weights(self) -> Tensor:
        """[A,BC]: of the terms of the sum over half of the wave vectors."""
        alpha, longest = self.split.alpha, self.split.longest
        numbers = torch.stack(torch.meshgrid(*self.numbers, indexing="ij"), -1)
        squares = ((2 * math.pi * numbers @ self.inverse.T) ** 2).sum(-1)
        used = (squares > 0) & (squares <= longest**2)
        squares = torch.where(used, squares, 1.0)
        both = torch.where(numbers[..., 2] > 0, 2.0, 1.0)
        shape = 4 * math.pi / self.cell.diagonal().prod() * both * torch.exp(-squares / (4 * alpha**2)) / squares
        return torch.where(used, shape, 0.0).flatten(1)

    def _factors(self, r: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """exp(i k r) for places [m,3]: [m,A] along the first lattice vector, [m,BC] along the others."""
        parts = []
        for axis, numbers in enumerate(self.numbers):
            turns = (r @ self.inverse)[:, axis : axis + 1] * numbers
            phases = (2 * math.pi * (turns - torch.round(turns))).to(dtype)
            parts.append(torch.complex(torch.cos(phases), torch.sin(phases)))
        first, second, third = parts
        return first, (second[:, :, None] * third[:, None, :]).flatten(1)

    @staticmethod
    def _amplitudes(q: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
        """Σ q exp(i k r), [A,BC]."""
        first, rest = factors
        first = q.to(first.real.dtype)[:, None] * first
        size, count = PART, len(q) // PART
        whole = size * count
        last = first[whole:].T @ rest[whole:]
        if not count:
            return last
        # Sums over many atoms in parts: a GPU would do a single one on a few of its processors.
        parts = (x[:whole].unflatten(0, (count, size)) for x in (first, rest))
        return torch.bmm(next(parts).transpose(1, 2), next(parts)).sum(0, dtype=torch.complex128) + last

    def with_block(self, outer: Tensor, charges: Tensor, dtype: torch.dtype) -> Tensor:
        """Adds charges around the region; the slopes of their places [m,3]."""
        factors = self._factors(outer, dtype)
        self.theirs = self.theirs + self._amplitudes(charges, factors)
        if not self.slopes:
            return outer
        slopes = self._field(self.ours.to(factors[0].dtype), factors)[1]
        return charges[:, None] * slopes

    def _field(self, amplitudes: Tensor, factors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Σ w Re(conj(A) exp(i k r)) [m] and its slopes [m,3], of amplitudes A [A,BC]."""
        first, rest = factors
        terms = self.weights.to(first.real.dtype) * amplitudes.conj()
        b, c = len(self.numbers[1]), len(self.numbers[2])
        along = (self.numbers[1][:, None].expand(-1, c).flatten(), self.numbers[2].repeat(b))
        each = [terms, *(terms * number.to(first.real.dtype) for number in along)]
        sums = (rest @ torch.cat(each).T).unflatten(1, (3, -1))  # [m,3,A]
        turned = first[:, None] * sums
        potentials = turned[:, 0].real.sum(-1)
        waves = [(turned[:, 0].imag * self.numbers[0].to(first.real.dtype)).sum(-1)]
        waves += [turned[:, axis].imag.sum(-1) for axis in (1, 2)]
        slopes = -2 * math.pi * torch.stack(waves, -1).double() @ self.inverse.T
        return potentials.double(), slopes

    def of_region(self) -> tuple[Tensor, Tensor, Tensor]:
        """Energy beyond pairs with the surroundings, and slopes of the region's charges [n] and places [n,3]."""
        q, alpha = self.q, self.split.alpha
        volume, total = self.cell.diagonal().prod(), q.sum()
        cross = (self.weights * (self.ours * (self.theirs + self.ours / 2).conj()).real).sum()
        of_charges, along = self._field(self.theirs + self.ours, self.factors)
        images, own = self._images()
        background = -math.pi / (volume * alpha**2)
        energy = cross + (q * images).sum() / 2 + background * total * (total / 2 + self.total)
        return energy, of_charges + images + background * (total + self.total), q[:, None] * (along + own)

    def _images(self) -> tuple[Tensor, Tensor]:
        """Minus the potentials [n] of the nearest images and of each atom itself, and slopes [n,3] by unit charges."""
        q, alpha = self.q, self.split.alpha
        vectors = nearest(self.r[:, None] - self.r, self.cell)
        itself = torch.eye(len(q), dtype=torch.bool, device=q.device)
        r = torch.linalg.vector_norm(vectors, dim=-1).masked_fill(itself, 1.0)
        value = torch.erf(alpha * r) / r
        slope = (2 * alpha / math.sqrt(math.pi) * torch.exp(-((alpha * r) ** 2)) - value) / r**2
        value, slope = value.masked_fill(itself, 2 * alpha / math.sqrt(math.pi)), slope.masked_fill(itself, 0.0)
        return -(value @ q), -((slope * q)[..., None] * vectors).sum(1)
