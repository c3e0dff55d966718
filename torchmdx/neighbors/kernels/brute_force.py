"""Every pair of every image, on the GPU: two kernels, for systems of up to some thousand atoms and batches of them.

A program takes ROWS target atoms of one system and walks over all its atoms as sources. For each pair the nearest
image is found by rounding fractional coordinates, and images around it are tried as far as the cutoff reaches: one
where the cell is larger than twice the cutoff. `count` counts, `fill` sums the counts before its rows and writes.
"""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.lattice import MOST_IMAGES, duals, nearest, reach, row


@triton.jit
def _images(cell, pbc, cutoff):
    """Duals, cell and reach of the program's system."""
    yes = tl.full((), 1, tl.int1)
    g = duals(cell, pbc, yes)
    r0 = tl.where(tl.load(pbc) != 0, reach(g[0], g[1], g[2], cutoff, 0.501), 0)
    r1 = tl.where(tl.load(pbc + 1) != 0, reach(g[3], g[4], g[5], cutoff, 0.501), 0)
    r2 = tl.where(tl.load(pbc + 2) != 0, reach(g[6], g[7], g[8], cutoff, 0.501), 0)
    return g, r0, r1, r2


@triton.jit
def _near(dx, dy, dz, n0, n1, n2, cell, cutoff_squared):
    """Whether |d + n @ cell| is below the cutoff."""
    ax, ay, az = row(cell, 0, tl.full((), 1, tl.int1))
    bx, by, bz = row(cell, 1, tl.full((), 1, tl.int1))
    cx, cy, cz = row(cell, 2, tl.full((), 1, tl.int1))
    vx = dx + (n0 * ax + n1 * bx + n2 * cx)
    vy = dy + (n0 * ay + n1 * by + n2 * cy)
    vz = dz + (n0 * az + n1 * bz + n2 * cz)
    return vx * vx + vy * vy + vz * vz < cutoff_squared


@triton.jit
def count(
    positions, cell, pbc, cutoffs, program_system, program_row, system_start, active, counts, invalid,
    PERIODIC: tl.constexpr, SKIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """counts[i] = neighbours of atom i; invalid: set where a cell has no volume or needs too many images."""
    if SKIN:
        if tl.load(active) == 0:
            return
    program = tl.program_id(0)
    system = tl.load(program_system + program).to(tl.int64)
    first, last = tl.load(system_start + system), tl.load(system_start + system + 1)
    i = tl.load(program_row + program) + tl.arange(0, ROWS)
    here = i < last
    last = tl.where(tl.load(program_row + program) < last, last, first)  # nothing to do without rows
    cutoff, cutoff_squared = tl.load(cutoffs), tl.load(cutoffs + 1)
    cell += 9 * system
    pbc += 3 * system
    xi = tl.load(positions + 3 * i.to(tl.int64), mask=here, other=0.0)[:, None]
    yi = tl.load(positions + 3 * i.to(tl.int64) + 1, mask=here, other=0.0)[:, None]
    zi = tl.load(positions + 3 * i.to(tl.int64) + 2, mask=here, other=0.0)[:, None]
    total = tl.zeros((ROWS,), tl.int32)
    if PERIODIC:
        g, r0, r1, r2 = _images(cell, pbc, cutoff)
        bad = (r0 > MOST_IMAGES) | (r1 > MOST_IMAGES) | (r2 > MOST_IMAGES)
        if bad:
            tl.store(invalid, 1)
            last = first
    for start in range(first, last, BLOCK):
        j = start + tl.arange(0, BLOCK)
        there = here[:, None] & (j < last)[None, :]
        xj = tl.load(positions + 3 * j.to(tl.int64), mask=j < last, other=0.0)[None, :]
        yj = tl.load(positions + 3 * j.to(tl.int64) + 1, mask=j < last, other=0.0)[None, :]
        zj = tl.load(positions + 3 * j.to(tl.int64) + 2, mask=j < last, other=0.0)[None, :]
        dx, dy, dz = xj - xi, yj - yi, zj - zi
        itself = i[:, None] == j[None, :]
        if PERIODIC:
            b0 = -nearest(g[0] * dx + g[1] * dy + g[2] * dz)
            b1 = -nearest(g[3] * dx + g[4] * dy + g[5] * dz)
            b2 = -nearest(g[6] * dx + g[7] * dy + g[8] * dz)
            for m0 in range(-r0, r0 + 1):
                for m1 in range(-r1, r1 + 1):
                    for m2 in range(-r2, r2 + 1):
                        n0, n1, n2 = b0 + m0, b1 + m1, b2 + m2
                        zero = (n0 == 0) & (n1 == 0) & (n2 == 0)
                        near = _near(dx, dy, dz, n0, n1, n2, cell, cutoff_squared)
                        total += tl.sum((near & there & ~(itself & zero)).to(tl.int32), 1)
        else:
            near = dx * dx + dy * dy + dz * dz < cutoff_squared
            total += tl.sum((near & there & ~itself).to(tl.int32), 1)
    tl.store(counts + i, total, mask=here)


@triton.jit
def fill(
    positions, cell, pbc, cutoffs, program_system, program_row, system_start, active, counts, invalid,
    row_ptr, source, target, shifts, num_edges, needed, overflow, reference, reference_cell, updates,
    num_atoms, num_systems, capacity, num_programs,
    PERIODIC: tl.constexpr, SKIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """The list itself, from the counts: rows of this program, and a share of the padding."""
    if SKIN:
        if tl.load(active) == 0:
            return
    program = tl.program_id(0)
    system = tl.load(program_system + program).to(tl.int64)
    first, last = tl.load(system_start + system), tl.load(system_start + system + 1)
    first_row = tl.load(program_row + program)
    i = first_row + tl.arange(0, ROWS)
    here = i < last
    last = tl.where(first_row < last, last, first)  # nothing to do without rows
    # Edges before these rows, and all of them; int64, for a list that is too long must be told as it is.
    before = tl.zeros((), tl.int64)
    total = tl.zeros((), tl.int64)
    for start in range(0, num_atoms, SCAN):
        k = start + tl.arange(0, SCAN)
        found = tl.load(counts + k, mask=k < num_atoms, other=0).to(tl.int64)
        total += tl.sum(found, 0)
        before += tl.sum(tl.where(k < first_row, found, 0), 0)
    own = tl.load(counts + i, mask=here, other=0).to(tl.int64)
    slot = before + tl.cumsum(own, 0) - own
    tl.store(row_ptr + i, tl.minimum(slot, capacity).to(tl.int32), mask=here)
    kept = tl.minimum(total, capacity)
    if program == num_programs - 1:
        wrong = tl.load(invalid) != 0
        tl.store(row_ptr + num_atoms, kept.to(tl.int32))
        tl.store(num_edges, kept.to(tl.int32))
        tl.store(needed, tl.where(wrong, 1 << 62, total))
        tl.store(overflow, (wrong | (total > capacity)).to(tl.int8))
        tl.store(updates, tl.load(updates) + 1)
        tl.store(invalid, 0)  # for the next update; nobody else reads it here
    for start in range(kept + program * BLOCK, capacity, num_programs * BLOCK):
        k = (start + tl.arange(0, BLOCK)).to(tl.int64)
        pad = k < capacity
        tl.store(source + k, num_atoms - 1, mask=pad)
        tl.store(target + k, num_atoms - 1, mask=pad)
        for axis in tl.static_range(3):
            tl.store(shifts + 3 * k + axis, 0, mask=pad)
    cutoff, cutoff_squared = tl.load(cutoffs), tl.load(cutoffs + 1)
    xi = tl.load(positions + 3 * i.to(tl.int64), mask=here, other=0.0)
    yi = tl.load(positions + 3 * i.to(tl.int64) + 1, mask=here, other=0.0)
    zi = tl.load(positions + 3 * i.to(tl.int64) + 2, mask=here, other=0.0)
    if SKIN:
        tl.store(reference + 3 * i.to(tl.int64), xi, mask=here)
        tl.store(reference + 3 * i.to(tl.int64) + 1, yi, mask=here)
        tl.store(reference + 3 * i.to(tl.int64) + 2, zi, mask=here)
        if first_row == first:
            k = tl.arange(0, 16)
            tl.store(reference_cell + 9 * system + k, tl.load(cell + 9 * system + k, mask=k < 9, other=0.0), mask=k < 9)
    xi, yi, zi = xi[:, None], yi[:, None], zi[:, None]
    cell += 9 * system
    pbc += 3 * system
    if PERIODIC:
        g, r0, r1, r2 = _images(cell, pbc, cutoff)
        if (r0 > MOST_IMAGES) | (r1 > MOST_IMAGES) | (r2 > MOST_IMAGES):
            last = first
    for start in range(first, last, BLOCK):
        j = start + tl.arange(0, BLOCK)
        there = here[:, None] & (j < last)[None, :]
        xj = tl.load(positions + 3 * j.to(tl.int64), mask=j < last, other=0.0)[None, :]
        yj = tl.load(positions + 3 * j.to(tl.int64) + 1, mask=j < last, other=0.0)[None, :]
        zj = tl.load(positions + 3 * j.to(tl.int64) + 2, mask=j < last, other=0.0)[None, :]
        dx, dy, dz = xj - xi, yj - yi, zj - zi
        itself = i[:, None] == j[None, :]
        if PERIODIC:
            b0 = -nearest(g[0] * dx + g[1] * dy + g[2] * dz)
            b1 = -nearest(g[3] * dx + g[4] * dy + g[5] * dz)
            b2 = -nearest(g[6] * dx + g[7] * dy + g[8] * dz)
            for m0 in range(-r0, r0 + 1):
                for m1 in range(-r1, r1 + 1):
                    for m2 in range(-r2, r2 + 1):
                        n0, n1, n2 = b0 + m0, b1 + m1, b2 + m2
                        zero = (n0 == 0) & (n1 == 0) & (n2 == 0)
                        near = _near(dx, dy, dz, n0, n1, n2, cell, cutoff_squared)
                        hit = near & there & ~(itself & zero)
                        many = hit.to(tl.int32)
                        e = slot[:, None] + tl.cumsum(many, 1) - 1
                        keep = hit & (e < capacity)
                        tl.store(source + e, j[None, :] + tl.zeros_like(i)[:, None], mask=keep)
                        tl.store(target + e, i[:, None] + tl.zeros_like(j)[None, :], mask=keep)
                        tl.store(shifts + 3 * e, n0.to(tl.int32), mask=keep)
                        tl.store(shifts + 3 * e + 1, n1.to(tl.int32), mask=keep)
                        tl.store(shifts + 3 * e + 2, n2.to(tl.int32), mask=keep)
                        slot += tl.sum(many, 1)
        else:
            hit = (dx * dx + dy * dy + dz * dz < cutoff_squared) & there & ~itself
            many = hit.to(tl.int32)
            e = slot[:, None] + tl.cumsum(many, 1) - 1
            keep = hit & (e < capacity)
            tl.store(source + e, j[None, :] + tl.zeros_like(i)[:, None], mask=keep)
            tl.store(target + e, i[:, None] + tl.zeros_like(j)[None, :], mask=keep)
            for axis in tl.static_range(3):
                tl.store(shifts + 3 * e + axis, tl.zeros_like(many), mask=keep)
            slot += tl.sum(many, 1)
