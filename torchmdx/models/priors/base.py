"""What a prior is, and what it sees."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from torchmdx.neighbors.edges import Edges
from torchmdx.system import LAST_ELEMENT, Batch

LONGEST = 10_000.0  # Å; bounds what a damaged configuration can ask for


class OpenPairPrior(Protocol):
    """A prior that sees all pairs of systems without periodic directions."""

    def plain_pairs(self, batch: Batch, positions: Tensor, charges: Tensor) -> Tensor:
        """Energies [N] of all those pairs, from positions [N,3] Å and charges [N,M], in plain torch."""
        ...


@dataclass(frozen=True, eq=False)
class Geometry:
    """A batch as priors see it.

    distance [E] Å of `edges`, which reach at least as far as the potential's search cutoff; beyond the last edge it
    is longer than any cutoff. positions [N,3] Å serve pairs that no list holds: all pairs of systems without
    periodic directions. charges [N,M]: partial charges in M channels, None where the network predicts none.
    Gradients flow through distance, positions and charges.
    """

    batch: Batch
    edges: Edges
    distance: Tensor
    positions: Tensor
    charges: Tensor | None

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
        """Energies [N] of atoms from those [E] of pairs, each of which stands in the list twice."""
        return self.onto_targets(0.5 * pair_energy)

    def open_pairs(self, prior: OpenPairPrior, charges: Tensor) -> Tensor:
        """Energies [N] of a prior over all pairs of systems without periodic directions, from charges [N,M].

        Another way of evaluating the geometry may replace this by kernels of its own.
        """
        return prior.plain_pairs(self.batch, self.positions, charges)


@dataclass(frozen=True, kw_only=True)
class PriorConfig:
    """Settings of a prior, checked on construction. `name` is what configurations and files call it."""

    name: ClassVar[str]

    def scaled(self, factor: float) -> Self:
        """The same prior, its energy times a factor."""
        raise NotImplementedError

    def _require_lengths(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not _is_number(value) or not 0 < value < math.inf:
                raise ValueError(f"{name} of the prior {self.name} must be > 0 Å and finite, got {value!r}")
            if value > LONGEST:
                raise ValueError(f"{name} of the prior {self.name} must be <= {LONGEST} Å, got {value!r}")

    def _require_finite(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not _is_number(value) or not math.isfinite(value):
                raise ValueError(f"{name} of the prior {self.name} must be a finite number, got {value!r}")

    def _times(self, name: str, factor: float) -> Self:
        return replace(self, **{name: getattr(self, name) * factor})


class Prior(nn.Module):
    """A term of the energy, eV, with gradients to any order.

    max_z: the largest atomic number it knows.
    """

    config: Any
    max_z: int = LAST_ELEMENT
    # Whether it sees all pairs of systems without periodic directions: it then takes positions, not edges, there.
    sees_all_pairs: bool = False

    def cutoff(self, periodic: bool) -> float:
        """How far the list of edges must reach, Å: with periodic directions, or without any."""
        return float(self.config.cutoff)

    def forward(self, geometry: Geometry) -> Tensor:
        """Energies [N] of the atoms, which sum to the energy of their system."""
        raise NotImplementedError

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        exact = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)
        for name, value in exact.items():  # tables are moved, but never rounded
            setattr(self, name, value.to(device=getattr(self, name).device))
        return self


def shapes_are_fixed(tensor: Tensor) -> bool:
    """Whether this is being recorded (a CUDA graph, a compiler): nothing may then be read on the host."""
    if torch.compiler.is_compiling():
        return True
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
