"""The uncertainty of the energy on a GPU, in two kernels (Triton): σ² = |fᵀ R|² of atoms, and of sums over systems."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS = 16, 32  # atoms and columns of R of a program
BLOCK = 128  # of atoms whose columns are combined, and of what a system sums, at a time
SUMMED = 32


class UncertaintyKernels:
    """Memory and launches for one batch.

    Args:
        root: R [D,D].
        system_index: [N] ascending.
    """

    def __init__(self, root: Tensor, system_index: Tensor, num_systems: int) -> None:
        device, self.system_index = system_index.device, system_index
        self.num_atoms, self.num_systems, self.size = len(system_index), num_systems, len(root)
        self.width = triton.cdiv(self.size, COLUMNS) * COLUMNS
        self.root = torch.zeros(self.width, self.width, device=device)
        self.root[: self.size, : self.size] = root
        self.blocks = triton.cdiv(self.num_atoms, ROWS)
        # Of one system, sums over a program's atoms.
        summands = self.blocks if num_systems == 1 else self.num_atoms
        self.products = torch.zeros(summands, self.width, device=device)
        self.squares = torch.zeros(self.width // COLUMNS, self.num_atoms, device=device)
        new = dict(dtype=torch.float64, device=device)
        self.of_systems, self.of_atoms = torch.zeros(num_systems, **new), torch.zeros(self.num_atoms, **new)

    def run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """σ(E) [S] and σ_i [N], eV, float64, from the inputs of the last layer [N,D], float32; in buffers."""
        alone, columns = self.num_systems == 1, self.width // COLUMNS
        _multiply[(self.blocks, columns)](
            inputs, self.root, self.products, self.squares, self.num_atoms, SIZE=self.size, WIDTH=self.width,
            ROWS=ROWS, COLUMNS=COLUMNS, ALONE=alone, num_warps=2,
        )  # fmt: skip
        combined = triton.cdiv(self.num_atoms, BLOCK)
        _combine[(combined + self.num_systems,)](
            self.products, self.squares, self.system_index, self.of_systems, self.of_atoms, self.num_atoms,
            len(self.products), combined, WIDTH=self.width, PADDED=triton.next_power_of_2(self.width),
            PARTS=columns, BLOCK=BLOCK, SUMMED=SUMMED, SEARCH=1024, ALONE=alone, num_warps=8,
        )  # fmt: skip
        return self.of_systems, self.of_atoms


@triton.jit(do_not_specialize=["num_atoms"])
def _multiply(
    INPUTS, ROOT, PRODUCTS, SQUARES, num_atoms,
    SIZE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """Columns of f R, of atoms [N,WIDTH] or, if ALONE, summed over a program's; and the sum of their squares [..,N]."""
    block, part = tl.program_id(0), tl.program_id(1)
    row = block * ROWS + tl.arange(0, ROWS)
    here, c = row < num_atoms, part * COLUMNS + tl.arange(0, COLUMNS)
    at = row.to(tl.int64)
    y = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in tl.static_range(0, WIDTH, COLUMNS):
        k = first + tl.arange(0, COLUMNS)
        f = tl.load(INPUTS + at[:, None] * SIZE + k[None, :], mask=here[:, None] & (k < SIZE)[None, :], other=0.0)
        y = tl.dot(f, tl.load(ROOT + k[:, None] * WIDTH + c[None, :]), y, input_precision="ieee")
    tl.store(SQUARES + part * num_atoms + at, tl.sum(y * y, 1), mask=here)
    if ALONE:
        tl.store(PRODUCTS + block * WIDTH + c, tl.sum(y, 0))
    else:
        tl.store(PRODUCTS + at[:, None] * WIDTH + c[None, :], y, mask=here[:, None])


@triton.jit(do_not_specialize=["num_atoms", "summands", "combined"])
def _combine(
    PRODUCTS, SQUARES, SYSTEM, OF_SYSTEMS, OF_ATOMS, num_atoms, summands, combined,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, SUMMED: tl.constexpr,
    SEARCH: tl.constexpr, ALONE: tl.constexpr,
):  # fmt: skip
    """The uncertainties of a block of atoms by each of the first programs, that of a system by each of the others."""
    block = tl.program_id(0)
    if block < combined:
        i = block * BLOCK + tl.arange(0, BLOCK)
        square = tl.zeros((BLOCK,), tl.float64)
        for part in tl.static_range(PARTS):
            square += tl.load(SQUARES + part * num_atoms + i, mask=i < num_atoms, other=0.0).to(tl.float64)
        tl.store(OF_ATOMS + i, tl.sqrt(square), mask=i < num_atoms)
    else:
        s = block - combined
        first, end = s * 0, summands
        if not ALONE:
            end = s * 0
            for base in range(0, num_atoms, SEARCH):
                i = base + tl.arange(0, SEARCH)
                system = tl.load(SYSTEM + i, mask=i < num_atoms, other=2147483647)
                first += tl.sum((system < s).to(tl.int32), 0)
                end += tl.sum((system <= s).to(tl.int32), 0)
        c = tl.arange(0, PADDED)
        sums = tl.zeros((PADDED,), tl.float64)
        for base in range(first, end, SUMMED):
            row = base + tl.arange(0, SUMMED)
            mask = (row < end)[:, None] & (c < WIDTH)[None, :]
            y = tl.load(PRODUCTS + row.to(tl.int64)[:, None] * WIDTH + c[None, :], mask=mask, other=0.0)
            sums += tl.sum(y.to(tl.float64), 0)
        tl.store(OF_SYSTEMS + s, tl.sqrt(tl.sum(sums * sums, 0)))
