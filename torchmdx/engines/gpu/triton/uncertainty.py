"""The uncertainty of the energy, in two kernels: σ² = |fᵀ R|² of atoms, and of sums over systems.

::

    | buffer | shape | holds |
    |---|---|---|
    | INPUTS | [N,SIZE] | f, the inputs of the last layer |
    | ROOT | [WIDTH,WIDTH] | R, padded with zeros |
    | PRODUCTS | [N,WIDTH] | f R; of one system the sums over the atoms of a program [..,WIDTH] |
    | SQUARES | [PARTS,N] | sums over some columns of the squares of f R |
    | OF_SYSTEMS, OF_ATOMS | [S], [N] float64 | σ |
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_atoms"])
def multiply_inputs(
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
def sum_inputs(
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
