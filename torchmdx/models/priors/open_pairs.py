"""All pairs of the atoms of systems without periodic directions, in blocks: pairs that no neighbour list holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.neighbors.edges import PADDED_LENGTH
from torchmdx.system import Batch

# Systems share a block when their sizes round to the same multiple: few blocks, little padding.
SIZE_STEP = 8


@dataclass(frozen=True, eq=False)
class Block:
    """B systems side by side: atoms [B,M] are numbers of atoms, pairs [B,M,M] says which two of a row are a pair."""

    atoms: Tensor
    pairs: Tensor

    def distances(self, positions: Tensor) -> Tensor:
        """Distances [B,M,M] Å, differentiable in positions [N,3]; longer than any cutoff where there is no pair."""
        places = positions[self.atoms]
        between = places[:, None] - places[:, :, None]
        between = torch.where(self.pairs[..., None], between, PADDED_LENGTH)
        return torch.linalg.vector_norm(between, dim=-1)


def open_systems(batch: Batch) -> Tensor:
    """Which systems have no periodic direction, [S] bool."""
    return ~batch.pbc.any(-1)


def open_blocks(batch: Batch) -> list[Block]:
    """Every pair of every system without periodic directions, once in each direction.

    Reads sizes on the host, unless a graph is being recorded: then all atoms make one block, whatever systems they
    are in, so that a graph stays right when the atoms are dealt out to systems anew.
    """
    if shapes_are_fixed(batch.positions):
        return [_one_block(batch)]
    counts, chosen = batch.counts().tolist(), open_systems(batch).tolist()
    first, rows = 0, {}  # type: int, dict[int, list[tuple[int, int]]]
    for count, wanted in zip(counts, chosen, strict=True):
        if wanted and count > 1:
            rows.setdefault(-(-count // SIZE_STEP) * SIZE_STEP, []).append((first, count))
        first += count
    return [_block(places, size, batch.positions.device) for size, places in rows.items()]


def _block(places: list[tuple[int, int]], size: int, device: torch.device) -> Block:
    first, count = torch.tensor(places, device=device).T[:, :, None].unbind(0)
    size = min(size, max(number for _, number in places))
    slot = torch.arange(size, device=device)[None]
    filled = slot < count
    pairs = filled[:, :, None] & filled[:, None] & ~torch.eye(size, dtype=torch.bool, device=device)
    return Block(torch.where(filled, first + slot, first), pairs)


def _one_block(batch: Batch) -> Block:
    atoms = torch.arange(batch.num_atoms, device=batch.positions.device)
    together = batch.system_index[:, None] == batch.system_index
    together &= open_systems(batch).index_select(0, batch.system_index)[:, None]
    together &= atoms[:, None] != atoms
    return Block(atoms[None], together[None])
