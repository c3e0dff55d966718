"""The searches on the GPU: buffers and launches of the Triton kernels. Nothing here reads from the device."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from torchmdx import cell as lattice
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.kernels import brute_force as brute
from torchmdx.neighbors.kernels import cell_list as cells
from torchmdx.neighbors.kernels.skin import moved
from torchmdx.system import Batch

# A reference that every atom is far from: the first update always searches.
NOWHERE = 1e15
SCAN_BLOCK = 1024
# Bins are this much wider than the cutoff, so that rounding does not make the cutoff reach over two.
BIN_MARGIN = 1.002


class GpuSearch:
    """What both searches share: the state of the skin. Subclasses fill `edges` for positions and cell."""

    def __init__(self, batch: Batch, cutoff: float, skin: float, edges: Edges) -> None:
        device, dtype = batch.positions.device, batch.positions.dtype
        radius = cutoff + skin
        self.radius, self.skin, self.edges = radius, skin, edges
        self.cutoffs = torch.tensor([radius, radius**2, cutoff], dtype=dtype, device=device)
        self.pbc = torch.zeros_like(batch.pbc, dtype=torch.int32)
        self.system_index = torch.zeros_like(batch.system_index, dtype=torch.int32)
        self.active = torch.ones((), dtype=torch.int32, device=device)
        self.invalid = torch.zeros((), dtype=torch.int32, device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.reference = torch.empty_like(batch.positions)
        self.reference_cell = torch.empty_like(batch.cell)
        self.counts = torch.zeros(batch.num_atoms + 1, dtype=torch.int32, device=device)

    def assign(self, batch: Batch) -> None:
        """Takes other atoms, in the buffers there are; the next update searches."""
        self.pbc.copy_(batch.pbc)
        self.system_index.copy_(batch.system_index)
        self.reference.fill_(NOWHERE)
        self.reference_cell.copy_(batch.cell)

    def update(self, positions: Tensor, cell: Tensor) -> None:
        """Searches, unless the skin says that the list is still good."""
        if self.skin > 0:
            self.active.zero_()
            moved[(triton.cdiv(len(positions), 512),)](
                positions, cell, self.pbc, self.system_index, self.reference, self.reference_cell, self.cutoffs,
                self.active, len(positions), BLOCK=512, num_warps=4,
            )  # fmt: skip
        self._search(positions, cell)

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        raise AssertionError("a subclass searches")


class GpuBruteForce(GpuSearch):
    """Every pair: two kernels."""

    def __init__(self, batch: Batch, cutoff: float, skin: float, edges: Edges) -> None:
        super().__init__(batch, cutoff, skin, edges)
        largest = int(batch.counts().max())
        self.rows = 4 if largest < 2048 else 8
        self.block = 128 if largest > 64 else triton.next_power_of_2(max(largest, 16))
        self.periodic = bool(batch.pbc.any())
        # Every system can leave a part of a program's rows unused.
        self.num_programs = triton.cdiv(batch.num_atoms, self.rows) + batch.num_systems
        device = batch.positions.device
        self.system_start = torch.zeros(batch.num_systems + 1, dtype=torch.int32, device=device)
        self.program_system = torch.zeros(self.num_programs, dtype=torch.int32, device=device)
        self.program_row = torch.zeros(self.num_programs, dtype=torch.int32, device=device)
        self.assign(batch)

    def assign(self, batch: Batch) -> None:
        if not self.periodic and bool(batch.pbc.any()):
            raise ValueError("a search that was allocated without periodic directions can't take a periodic system")
        super().assign(batch)
        counts = batch.counts()
        start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        blocks = -(-counts // self.rows)
        system = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), blocks)
        first_block = (blocks.cumsum(0) - blocks)[system]
        row = start[system] + (torch.arange(len(system), device=counts.device) - first_block) * self.rows
        self.system_start.copy_(start)
        # Programs that are not needed get a row beyond all atoms, and do nothing.
        self.program_system.fill_(batch.num_systems - 1)[: len(system)] = system.to(torch.int32)
        self.program_row.fill_(batch.num_atoms)[: len(system)] = row.to(torch.int32)

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        edges, num_programs = self.edges, self.num_programs
        shared = (
            positions, cell, self.pbc, self.cutoffs, self.program_system, self.program_row, self.system_start,
            self.active, self.counts, self.invalid,
        )  # fmt: skip
        sizes: dict[str, Any] = dict(
            PERIODIC=self.periodic, SKIN=self.skin > 0, ROWS=self.rows, BLOCK=self.block, num_warps=4
        )
        brute.count[(num_programs,)](*shared, **sizes)
        brute.fill[(num_programs,)](
            *shared, edges.row_ptr, edges.source, edges.target, edges.shifts, edges.num_edges, edges.needed,
            edges.overflow, self.reference, self.reference_cell, self.updates,
            len(positions), len(cell), edges.capacity, num_programs, SCAN=SCAN_BLOCK, **sizes,
        )  # fmt: skip


class GpuCellList(GpuSearch):
    """Bins a cutoff wide: nine kernels whatever the size."""

    def __init__(self, batch: Batch, cutoff: float, skin: float, edges: Edges) -> None:
        super().__init__(batch, cutoff, skin, edges)
        device, dtype, n, s = batch.positions.device, batch.positions.dtype, batch.num_atoms, batch.num_systems
        self.num_bins = int(choose_bins(batch, self.radius * BIN_MARGIN)[0].prod(1).sum())

        def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.geometry, self.bin_system = new(s, 8), new(self.num_bins)
        self.origins, self.widths, self.axes = (new(s, k, dtype=dtype) for k in (3, 3, 9))
        self.dual = new(s, 9, dtype=dtype)
        self.bin_counts, self.bin_starts = new(self.num_bins), new(self.num_bins + 1)
        self.wrapped, self.packed = new(n, 4, dtype=dtype), new(n, 4, dtype=dtype)
        self.images, self.packed_images = new(n, 3), new(n, 4)
        self.bins_of, self.ranks, self.unsettled, self.atoms, self.bins = (new(n) for _ in range(5))
        longest = max(n, self.num_bins)
        # One program adds up all sums before it, so they must fit in one block.
        self.scan_block = max(SCAN_BLOCK, triton.next_power_of_2(-(-longest // 4096)))
        self.sums = new(triton.cdiv(longest, self.scan_block), dtype=torch.int64)
        self.assign(batch)

    def assign(self, batch: Batch) -> None:
        super().assign(batch)
        width, scale = self.radius * BIN_MARGIN, 1.0
        while True:
            bins, origins, widths, axes = choose_bins(batch, width * scale)
            sizes = bins.prod(1)
            if int(sizes.sum()) <= self.num_bins:
                break
            scale *= 1.26  # half the bins
        first = sizes.cumsum(0) - sizes
        self.geometry[:, :3].copy_(bins)
        self.geometry[:, 3].copy_(first)
        # Bins that are not needed stay empty.
        self.bin_system.zero_()[: int(sizes.sum())] = torch.repeat_interleave(torch.arange(len(bins)), sizes).to(
            device=self.bin_system.device, dtype=torch.int32
        )
        for own, given in ((self.origins, origins), (self.widths, widths), (self.axes, axes)):
            own.copy_(given)

    def _search(self, positions: Tensor, cell: Tensor) -> None:
        n, s = len(positions), len(cell)
        edges, skin, active = self.edges, self.skin > 0, self.active
        block = 256
        grid = (triton.cdiv(n, block),)
        cells.measure[(triton.cdiv(max(s, self.num_bins), block),)](
            cell, self.pbc, self.cutoffs, self.axes, self.widths, self.geometry, self.dual, self.bin_counts, active,
            self.invalid, s, self.num_bins, SKIN=skin, BLOCK=block, num_warps=4,
        )  # fmt: skip
        cells.locate[grid](
            positions, cell, self.pbc, self.system_index, self.geometry, self.dual, self.origins, self.widths,
            self.wrapped, self.images, self.bins_of, self.ranks, self.bin_counts, active, n, SKIN=skin, BLOCK=block,
            num_warps=4,
        )  # fmt: skip
        self._scan(self.bin_counts, self.bin_starts, self.num_bins, n, counts_edges=False)
        cells.place[grid](
            self.bins_of, self.ranks, self.bin_starts, self.unsettled, active, n, SKIN=skin, BLOCK=block, num_warps=4
        )
        cells.settle[(triton.cdiv(n, 128),)](
            self.unsettled, self.bin_starts, self.wrapped, self.images, self.atoms, self.packed, self.packed_images,
            self.bins, active, self.num_bins, n, self.bins_of, SKIN=skin, BLOCK=128, BIN=16, num_warps=4,
        )  # fmt: skip
        for filling in (False, True):
            cells.walk[(self.num_bins,)](
                cell, self.pbc, self.cutoffs, self.geometry, self.bin_system, self.bin_starts, self.packed,
                self.packed_images, self.atoms, active, self.counts, positions, edges.row_ptr, edges.source,
                edges.target, edges.shifts, edges.num_edges, self.reference, self.reference_cell, edges.capacity, n, s,
                self.num_bins, FILL=filling, SKIN=skin, ROWS=16, BLOCK=32, num_warps=2,
            )  # fmt: skip
            if not filling:
                self._scan(self.counts, edges.row_ptr, n, edges.capacity, counts_edges=True)

    def _scan(self, values: Tensor, starts: Tensor, length: int, capacity: int, counts_edges: bool) -> None:
        blocks, edges, skin = triton.cdiv(length, self.scan_block), self.edges, self.skin > 0
        cells.scan_sums[(blocks,)](
            values, self.sums, self.active, length, SKIN=skin, BLOCK=self.scan_block, num_warps=4
        )
        cells.scan_place[(blocks,)](
            values, self.sums, starts, capacity, edges.num_edges, edges.needed, edges.overflow, self.invalid,
            self.updates, self.active, length, blocks, EDGES=counts_edges, SKIN=skin, BLOCK=self.scan_block,
            SUMS=triton.next_power_of_2(blocks), num_warps=4,
        )  # fmt: skip


def choose_bins(batch: Batch, width: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(bins [S,3] int64, origins [S,3], widths [S,3], axes [S,9]) on the host: bins at least `width` wide.

    Origins, widths and axes serve open directions only; bins are made coarser where there would be far more than atoms.
    """
    positions, cell = batch.positions.double().cpu(), batch.cell.double().cpu()
    pbc, index = batch.pbc.cpu(), batch.system_index.cpu()
    full = lattice.complete(cell, pbc)
    heights = 1 / torch.linalg.vector_norm(torch.linalg.inv(full), dim=-2)
    along = torch.einsum("ni,nki->nk", torch.nan_to_num(positions, 0.0, 0.0, 0.0), full[index])
    low = torch.full((batch.num_systems, 3), torch.inf, dtype=torch.float64)
    low = low.scatter_reduce(0, index[:, None].expand(-1, 3), along, "amin")
    high = (-low.new_full(low.shape, torch.inf)).scatter_reduce(0, index[:, None].expand(-1, 3), along, "amax")
    extent = torch.where(torch.isfinite(high - low), high - low, 0.0)
    low = torch.where(torch.isfinite(low), low, 0.0)
    length = torch.where(pbc, heights, extent)
    bins = torch.floor(length / width).clamp(1, 1024).to(torch.int64)
    most = (4 * batch.counts().cpu() + 64).double()
    coarser = (bins.prod(1).double() / most).clamp(min=1.0) ** (1 / 3)
    bins = torch.floor(bins / coarser[:, None]).clamp(min=1).to(torch.int64)
    widths = torch.maximum(extent / bins, torch.tensor(width, dtype=torch.float64))
    return bins, low, widths, full.flatten(1)
