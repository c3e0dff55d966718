"""Interface of priors: their configuration, their input and their energy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from torchmdx.neighbors.edges import Edges
from torchmdx.structures.system import Batch
from torchmdx.structures.system_fields import LAST_ELEMENT

LONGEST = 10_000.0  # Å; a damaged configuration must not request longer neighbour lists


class OpenPairPrior(Protocol):
    """A prior over all pairs of atoms of systems without periodic directions."""

    def plain_pairs(self, batch: Batch, positions: Tensor, charges: Tensor) -> Tensor:
        """Energies [N] of all those pairs, from positions [N,3] Å and charges [N,M], in plain torch."""
        ...


@dataclass(frozen=True, eq=False)
class Lattice:
    """Positions [N,3] and cells [S,3,3] Å that a strain deforms together, not rounded to the dtype of the network.

    Gradients flow through both. For sums over the reciprocal lattice.
    """

    positions: Tensor
    cell: Tensor


@dataclass(frozen=True, eq=False)
class Geometry:
    """The input of priors.

    distance [E] Å of `edges`, which contain all pairs within the potential's search cutoff; at padded edges it is
    longer than any cutoff. positions [N,3] Å are for pairs beyond the list, of systems without periodic directions.

    Attributes:
        charges ([N,M]): Partial charges in M channels, None if the network predicts none.
        lattice: For priors that sum over a lattice, None where no caller knows of them. Gradients flow through
            distance, positions, charges and lattice.
    """

    batch: Batch
    edges: Edges
    distance: Tensor
    positions: Tensor
    charges: Tensor | None
    lattice: Lattice | None = None

    def at_target(self, values: Tensor) -> Tensor:
        """Values [N,..] of atoms at the targets of the edges, [E,..]."""
        return values.index_select(0, self.edges.target)

    def at_source(self, values: Tensor) -> Tensor:
        """Values [N,..] of atoms at the sources of the edges, [E,..]."""
        return values.index_select(0, self.edges.source)

    def onto_targets(self, values: Tensor) -> Tensor:
        """Sums [N] of values [E] over the edges of each atom."""
        return values.new_zeros(self.batch.num_atoms).index_add(0, self.edges.target, values)

    def halved_onto_atoms(self, pair_energy: Tensor) -> Tensor:
        """Energies [N] of atoms from energies [E] of pairs, each of which is in the list twice."""
        return self.onto_targets(0.5 * pair_energy)

    def open_pairs(self, prior: OpenPairPrior, charges: Tensor) -> Tensor:
        """Energies [N] of a prior over all pairs of systems without periodic directions, from charges [N,M].

        Engines with kernels for such a prior override this.
        """
        return prior.plain_pairs(self.batch, self.positions, charges)


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    """Settings of a prior, checked on construction. `name` identifies it in configurations and files."""

    name: ClassVar[str]

    def scaled(self, factor: float) -> Self:
        """The settings of the same prior with its energy multiplied by a factor.

        Only conversions of energies need it.

        Raises:
            NotImplementedError: For a prior that does not define it.
        """
        raise NotImplementedError(f"the prior {self.name} must define scaled(factor), which changes its energy unit")

    def _require(self, name: str, holds: bool, wanted: str) -> None:
        """Raises ValueError that says what a setting must be, unless it holds."""
        if not holds:
            raise ValueError(f"{name} of the prior {self.name} must be {wanted}, got {getattr(self, name)!r}")

    def _require_lengths(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            self._require(name, is_number(value) and 0 < value < math.inf, "> 0 Å and finite")
            self._require(name, value <= LONGEST, f"<= {LONGEST} Å")

    def _require_finite(self, *names: str) -> None:
        for name in names:
            self._require(name, is_number(value := getattr(self, name)) and math.isfinite(value), "a finite number")

    def _times(self, name: str, factor: float) -> Self:
        return replace(self, **{name: getattr(self, name) * factor})


class KeptChoice(Protocol):
    """What an engine's prior has chosen by reading the device, such as the vectors of a lattice sum."""

    @property
    def latest(self) -> Any: ...  # with fits(batch) -> bool tensor; None before the first evaluation

    def forget(self) -> None: ...  # once no graph has it: the next launch chooses another


class Prior(nn.Module, ABC):
    """An energy term without weights, eV, differentiable to any order.

    Attributes:
        max_z: The largest atomic number it supports.
        kept: Of an engine, after `keep_lists`; None if nothing is chosen.
    """

    config: Any
    kept: KeptChoice | None = None
    max_z: int = LAST_ELEMENT
    # Whether it sums over all pairs of systems without periodic directions, for which it needs positions, not edges.
    sees_all_pairs: bool = False
    # Whether what it depends on is not the structure alone, so that forces on the atoms need not add up to zero.
    acts_from_outside: bool = False
    # The distance up to which atoms influence the energy of an atom, in cutoffs; None: any distance, or not known.
    reach: int | None = None

    def cutoff(self, periodic: bool) -> float:
        """Cutoff of the neighbour list it needs, Å, for systems with or without periodic directions."""
        return float(self.config.cutoff)

    def keep_lists(self) -> None:
        """From now on keeps what it chooses by reading the device. Engines call it for a prior that is theirs alone."""

    def doubts(self, title: str, periodic: bool, charge: float = 0.0) -> list[str]:
        """What users of a potential should know about this term, in systems with or without periodic directions.

        Args:
            title: Of the potential.
            charge: Of the system, e.
        """
        return []

    @abstractmethod
    def forward(self, geometry: Geometry) -> Tensor:
        """Energies [N] of the atoms, which sum to the energy of their system."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in exact.items():  # tables are moved to the device, not rounded
            setattr(self, name, value.to(device=getattr(self, name).device))
        return self


def shapes_are_fixed(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being captured or a compiler runs: nothing may be read on the host then."""
    if torch.compiler.is_compiling():
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True and False are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)
