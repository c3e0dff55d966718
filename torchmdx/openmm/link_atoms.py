"""Hydrogen link atoms at the bonds that a region cuts: where they are, and whose their forces are.

A link atom is on the bond, at a fixed distance d from the inner atom::

    r_link = r_inner + d u,  u = b / |b|,  b = r_outer - r_inner

It is no particle of the System. The chain rule gives its force F to the two atoms of the bond::

    F_outer += d / |b| (F - (F · u) u),  F_inner += F - that
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchmdx.structures.units import NANOMETER

HYDROGEN = 1


class LinkAtom(NamedTuple):
    """A hydrogen on the bond from `inner`, a particle of the region, to `outer`, one that is not; distance in nm."""

    inner: int
    outer: int
    distance: float


def checked_links(links: Sequence[LinkAtom], atoms: Sequence[int] | None, num_particles: int) -> tuple[LinkAtom, ...]:
    """The link atoms of a region. Raises ValueError if they do not start in it and end outside, each elsewhere."""
    found = tuple(LinkAtom(*link) for link in links)
    inside = set(range(num_particles) if atoms is None else atoms)
    ends = [link.outer for link in found]
    for link in found:
        if link.inner not in inside or link.outer in inside or not 0 <= link.outer < num_particles:
            raise ValueError(f"a link atom must be on a bond from an atom of the region to one outside, got {link}")
        if ends.count(link.outer) > 1:
            raise ValueError(f"an atom outside the region can have one link atom, got several at {link.outer}")
        if not 0 < link.distance < math.inf:
            raise ValueError(f"the distance of a link atom must be > 0 nm and finite, got {link.distance}")
    return found


class Placed(NamedTuple):
    """positions [n+L,3] of the potential's atoms; directions u [L,3] and ratios d/|b| [L,1] of the L link atoms."""

    positions: Tensor
    directions: Tensor
    ratios: Tensor


class LinkAtoms:
    """The link atoms of a region of n particles, on one device.

    Attributes:
        inner: Places of the inner atoms in the region.
        distances: [L,1] Å.
    """

    def __init__(self, links: Sequence[LinkAtom], atoms: Sequence[int], device: torch.device | str) -> None:
        places = {particle: place for place, particle in enumerate(atoms)}
        self.num_atoms = len(places)
        self.inner = torch.tensor([places[link.inner] for link in links], dtype=torch.long, device=device)
        lengths = [NANOMETER * link.distance for link in links]
        self.distances = torch.tensor(lengths, dtype=torch.float64, device=device)[:, None]

    def place(self, positions: Tensor, cell: Tensor | None) -> Placed:
        """From positions [n+L,3] of the region and then of the outer atoms, Å.

        Args:
            cell: [3,3] Å, with which the bond is the shortest of its periodic images; None: no images.
        """
        own = positions[: self.num_atoms]
        start = own[self.inner]
        bond = positions[self.num_atoms :] - start
        if cell is not None:
            for axis in (2, 1, 0):  # OpenMM's boxes are triangular
                bond = bond - torch.round(bond[:, axis : axis + 1] / cell[axis, axis]) * cell[axis]
        length = torch.linalg.vector_norm(bond, dim=1, keepdim=True)
        directions = bond / length
        links = start + self.distances * directions
        return Placed(torch.cat([own, links]), directions, self.distances / length)

    def distribute(self, forces: Tensor, placed: Placed) -> Tensor:
        """Forces [n+L,3] on the region and the outer atoms, from those on the region and the link atoms."""
        of_links = forces[self.num_atoms :]
        along = (of_links * placed.directions).sum(1, keepdim=True) * placed.directions
        outer = placed.ratios.to(forces.dtype) * (of_links - along.to(forces.dtype))
        own = forces[: self.num_atoms].index_add(0, self.inner, of_links - outer)
        return torch.cat([own, outer])
