"""The environment of an atom: all that its energy and the force on it depend on, as a cluster of atoms."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchmdx.neighbors.edges import Edges, from_lists
from torchmdx.neighbors.explicit import copies, pairs
from torchmdx.structures import cell as lattice
from torchmdx.structures.system import Batch

# The drawn atoms: one and the nearest ones around it; their largest number and distance, Å.
MOST_DRAWN, DRAWN_WITHIN = 8, 2.5
# Environments of more atoms are not evaluated.
MOST_AROUND = 40_000


class NotAffordable(RuntimeError):
    """What an audit would have to evaluate is too large; says how large."""


@dataclass(frozen=True, eq=False)
class Environment:
    """The first atoms, and all that are at most `len(within) - 1` hops from neighbour to neighbour away from them.

    A periodic image is an atom of its own. atoms [M]: what each is a copy of, in the structure; sorted by hops.
    positions [M,3] Å, relative to the first atom. within [K+1]: how many have at most k hops. edges: those of the atoms
    with fewer than K hops, without shifts.
    """

    atoms: Tensor
    positions: Tensor
    edges: Edges
    within: list[int]


@dataclass(frozen=True, eq=False)
class Around:
    """Copies of atoms around one, nearest first: atoms [M], positions [M,3] Å relative to it; the drawn ones first."""

    atoms: Tensor
    positions: Tensor
    num_drawn: int
    _made: dict[tuple[float, int], Environment] = field(default_factory=dict)

    def environment(self, cutoff: float, hops: int) -> Environment:
        """The environment of the drawn atoms. `around` must have gone as far as these hops do."""
        if (cutoff, hops) not in self._made:
            self._made[cutoff, hops] = self._make(cutoff, hops)
        return self._made[cutoff, hops]

    def _make(self, cutoff: float, hops: int) -> Environment:
        apart = torch.linalg.vector_norm(self.positions, dim=-1)
        num_targets = int((apart <= (hops - 1) * cutoff + DRAWN_WITHIN).sum())
        target, source = pairs(self.positions, num_targets, cutoff)
        away = torch.full_like(self.atoms, hops + 1)
        away[: self.num_drawn] = 0
        for hop in range(1, hops + 1):
            reached = source[away[target] == hop - 1]
            away[reached] = away[reached].clamp(max=hop)
        order = away.argsort(stable=True)[: int((away <= hops).sum())]
        place = torch.full_like(away, -1)
        place[order] = torch.arange(len(order), device=order.device)
        kept = away[target] < hops
        target, source = place[target[kept]], place[source[kept]]
        by_target = (target * len(order) + source).argsort()
        shifts = target.new_zeros(len(target), 3)
        edges = from_lists(target[by_target], source[by_target], shifts, len(order), len(target))
        sizes = torch.bincount(away[order], minlength=hops + 1).cumsum(0)
        return Environment(self.atoms[order], self.positions[order], edges, sizes.tolist())


def around(batch: Batch, atom: int, distance: float) -> Around:
    """Copies of the atoms of a system around one of them, up to a distance from the drawn ones, Å.

    Raises NotAffordable for too many.
    """
    system = int(batch.system_index[atom])
    own = (batch.system_index == system).nonzero().squeeze(-1)
    cell, pbc, radius = batch.cell[system], batch.pbc[system], distance + DRAWN_WITHIN
    positions = batch.positions.detach()[own] - batch.positions.detach()[atom]
    full = lattice.complete(cell[None], pbc[None])[0]
    inverse = torch.linalg.inv(full)
    places = positions @ inverse
    images = torch.where(pbc, torch.round(places), 0.0)
    places, positions = places - images, positions - images @ full
    if not bool(pbc.all()):  # directions without copies have no limits in fractional coordinates
        near = (torch.linalg.vector_norm(torch.where(pbc, 0.0, places), dim=-1) <= radius).nonzero().squeeze(-1)
        own, places, positions = own[near], places[near], positions[near]
    margin = radius * torch.linalg.vector_norm(inverse, dim=0)
    atoms, shifts = copies(places, pbc, -margin, margin)
    positions = positions[atoms] + shifts @ full
    apart = torch.linalg.vector_norm(positions, dim=-1)
    order = apart.argsort(stable=True)[: int((apart <= radius).sum())]
    if len(order) > MOST_AROUND:
        raise NotAffordable(
            f"what an atom depends on, {len(order):,} atoms within {math.ceil(radius)} Å, is more than the exact model "
            f"is given ({MOST_AROUND:,})"
        )
    drawn = min(MOST_DRAWN, int((apart <= DRAWN_WITHIN).sum()))
    return Around(own[atoms[order]], positions[order], drawn)
