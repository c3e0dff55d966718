"""All pairs of atoms of systems without periodic directions, in dense blocks instead of a neighbour list."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.models.priors.base import shapes_are_fixed
from torchmdx.neighbors.edges import PADDED_LENGTH
from torchmdx.structures.system import Batch

# Systems share a block when their sizes round to the same multiple: few blocks, little padding.
SIZE_STEP = 8


@dataclass(frozen=True, eq=False)
class PairBlock:
    """B systems of up to M atoms: atoms [B,M] are indices of atoms, pairs [B,M,M] is true where two are a pair."""

    atoms: Tensor
    pairs: Tensor

    def distances(self, positions: Tensor) -> Tensor:
        """Distances [B,M,M] Å, differentiable in positions [N,3]; longer than any cutoff where there is no pair."""
        gathered = positions[self.atoms]
        between = gathered[:, None] - gathered[:, :, None]
        between = torch.where(self.pairs[..., None], between, PADDED_LENGTH)
        return torch.linalg.vector_norm(between, dim=-1)


def open_systems(batch: Batch) -> Tensor:
    """Which systems have no periodic direction, [S] bool."""
    return ~batch.pbc.any(-1)


def open_blocks(batch: Batch) -> list[PairBlock]:
    """Every pair of every system without periodic directions, once in each direction.

    Reads sizes on the host, except while a graph is captured: all atoms then form one block, so that the graph remains
    valid when `system_index` changes.
    """
    if shapes_are_fixed(batch.positions):
        return [_one_block(batch)]
    counts, chosen = batch.counts().tolist(), open_systems(batch).tolist()
    first, rows = 0, {}  # type: int, dict[int, list[tuple[int, int]]]
    for count, is_open in zip(counts, chosen, strict=True):
        if is_open and count > 1:
            rows.setdefault(-(-count // SIZE_STEP) * SIZE_STEP, []).append((first, count))
        first += count
    return [_block(places, size, batch.positions.device) for size, places in rows.items()]


def _block(places: list[tuple[int, int]], size: int, device: torch.device) -> PairBlock:
    first, count = torch.tensor(places, device=device).T[:, :, None].unbind(0)
    size = min(size, max(number for _, number in places))
    slot = torch.arange(size, device=device)[None]
    filled = slot < count
    pairs = filled[:, :, None] & filled[:, None] & ~torch.eye(size, dtype=torch.bool, device=device)
    return PairBlock(torch.where(filled, first + slot, first), pairs)


def _one_block(batch: Batch) -> PairBlock:
    atoms = torch.arange(batch.num_atoms, device=batch.positions.device)
    together = batch.system_index[:, None] == batch.system_index
    together &= open_systems(batch).index_select(0, batch.system_index)[:, None]
    together &= atoms[:, None] != atoms
    return PairBlock(atoms[None], together[None])
