"""Forces of the atoms from gradients of their edges, and sums over systems."""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.nine import load3, store3


@triton.jit(do_not_specialize=["num_atoms", "num_embedded"])
def forces(
    ROW_PTR, SOURCE, SHIFTS, KNOT, PLACE, STRETCH, REVERSE, HALF, OTHERS, OTHER_VIRIALS, FORCES, VIRIALS, SYSTEM,
    ENERGIES, SHIFT, ENERGY, num_atoms, num_embedded,
    VIRIAL: tl.constexpr, EDGES: tl.constexpr, CANDIDATES: tl.constexpr, AT_ONCE: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """F_i = Σ_e (h_e - h_ē) over the edges e of row i, where ē is the same pair seen from the other atom.

    The gradient in an edge vector is divided between the two directions of the edge: each row holds the part that it
    can compute from one gather, and both parts act on both atoms. The list is full, so ē is in the row of the source.
    Searching it there costs less than keeping a permutation with the list. VIRIALS [N,9]: Σ_e h_e ⊗ v_e of each row.
    AT_ONCE: loads sources and shifts together instead of shifts only where the source matches: more bytes, less
    latency. SUM: if not 0, programs >= N sum the energies of a system, SUM atoms at a time, as `sum_systems` does.

    Args:
        num_embedded: Atoms whose rows hold gradients; they come first. REVERSE [E]: the slot of ē, or None.
            OTHERS [N,3], OTHER_VIRIALS [N,9]: forces and virials of other energies, or None.
    """
    i = tl.program_id(0)
    if SUM > 0:
        if i >= num_atoms:
            sum_energies(SYSTEM, ENERGIES, SHIFT, ENERGY, i - num_atoms, num_atoms, SUM, SUM)
            return
    PARTIAL: tl.constexpr = num_embedded.dtype.is_ptr()
    if PARTIAL:
        num_embedded = tl.load(num_embedded)
    start, end = tl.load(ROW_PTR + i), tl.load(ROW_PTR + i + 1)
    lane = tl.arange(0, EDGES)
    fx = tl.zeros((EDGES,), tl.float32)
    fy = tl.zeros((EDGES,), tl.float32)
    fz = tl.zeros((EDGES,), tl.float32)
    if VIRIAL:
        axis = tl.arange(0, 16)[None, :]
        virial = tl.zeros((EDGES, 16), tl.float32)
    for first in range(start, end, EDGES):
        e = first + lane
        mask = e < end
        mask = mask & (tl.load(KNOT + e, mask=mask, other=-1) >= 0)
        j = tl.load(SOURCE + e, mask=mask, other=0)
        of_source = mask
        if PARTIAL:
            of_source = mask & (j < num_embedded)
            mask = mask & (i < num_embedded)
        if REVERSE is None:
            back = opposite_edges(e, of_source, j, i, ROW_PTR, SOURCE, SHIFTS, CANDIDATES, AT_ONCE)
        else:
            back = tl.load(REVERSE + e, mask=of_source, other=-1)
        here = HALF + e.to(tl.int64) * 3
        there = HALF + back.to(tl.int64) * 3
        found = of_source & (back >= 0)
        hx, hy, hz = load3(here, mask, 1)
        fx += hx - tl.load(there, mask=found, other=0.0)
        fy += hy - tl.load(there + 1, mask=found, other=0.0)
        fz += hz - tl.load(there + 2, mask=found, other=0.0)
        if VIRIAL:
            distance = 1.0 / tl.load(STRETCH + e.to(tl.int64) * 2 + 1, mask=mask, other=1.0)
            h = tl.load(HALF + e.to(tl.int64)[:, None] * 3 + axis // 3, mask=mask[:, None] & (axis < 9), other=0.0)
            d = tl.load(PLACE + e.to(tl.int64)[:, None] * 4 + axis % 3, mask=mask[:, None] & (axis < 9), other=0.0)
            virial += h * d * distance[:, None]
    out = FORCES + i.to(tl.int64) * 3
    x, y, z = tl.sum(fx, 0), tl.sum(fy, 0), tl.sum(fz, 0)
    if OTHERS is not None:
        bx, by, bz = load3(OTHERS + i.to(tl.int64) * 3, None, 1)
        x, y, z = x + bx, y + by, z + bz
    store3(out, (x, y, z), None, 1)
    if VIRIAL:
        entry = tl.arange(0, 16)
        total = tl.sum(virial, 0)
        if OTHER_VIRIALS is not None:
            total += tl.load(OTHER_VIRIALS + i.to(tl.int64) * 9 + entry, mask=entry < 9, other=0.0)
        tl.store(VIRIALS + i.to(tl.int64) * 9 + entry, total, mask=entry < 9)


@triton.jit
def opposite_edges(e, mask, j, i, ROW_PTR, SOURCE, SHIFTS, CANDIDATES: tl.constexpr, AT_ONCE: tl.constexpr):
    """The slots of the edges opposite to e [B] of row i, where mask is set, -1 if there is none; j: their sources."""
    at = SHIFTS + e.to(tl.int64) * 3
    sa = tl.load(at, mask=mask, other=0)[:, None]
    sb = tl.load(at + 1, mask=mask, other=0)[:, None]
    sc = tl.load(at + 2, mask=mask, other=0)[:, None]
    row = tl.load(ROW_PTR + j, mask=mask, other=0)
    length = tl.load(ROW_PTR + j + 1, mask=mask, other=0) - row
    candidate = tl.arange(0, CANDIDATES)[None, :]
    back = tl.full(e.shape, -1, tl.int32)
    for step in range(0, tl.max(length, 0), CANDIDATES):
        other = row[:, None] + step + candidate
        within = (step + candidate) < length[:, None]
        there = SHIFTS + other.to(tl.int64) * 3
        same = within & (tl.load(SOURCE + other, mask=within, other=-1) == i)
        same = same & (tl.load(there, mask=within if AT_ONCE else same, other=0) == -sa)
        same = same & (tl.load(there + 1, mask=within if AT_ONCE else same, other=0) == -sb)
        same = same & (tl.load(there + 2, mask=within if AT_ONCE else same, other=0) == -sc)
        back = tl.maximum(back, tl.max(tl.where(same, other, -1), 1))
    return back


@triton.jit
def first_atom(SYSTEM, num_atoms, system, BLOCK: tl.constexpr):
    """Number of atoms of the systems before `system`: a search in ascending SYSTEM, BLOCK ways at a time."""
    low = tl.zeros((), tl.int32)
    size = low + num_atoms
    lane = tl.arange(0, BLOCK)
    while size > 0:
        stride = tl.cdiv(size, BLOCK)
        at = lane * stride
        before = tl.load(SYSTEM + low + at, mask=at < size, other=2147483647) < system
        count = tl.sum(before.to(tl.int32), 0)
        # The first atom of the system lies after the last atom found before it, at most a stride further.
        if count > 0:
            end = low + size
            low += (count - 1) * stride + 1
            size = tl.minimum(stride - 1, end - low)
        else:
            size = 0
    return low


@triton.jit
def sum_energies(SYSTEM, ENERGIES, SHIFT, ENERGY, system, num_atoms, BLOCK: tl.constexpr, SEARCH: tl.constexpr):
    """The energy of a system from those of its atoms, which share the potential's shift; its first and end atom."""
    first = first_atom(SYSTEM, num_atoms, system, SEARCH)
    last = first_atom(SYSTEM, num_atoms, system + 1, SEARCH)
    share = tl.load(SHIFT) / tl.maximum(last - first, 1).to(tl.float64)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(first, last, BLOCK):
        mask = start + lane < last
        energies = tl.load(ENERGIES + start + lane, mask=mask, other=0.0)
        energies += tl.where(mask, share, 0.0)
        tl.store(ENERGIES + start + lane, energies, mask=mask)
        total += energies
    tl.store(ENERGY + system, tl.sum(total, 0))
    return first, last


@triton.jit(do_not_specialize=["num_atoms"])
def sum_systems(
    SYSTEM, ENERGIES, SHIFT, VIRIALS, ENERGY, VIRIAL_OUT, CELL, STRESS, num_atoms,
    VIRIAL: tl.constexpr, BLOCK: tl.constexpr, SEARCH: tl.constexpr,
):  # fmt: skip
    """Sums of one system's atoms, in one order: energy [S] in float64, and the symmetric part of the virial [S,3,3].

    STRESS [S,3,3]: the virial by the volume of the cell in CELL [S,3,3]; not a number without a volume.

    The potential's shift belongs to the system; its atoms share it, so that energies add up to the energy.
    """
    system = tl.program_id(0)
    first, last = sum_energies(SYSTEM, ENERGIES, SHIFT, ENERGY, system, num_atoms, BLOCK, SEARCH)
    if VIRIAL:
        ROWS: tl.constexpr = BLOCK // 16
        row = tl.arange(0, ROWS)[:, None]
        entry = tl.arange(0, 16)[None, :]
        flipped = (entry % 3) * 3 + entry // 3
        virial = tl.zeros((ROWS, 16), tl.float64)
        for start in range(first, last, ROWS):
            mask = (start + row < last) & (entry < 9)
            at = VIRIALS + (start + row).to(tl.int64) * 9
            a = tl.load(at + entry, mask=mask, other=0.0)
            virial += 0.5 * (a.to(tl.float64) + tl.load(at + flipped, mask=mask, other=0.0).to(tl.float64))
        entry = tl.arange(0, 16)
        total = tl.sum(virial, 0)
        tl.store(VIRIAL_OUT + system * 9 + entry, total, mask=entry < 9)
        volume = _volume(CELL + system * 9)
        tl.store(STRESS + system * 9 + entry, tl.where(volume > 0, total / volume, float("nan")), mask=entry < 9)


@triton.jit
def _volume(CELL):
    """The volume of a cell in float64: |(a x b) . c|."""
    a0, a1, a2 = tl.load(CELL).to(tl.float64), tl.load(CELL + 1).to(tl.float64), tl.load(CELL + 2).to(tl.float64)
    b0, b1, b2 = tl.load(CELL + 3).to(tl.float64), tl.load(CELL + 4).to(tl.float64), tl.load(CELL + 5).to(tl.float64)
    c0, c1, c2 = tl.load(CELL + 6).to(tl.float64), tl.load(CELL + 7).to(tl.float64), tl.load(CELL + 8).to(tl.float64)
    return tl.abs((a1 * b2 - a2 * b1) * c0 + (a2 * b0 - a0 * b2) * c1 + (a0 * b1 - a1 * b0) * c2)
