"""The searches on the GPU: buffers and launches of the Triton kernels. Nothing here reads from the device."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.grid import blocks, choose_grid, groups, tiles
from torchmdx.neighbors.kernels import bin_pairs, bins, single_pass
from torchmdx.neighbors.kernels.still_good import moved_too_far
from torchmdx.structures.cell import complete
from torchmdx.structures.system import Batch

# Tiles per step of the look-back.
WINDOW = 128
# Atoms per program of the kernels that read each atom once.
BLOCK = 256
SCAN_BLOCK = 1024
ROW_SCAN_BLOCK = 4096
# Programs that divide work among themselves: enough for the largest GPU, few enough to end quickly when idle.
MOST_PROGRAMS = 132 * 32
# Atoms of the largest system, and of all systems, up to which images of atoms are columns.
FEW_ATOMS, FEW_IN_ALL = 128, 1024
# Tiles of up to this number of systems are kept: a structure in a padded step is two, of a size that recurs.
MOST_KEPT = 2
# Edges that a program of `write_edges` writes at a time, its warps, and programs that write padding.
SLOTS, WRITE_WARPS, PADDERS = 256, 2, 64
# Words of hits per lane at most. Candidates of a cutoff for each neighbour in it: a cube of 3 x 3 x 3 bins.
MOST_WORDS, CANDIDATES = 16, 6.9


class OnePassSearch:
    """The skin and the state of the look-back, for both searches. Subclasses launch the search."""

    def __init__(self, batch: Batch, cutoff: float, skin: float, edges: Edges) -> None:
        device = batch.positions.device
        self.device, self.skin, self.edges = device, skin, edges
        self.radius = cutoff + skin
        # On the device, because Triton rounds floating-point arguments to float32.
        self.limits = torch.tensor([self.radius, cutoff], dtype=torch.float64, device=device)
        self.num_atoms, self.counts = batch.num_atoms, batch.counts().tolist()
        self.pbc = batch.pbc.to(torch.int32).contiguous()
        self.type: Any = triton.language.float64 if batch.positions.dtype == torch.float64 else triton.language.float32
        self.blocks = blocks(self.counts, BLOCK).to(device)
        # The first update always searches, and so does an update after an invalid list.
        self.active = torch.ones((), dtype=torch.int32, device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.invalid = torch.zeros((), dtype=torch.bool, device=device)
        self.flaws = torch.zeros(2, dtype=torch.int32, device=device)
        self.reference = torch.zeros_like(batch.positions if skin > 0 else batch.positions[:0])
        self.reference_cell = batch.cell.detach().clone()

    def _look_back(self, tiles: int) -> tuple[Tensor, Tensor]:
        """(ticket, words) of a kernel whose tiles look back."""
        return (torch.zeros(size, dtype=torch.int64, device=self.device) for size in (1, tiles))  # type: ignore[return-value]

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> bool:
        """Accepts other atoms if the buffers fit them; then the next update searches."""
        same = list(batch.counts().tolist() if counts is None else counts) == self.counts
        if not same or not bool((self.pbc == batch.pbc).all()):
            return False
        self.active.fill_(1)
        return True

    def update(self, positions: Tensor, cell: Tensor) -> None:
        """Searches, unless the list is still valid within its skin."""
        if self.skin > 0:
            moved_too_far[(len(self.blocks),)](
                positions, cell, self.pbc, self.reference, self.reference_cell, self.blocks, self.active,
                self.limits, BLOCK=BLOCK, num_warps=4,
            )  # fmt: skip
        self._search(positions, cell)

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        raise AssertionError("a subclass searches")

    def _outputs(self) -> tuple[Tensor, ...]:
        e = self.edges
        return (
            e.row_ptr, e.source, e.target, e.shifts, e.num_edges, e.needed, e.overflow.view(torch.int8),
            self.invalid.view(torch.int8), self.active, self.updates,
        )  # fmt: skip


class OnePassBruteForce(OnePassSearch):
    """Every pair, in one kernel."""

    def __init__(
        self, batch: Batch, cutoff: float, skin: float, edges: Edges, sizes: tuple[int, int, int] | None = None
    ) -> None:
        super().__init__(batch, cutoff, skin, edges)
        largest = max(self.counts)
        rows, columns, warps = sizes or self._sizes(largest, self.num_atoms)
        many = few_with_images(batch, self.radius, largest)
        if many and sizes is None:
            rows, columns, warps = (1, 256, 4) if largest <= 8 else (1, 512, 8)
        self.sizes = dict(ROWS=rows, COLUMNS=columns, IMAGES=many, num_warps=warps)
        # Systems of other sizes may need more tiles: each can leave one part-filled.
        number = triton.cdiv(self.num_atoms, rows) + len(self.counts)
        self.tiles = self._all_tiles(self.counts, number).to(self.device, copy=True)  # others may keep the same
        self.padders = 16
        self.ticket, self.words = self._look_back(len(self.tiles))

    def _all_tiles(self, counts: list[int], number: int) -> Tensor:
        """`number` tiles, on the host; those without atoms begin and end after the last atom."""
        kept = _kept_tiles if len(counts) <= MOST_KEPT else _kept_tiles.__wrapped__
        return kept(tuple(counts), self.sizes["ROWS"], number, self.device.type == "cuda")

    def assign(self, batch: Batch, counts: Sequence[int] | None = None) -> bool:
        if self.skin > 0:  # the skin's blocks are those of the old systems
            return False
        before, self.counts = self.counts, batch.counts().tolist() if counts is None else list(counts)
        self.pbc.copy_(batch.pbc)
        if self.counts != before:
            self.tiles.copy_(self._all_tiles(self.counts, len(self.tiles)), non_blocking=True)
        return True

    @staticmethod
    def _sizes(largest: int, num_atoms: int) -> tuple[int, int, int]:
        """(rows, columns, warps) of a program, for the largest system and for all atoms."""
        if largest <= 64:
            return (2, 32, 1) if num_atoms <= 1024 else (16, 32, 1)
        return (2, 256, 4) if largest <= 1024 else (4, 256, 4)

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        single_pass.brute_force[(len(self.tiles) + self.padders,)](
            positions, cell, self.pbc, self.tiles, *self._outputs(), self.ticket, self.words, self.flaws,
            self.reference, self.reference_cell, self.limits, self.edges.capacity, len(self.tiles), self.num_atoms,
            TYPE=self.type, PADDERS=self.padders, WINDOW=WINDOW, SKIN=self.skin > 0, **self.sizes,
        )  # fmt: skip


def few_with_images(batch: Batch, radius: float, largest: int) -> bool:
    """Whether systems have few atoms, and one of them neighbours in several images: then columns are images."""
    if largest > FEW_ATOMS or batch.num_atoms > FEW_IN_ALL or not bool(batch.pbc.any()):
        return False
    whole = complete(batch.cell.detach().double(), batch.pbc)
    heights = 1 / torch.linalg.vector_norm(torch.linalg.inv_ex(whole)[0], dim=-2)  # between opposite faces of cells
    return bool(((radius > heights / 2) & batch.pbc).any())


@functools.lru_cache(maxsize=256)
def _kept_tiles(counts: tuple[int, ...], rows: int, number: int, pinned: bool) -> Tensor:
    """The tiles of systems of these sizes. From pinned memory a copy is asynchronous, in stream order."""
    table = torch.full((number, 5), sum(counts), dtype=torch.int32, device="cpu")
    table[:, 0] = 0
    needed = tiles(list(counts), rows)
    table[: len(needed)] = needed
    return table.pin_memory() if pinned else table


class OnePassCellList(OnePassSearch):
    """Bins, in seven kernels.

    Args:
        sizes: Rows, columns and warps of the programs over pairs, bins per group of rows, programs per group.
    """

    def __init__(
        self,
        batch: Batch,
        cutoff: float,
        skin: float,
        edges: Edges,
        sizes: tuple[int, int, int, int, int] | None = None,
    ) -> None:
        super().__init__(batch, cutoff, skin, edges)
        rows, columns, warps, width, split = sizes or self._sizes()
        self.sizes = dict(ROWS=rows, COLUMNS=columns, SPLIT=split, num_warps=warps)
        grid = choose_grid(batch, self.radius)
        self.grids, self.scales, self.num_bins = grid.grids.to(self.device), grid.scales.to(self.device), grid.num_bins
        self.groups = groups(grid, width).to(self.device)
        self.scans = triton.cdiv(self.num_bins, SCAN_BLOCK)
        self.scan_ticket, self.scan_words = self._look_back(self.scans)
        self.row_scans = triton.cdiv(self.num_atoms * split, ROW_SCAN_BLOCK)
        self.row_ticket, self.row_words = self._look_back(self.row_scans)
        candidates = max(grid.candidates, CANDIDATES * edges.capacity / max(self.num_atoms, 1))
        self.words = self._words(candidates, grid.lines, columns, split)
        self._scratch(batch, columns, split)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        """Few atoms leave most of a GPU idle, so their work is divided into smaller pieces."""
        if self.device.type == "cpu":  # under the interpreter more programs are only slower
            return (16, 16, 1, 1, 1)
        return (16, 16, 1, 1, 9 if self.num_atoms < 8000 else 3 if self.num_atoms < 50000 else 1)

    @staticmethod
    def _words(candidates: float, lines: int, columns: int, split: int) -> int:
        """Words of 32 hits per lane, for a number of candidates of an atom.

        The last of the passes along each line of bins is part-filled. A fourth is added because density varies.
        """
        passes = (candidates / columns + lines / 2) / split
        return min(max(math.ceil(1.25 * passes / 32), 1), MOST_WORDS)

    def _scratch(self, batch: Batch, columns: int, split: int) -> None:
        n, systems = batch.num_atoms, batch.num_systems

        def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.bin, self.rank, self.members, self.atom, self.done = new(n), new(n), new(n), new(n), new()
        self.last = new(dtype=torch.int64)
        self.images, self.sorted_images = new(n, dtype=torch.int64), new(n, dtype=torch.int64)
        pieces = len(self.groups) * split
        self.hits, self.after = new(split, n, self.words, columns), new(split, n, columns)
        self.row_counts = new(n * split)
        self.passes, self.lengths = new(pieces, 32 * self.words, dtype=torch.int64), new(pieces)
        self.bin_counts, self.starts, self.reaches = new(self.num_bins), new(self.num_bins + 1), new(systems, 3)
        self.wrapped, self.shapes = (new(k, m, dtype=batch.positions.dtype) for k, m in ((n, 3), (systems, 9)))
        self.x, self.y, self.z = (new(n, dtype=batch.positions.dtype) for _ in range(3))

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        self._sort(positions, cell)
        e, skin, capacity = self.edges, self.skin > 0, self.edges.capacity
        found = (
            self.groups, self.grids, self.pbc, self.shapes, self.reaches, self.starts, self.x, self.y, self.z,
            self.limits, self.atom, self.sorted_images, self.hits, self.passes, self.lengths, self.after,
            self.row_counts,
        )  # fmt: skip
        split, pieces = self.sizes["SPLIT"], len(self.groups) * self.sizes["SPLIT"]
        bin_pairs.find_pairs[(min(pieces, MOST_PROGRAMS),)](
            *found, self.active, len(self.groups), self.num_atoms, TYPE=self.type, WORDS=self.words, SKIN=skin,
            **self.sizes,
        )  # fmt: skip
        bin_pairs.start_rows[(self.row_scans,)](
            self.row_counts, e.row_ptr, e.num_edges, e.needed, e.overflow.view(torch.int8),
            self.invalid.view(torch.int8), self.active, self.done, self.updates, self.row_ticket, self.row_words,
            self.flaws, capacity, self.row_scans, self.num_atoms * split, SPLIT=split, BLOCK=ROW_SCAN_BLOCK,
            WINDOW=WINDOW, SKIN=skin, num_warps=4,
        )  # fmt: skip
        bin_pairs.write_edges[(min(max(pieces, PADDERS), MOST_PROGRAMS),)](
            *found, e.num_edges, e.source, e.target, e.shifts, self.active, self.done, self.last, capacity,
            len(self.groups), self.num_atoms, TYPE=self.type, WORDS=self.words, SLOTS=SLOTS, PADDERS=PADDERS,
            BLOCK=512, SKIN=skin, **(self.sizes | dict(num_warps=WRITE_WARPS)),
        )  # fmt: skip

    def _sort(self, positions: Tensor, cell: Tensor) -> None:
        skin, n = self.skin > 0, self.num_atoms
        bins.count_bins[(len(self.blocks),)](
            positions, cell, self.pbc, self.blocks, self.grids, self.scales, self.wrapped, self.images, self.bin,
            self.rank, self.bin_counts, self.shapes, self.reaches, self.flaws, self.active, self.reference,
            self.reference_cell, self.limits, TYPE=self.type, BLOCK=BLOCK, SKIN=skin, num_warps=4,
        )  # fmt: skip
        bins.start_bins[(self.scans,)](
            self.bin_counts, self.starts, self.active, self.scan_ticket, self.scan_words, self.num_bins, self.scans,
            BLOCK=SCAN_BLOCK, WINDOW=WINDOW, SKIN=skin, num_warps=4,
        )  # fmt: skip
        grid = (triton.cdiv(n, BLOCK),)
        bins.spread[grid](
            self.bin, self.rank, self.starts, self.members, self.active, n, BLOCK=BLOCK, SKIN=skin, num_warps=4
        )
        bins.order_bins[grid](
            self.members, self.bin, self.starts, self.wrapped, self.images, self.x, self.y, self.z, self.atom,
            self.sorted_images, self.active, n, BLOCK=BLOCK, SKIN=skin, num_warps=4,
        )  # fmt: skip
