"""Ensemble: several potentials evaluated together, with the mean and the standard deviation of their results.

::

    mean    x̄ = Σ_m x_m / k                                   energy, energies, forces, stress, charges
    spread  σ(E)   = sqrt( Σ_m (E_m - Ē)² / (k - 1) )          of a system, eV
            σ(F_i) = sqrt( Σ_m |F_mi - F̄_i|² / (k - 1) )       of an atom, eV/Å

These are sample standard deviations: their squares are unbiased estimates of the variance over all potentials that
the same training could produce. Mean forces are the derivative of the mean energy. A calibrated ensemble multiplies its
spreads by factors, with which they are as large as the errors on labelled frames.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchmdx.models.potential import Potential
from torchmdx.structures.system import Batch

FEWEST = 2
UNCALIBRATED = (1.0, 1.0)


class Ensemble(nn.Module):
    """Potentials with the same cutoff and elements. Accepted wherever a potential is; results are means and spreads.

    Args:
        names: Names of the members in messages; None: "member 0" and so on. Members may differ in architecture.
        spread_factors: Of the spreads of energies and of forces, by which they are as large as the errors on labelled
            frames; all spreads are multiplied by them.

    Raises:
        ValueError: For fewer than two members, and, naming two members and their values, for different cutoffs,
            elements, dtypes or devices.
    """

    def __init__(
        self,
        potentials: Sequence[Potential],
        names: Sequence[str] | None = None,
        spread_factors: tuple[float, float] = UNCALIBRATED,
    ) -> None:
        super().__init__()
        for potential in potentials:
            if not isinstance(potential, Potential):
                raise TypeError(f"an ensemble is made of Potentials, got a {type(potential).__name__}")
        if len(potentials) < FEWEST:
            raise ValueError(f"an ensemble needs at least {FEWEST} potentials, got {len(potentials)}")
        if len(spread_factors) != 2 or not all(math.isfinite(one) and one > 0 for one in spread_factors):
            raise ValueError(f"spread_factors must be two finite numbers > 0, got {spread_factors}")
        self.spread_factors = (float(spread_factors[0]), float(spread_factors[1]))
        self.names = tuple(names) if names is not None else tuple(f"member {k}" for k in range(len(potentials)))
        require_alike(potentials, self.names)
        _require_one("dtype", "", lambda potential: potential.dtype, potentials, self.names)
        _require_one("device", "", lambda potential: potential.device, potentials, self.names)
        self.potentials = nn.ModuleList(potentials)
        self.training = any(potential.training for potential in potentials)

    @property
    def members(self) -> list[Potential]:
        return [cast(Potential, potential) for potential in self.potentials]

    def __len__(self) -> int:
        return len(self.potentials)

    def __iter__(self) -> Iterator[Potential]:
        return iter(self.members)

    def __getitem__(self, index: int) -> Potential:
        return self.members[index]

    @property
    def cutoff(self) -> float:
        """As `Potential.cutoff`; the same for every member."""
        return self[0].cutoff

    def search_cutoff(self, batch: Batch) -> float:
        """As `Potential.search_cutoff`: the largest of all members."""
        return max(member.search_cutoff(batch) for member in self)

    @property
    def max_z(self) -> int:
        return self[0].max_z

    @property
    def predicts_charges(self) -> bool:
        """Whether every member predicts partial charges."""
        return all(member.predicts_charges for member in self)

    @property
    def dtype(self) -> torch.dtype:
        return self[0].dtype

    @property
    def device(self) -> torch.device:
        return self[0].device

    def with_members(self, potentials: Sequence[Potential]) -> Ensemble:
        """An ensemble of other potentials, with the same names and spread factors."""
        return Ensemble(potentials, self.names, self.spread_factors)

    def require_elements(self, atomic_numbers: Tensor) -> None:
        """As `Potential.require_elements`, for every member."""
        for member in self:
            member.require_elements(atomic_numbers)

    def doubts(
        self, atomic_numbers: Sequence[int], charge: float, periodic: bool = False, *, region: bool = False
    ) -> list[str]:
        """As `Potential.doubts`, of all members, each once."""
        every = (doubt for member in self for doubt in member.doubts(atomic_numbers, charge, periodic, region=region))
        return list(dict.fromkeys(every))

    def prior_doubts(self, periodic: bool, charge: float = 0.0) -> list[str]:
        """As `Potential.prior_doubts`, of all members, each once."""
        return list(dict.fromkeys(doubt for member in self for doubt in member.prior_doubts(periodic, charge)))


def members_of(potential: Potential | Ensemble) -> list[Potential]:
    """The members of an ensemble, or the potential itself."""
    return potential.members if isinstance(potential, Ensemble) else [potential]


def require_alike(potentials: Sequence[Potential], names: Sequence[str]) -> None:
    """Raises ValueError unless all have the same cutoff and elements; names two that differ, and their values."""
    _require_one("cutoff", "Å", lambda potential: float(potential.config.cutoff), potentials, names)
    _require_one("farthest cutoff, of its priors too,", "Å", lambda potential: potential.cutoff, potentials, names)
    _require_one("range of elements", "(the last one)", lambda potential: potential.config.max_z, potentials, names)
    _require_one("range of elements, in priors too,", "(the last one)", lambda p: p.max_z, potentials, names)
    _require_one("set of elements with reference energies", "", _referenced, potentials, names)


def _require_one(
    what: str, unit: str, of: Callable[[Potential], Any], potentials: Sequence[Potential], names: Sequence[str]
) -> None:
    found = [of(potential) for potential in potentials]
    for name, got in zip(names, found, strict=True):
        if got != found[0]:
            raise ValueError(
                f"the potentials of an ensemble must have one {what}: {names[0]!r} has {found[0]} {unit}".rstrip()
                + f", {name!r} has {got}"
            )


def _referenced(potential: Potential) -> list[int]:
    """Elements with a reference energy: those of the training data."""
    found: list[int] = potential.reference_energies.nonzero().flatten().tolist()
    return found


def mean_of(values: Tensor) -> Tensor:
    """Mean [...] of the members' values [k,...], float64. The mean of equal values is exact."""
    first = values[0].double()
    return first + (values.double() - first).mean(0)


def spread_of(values: Tensor, vectors: bool = False) -> Tensor:
    """Sample standard deviation [...] over the members' values [k,...], float64; vectors: values are [k,...,3].

    For equal values it is exactly zero, because differences from the first member have no rounding error.
    """
    relative = values.double() - values[0].double()
    squares = (relative - relative.mean(0)) ** 2
    if vectors:
        squares = squares.sum(-1)
    return torch.sqrt(squares.sum(0) / (len(values) - 1))


def frozen(potential: Potential | Ensemble) -> Potential | Ensemble:
    """A copy with the current weights, without gradients.

    Kernels, tables and graphs contain the weights at their construction; the reference that checks them needs the same.
    """
    return copy.deepcopy(potential).requires_grad_(False)
