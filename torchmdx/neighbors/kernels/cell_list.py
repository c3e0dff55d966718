"""Neighbours by cells, on the GPU, for large systems: atoms are sorted into bins, and only near bins are looked at.

Along a periodic direction bins divide the lattice vector, and a bin walk that leaves the cell comes back with a shift,
so that cells smaller than the cutoff work like any other. Along the others bins divide a static axis, and atoms beyond
its ends count to the outermost bin. The number of bins is fixed when room is made; how many bins the cutoff reaches is
worked out anew from each cell. The order within a bin is by atom number, whatever order the hardware ran in.

    locate -> (scan) -> place -> settle -> count -> (scan) -> fill
"""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.lattice import MOST_IMAGES, duals, row

# Fields of the geometry of a system, int32: bins along x, y, z, first bin, reach along x, y, z.
NUM_FIELDS = tl.constexpr(8)


@triton.jit
def measure(cell, pbc, cutoffs, axes, widths, geometry, dual, bin_counts, active, invalid, num_systems, num_bins,
            SKIN: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Duals and reach of every system; bins emptied. axes [S,9] and widths [S,3] serve the open directions."""
    if SKIN:
        if tl.load(active) == 0:
            return
    program = tl.program_id(0)
    k = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(bin_counts + k, tl.zeros((BLOCK,), tl.int32), mask=k < num_bins)
    s = k.to(tl.int64)
    here = s < num_systems
    g = duals(cell + 9 * s, pbc + 3 * s, here)
    cutoff = tl.load(cutoffs)
    for axis in tl.static_range(3):
        periodic = tl.load(pbc + 3 * s + axis, mask=here, other=0) != 0
        gx, gy, gz = g[3 * axis], g[3 * axis + 1], g[3 * axis + 2]
        bins = tl.load(geometry + NUM_FIELDS * s + axis, mask=here, other=1)
        width = 1.0 / (tl.sqrt(gx * gx + gy * gy + gz * gz) * bins)
        width = tl.where(periodic, width, tl.load(widths + 3 * s + axis, mask=here, other=1.0))
        far = cutoff / width * 1.001  # rounding of coordinates must not hide a bin
        limit = (bins * MOST_IMAGES).to(far.dtype)
        wrong = here & ~(far < limit) & periodic
        if tl.sum(wrong.to(tl.int32), 0) > 0:
            tl.store(invalid, 1)
        reach = tl.where(far < limit, far, 0.0).to(tl.int32) + 1
        tl.store(geometry + NUM_FIELDS * s + 4 + axis, reach, mask=here)
        tl.store(
            dual + 9 * s + 3 * axis, tl.where(periodic, gx, tl.load(axes + 9 * s + 3 * axis, mask=here)), mask=here
        )
        tl.store(
            dual + 9 * s + 3 * axis + 1,
            tl.where(periodic, gy, tl.load(axes + 9 * s + 3 * axis + 1, mask=here)),
            mask=here,
        )
        tl.store(
            dual + 9 * s + 3 * axis + 2,
            tl.where(periodic, gz, tl.load(axes + 9 * s + 3 * axis + 2, mask=here)),
            mask=here,
        )


@triton.jit
def locate(positions, cell, pbc, system_index, geometry, dual, origins, widths, wrapped, images, bins_of, ranks,
           bin_counts, active, num_atoms, SKIN: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Moves atoms into their cell and finds their bins; ranks are in whatever order atoms arrive."""
    if SKIN:
        if tl.load(active) == 0:
            return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < num_atoms
    i = i.to(tl.int64)
    s = tl.load(system_index + i, mask=here, other=0).to(tl.int64)
    x = tl.load(positions + 3 * i, mask=here, other=0.0)
    y = tl.load(positions + 3 * i + 1, mask=here, other=0.0)
    z = tl.load(positions + 3 * i + 2, mask=here, other=0.0)
    wx, wy, wz = x, y, z
    place = tl.load(geometry + NUM_FIELDS * s + 3, mask=here, other=0)
    stride = tl.full((BLOCK,), 1, tl.int32)
    for axis in tl.static_range(3):
        g = dual + 9 * s + 3 * axis
        along = tl.load(g, mask=here, other=0.0) * x + tl.load(g + 1, mask=here, other=0.0) * y
        along += tl.load(g + 2, mask=here, other=0.0) * z
        periodic = tl.load(pbc + 3 * s + axis, mask=here, other=0) != 0
        bins = tl.load(geometry + NUM_FIELDS * s + axis, mask=here, other=1)
        n = tl.where(periodic, tl.floor(along), 0.0)
        n = tl.where(tl.abs(n) < 1e9, n, 0.0)  # also for NaN
        ax, ay, az = row(cell + 9 * s, axis, here)
        wx -= n * ax
        wy -= n * ay
        wz -= n * az
        tl.store(images + 3 * i + axis, n.to(tl.int32), mask=here)
        start = tl.load(origins + 3 * s + axis, mask=here, other=0.0)
        width = tl.load(widths + 3 * s + axis, mask=here, other=1.0)
        t = tl.where(periodic, (along - n) * bins, (along - start) / width)
        t = tl.minimum(tl.maximum(tl.where(t == t, t, 0.0), 0.0), (bins - 1).to(t.dtype))
        place += stride * t.to(tl.int32)
        stride *= bins
    tl.store(wrapped + 4 * i, wx, mask=here)
    tl.store(wrapped + 4 * i + 1, wy, mask=here)
    tl.store(wrapped + 4 * i + 2, wz, mask=here)
    tl.store(bins_of + i, place, mask=here)
    tl.store(ranks + i, tl.atomic_add(bin_counts + place, 1, mask=here), mask=here)


@triton.jit
def scan_sums(values, sums, active, length, SKIN: tl.constexpr, BLOCK: tl.constexpr):
    """sums[p] = sum of block p of the values."""
    if SKIN:
        if tl.load(active) == 0:
            return
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums + tl.program_id(0), tl.sum(tl.load(values + k, mask=k < length, other=0).to(tl.int64), 0))


@triton.jit
def scan_place(
    values, sums, starts, capacity, num_edges, needed, overflow, invalid, updates, active, length, num_blocks,
    EDGES: tl.constexpr, SKIN: tl.constexpr, BLOCK: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """starts[k] = sum of values before k, at most the capacity; starts[length] = all. EDGES: also the counts."""
    if SKIN:
        if tl.load(active) == 0:
            return
    program = tl.program_id(0)
    b = tl.arange(0, SUMS)
    found = tl.load(sums + b, mask=b < num_blocks, other=0)
    before = tl.sum(tl.where(b < program, found, 0), 0)
    k = program * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(values + k, mask=k < length, other=0).to(tl.int64)
    start = before + tl.cumsum(own, 0) - own
    tl.store(starts + k, tl.minimum(start, capacity).to(tl.int32), mask=k < length)
    if program == num_blocks - 1:
        total = tl.sum(found, 0)
        kept = tl.minimum(total, capacity)
        tl.store(starts + length, kept.to(tl.int32))
        if EDGES:
            wrong = tl.load(invalid) != 0
            tl.store(num_edges, kept.to(tl.int32))
            tl.store(needed, tl.where(wrong, 1 << 62, total))
            tl.store(overflow, (wrong | (total > capacity)).to(tl.int8))
            tl.store(updates, tl.load(updates) + 1)
            tl.store(invalid, 0)


@triton.jit
def place(bins_of, ranks, bin_starts, unsettled, active, num_atoms, SKIN: tl.constexpr, BLOCK: tl.constexpr):
    """Atom numbers, bin by bin."""
    if SKIN:
        if tl.load(active) == 0:
            return
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < num_atoms
    bin_ = tl.load(bins_of + i, mask=here, other=0)
    tl.store(
        unsettled + tl.load(bin_starts + bin_, mask=here, other=0) + tl.load(ranks + i, mask=here, other=0),
        i,
        mask=here,
    )


@triton.jit
def settle(unsettled, bin_starts, wrapped, images, atoms, packed, packed_images, bins, active, num_bins, num_atoms,
           bins_of, SKIN: tl.constexpr, BLOCK: tl.constexpr, BIN: tl.constexpr):  # fmt: skip
    """Sorts each bin by atom number and packs what the walk reads: x y z, images, bin. One place a lane."""
    if SKIN:
        if tl.load(active) == 0:
            return
    k = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = k < num_atoms
    atom = tl.load(unsettled + k, mask=here, other=0)
    bin_ = tl.load(bins_of + atom, mask=here, other=0)
    first = tl.load(bin_starts + bin_, mask=here, other=0)
    last = tl.load(bin_starts + bin_ + 1, mask=here, other=0)
    rank = tl.zeros((BLOCK,), tl.int32)
    for step in range(0, tl.max(tl.where(here, last - first, 0), 0), BIN):
        m = first[:, None] + step + tl.arange(0, BIN)[None, :]
        other = tl.load(unsettled + m, mask=here[:, None] & (m < last[:, None]), other=2147483647)
        rank += tl.sum((other < atom[:, None]).to(tl.int32), 1)
    p = (first + rank).to(tl.int64)
    a = atom.to(tl.int64)
    tl.store(atoms + p, atom, mask=here)
    tl.store(bins + p, bin_, mask=here)
    for axis in tl.static_range(3):
        tl.store(packed + 4 * p + axis, tl.load(wrapped + 4 * a + axis, mask=here, other=0.0), mask=here)
        tl.store(packed_images + 4 * p + axis, tl.load(images + 3 * a + axis, mask=here, other=0), mask=here)


@triton.jit
def walk(
    cell, pbc, cutoffs, geometry, bin_system, bin_starts, packed, packed_images, atoms, active, counts,
    positions, row_ptr, source, target, shifts, num_edges, reference, reference_cell,
    capacity, num_atoms, num_systems, num_bins,
    FILL: tl.constexpr, SKIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Counts the neighbours of a bin's atoms, or (FILL) writes them. One program a bin, one row of bins a step."""
    if SKIN:
        if tl.load(active) == 0:
            return
    here_bin = tl.program_id(0)
    if FILL:
        _finish_list(
            positions, cell, reference, reference_cell, source, target, shifts, num_edges, capacity, num_atoms,
            num_systems, num_bins, SKIN, BLOCK,
        )  # fmt: skip
    first, last = tl.load(bin_starts + here_bin), tl.load(bin_starts + here_bin + 1)
    if first == last:
        return
    s = tl.load(bin_system + here_bin).to(tl.int64)
    fields = geometry + NUM_FIELDS * s
    bx, by, bz = tl.load(fields), tl.load(fields + 1), tl.load(fields + 2)
    base = tl.load(fields + 3)
    rx, ry, rz = tl.load(fields + 4), tl.load(fields + 5), tl.load(fields + 6)
    px, py, pz = tl.load(pbc + 3 * s), tl.load(pbc + 3 * s + 1), tl.load(pbc + 3 * s + 2)
    yes = tl.full((), 1, tl.int1)
    a0, a1, a2 = row(cell + 9 * s, 0, yes & (px != 0))
    b0, b1, b2 = row(cell + 9 * s, 1, yes & (py != 0))
    c0, c1, c2 = row(cell + 9 * s, 2, yes & (pz != 0))
    cutoff_squared = tl.load(cutoffs + 1)
    at = here_bin - base
    x, y, z = at % bx, (at // bx) % by, at // (bx * by)
    # Open directions end where the bins end.
    y_low, y_high = (
        tl.where(py != 0, y - ry, tl.maximum(y - ry, 0)),
        tl.where(py != 0, y + ry, tl.minimum(y + ry, by - 1)),
    )
    z_low, z_high = (
        tl.where(pz != 0, z - rz, tl.maximum(z - rz, 0)),
        tl.where(pz != 0, z + rz, tl.minimum(z + rz, bz - 1)),
    )
    x_low, x_high = (
        tl.where(px != 0, x - rx, tl.maximum(x - rx, 0)),
        tl.where(px != 0, x + rx, tl.minimum(x + rx, bx - 1)),
    )
    for chunk in range(first, last, ROWS):
        p = chunk + tl.arange(0, ROWS)
        mine = p < last
        p = p.to(tl.int64)
        i = tl.load(atoms + p, mask=mine, other=-1)
        xi = tl.load(packed + 4 * p, mask=mine, other=0.0)[:, None]
        yi = tl.load(packed + 4 * p + 1, mask=mine, other=0.0)[:, None]
        zi = tl.load(packed + 4 * p + 2, mask=mine, other=0.0)[:, None]
        if FILL:
            i0 = tl.load(packed_images + 4 * p, mask=mine, other=0)[:, None]
            i1 = tl.load(packed_images + 4 * p + 1, mask=mine, other=0)[:, None]
            i2 = tl.load(packed_images + 4 * p + 2, mask=mine, other=0)[:, None]
            slot = tl.load(row_ptr + i, mask=mine, other=0).to(tl.int64)
        total = tl.zeros((ROWS,), tl.int32)
        for wz in range(z_low, z_high + 1):
            nz = _floor_div(wz, bz)
            for wy in range(y_low, y_high + 1):
                ny = _floor_div(wy, by)
                line = base + (wy - ny * by) * bx + (wz - nz * bz) * bx * by
                for nx in range(_floor_div(x_low, bx), _floor_div(x_high, bx) + 1):
                    q0 = tl.load(bin_starts + line + tl.maximum(x_low - nx * bx, 0))
                    q1 = tl.load(bin_starts + line + tl.minimum(x_high - nx * bx, bx - 1) + 1)
                    sx = nx * a0 + ny * b0 + nz * c0
                    sy = nx * a1 + ny * b1 + nz * c1
                    sz = nx * a2 + ny * b2 + nz * c2
                    for q in range(q0, q1, BLOCK):
                        m = q + tl.arange(0, BLOCK)
                        there = m < q1
                        m = m.to(tl.int64)
                        j = tl.load(atoms + m, mask=there, other=-2)
                        dx = (tl.load(packed + 4 * m, mask=there, other=0.0)[None, :] - xi) + sx
                        dy = (tl.load(packed + 4 * m + 1, mask=there, other=0.0)[None, :] - yi) + sy
                        dz = (tl.load(packed + 4 * m + 2, mask=there, other=0.0)[None, :] - zi) + sz
                        itself = (i[:, None] == j[None, :]) & (nx == 0) & (ny == 0) & (nz == 0)
                        hit = (dx * dx + dy * dy + dz * dz < cutoff_squared) & mine[:, None] & there[None, :] & ~itself
                        many = hit.to(tl.int32)
                        if FILL:
                            e = slot[:, None] + tl.cumsum(many, 1) - 1
                            keep = hit & (e < capacity)
                            n0 = tl.load(packed_images + 4 * m, mask=there, other=0)[None, :]
                            n1 = tl.load(packed_images + 4 * m + 1, mask=there, other=0)[None, :]
                            n2 = tl.load(packed_images + 4 * m + 2, mask=there, other=0)[None, :]
                            tl.store(source + e, j[None, :] + tl.zeros_like(i)[:, None], mask=keep)
                            tl.store(target + e, i[:, None] + tl.zeros_like(j)[None, :], mask=keep)
                            tl.store(shifts + 3 * e, nx - n0 + i0, mask=keep)
                            tl.store(shifts + 3 * e + 1, ny - n1 + i1, mask=keep)
                            tl.store(shifts + 3 * e + 2, nz - n2 + i2, mask=keep)
                            slot += tl.sum(many, 1)
                        else:
                            total += tl.sum(many, 1)
        if not FILL:
            tl.store(counts + i, total, mask=mine)


@triton.jit
def _floor_div(a, b):
    """Whole quotient rounded down, b > 0 (the language's // rounds towards zero)."""
    q = a // b
    return tl.where(q * b > a, q - 1, q)


@triton.jit
def _finish_list(
    positions, cell, reference, reference_cell, source, target, shifts, num_edges, capacity, num_atoms, num_systems,
    num_bins, SKIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """This program's share of the padding, and of the reference for the skin."""
    program = tl.program_id(0)
    for start in range(tl.load(num_edges) + program * BLOCK, capacity, num_bins * BLOCK):
        k = (start + tl.arange(0, BLOCK)).to(tl.int64)
        pad = k < capacity
        tl.store(source + k, num_atoms - 1, mask=pad)
        tl.store(target + k, num_atoms - 1, mask=pad)
        for axis in tl.static_range(3):
            tl.store(shifts + 3 * k + axis, 0, mask=pad)
    if SKIN:
        for start in range(program * BLOCK, 3 * num_atoms, num_bins * BLOCK):
            k = (start + tl.arange(0, BLOCK)).to(tl.int64)
            tl.store(reference + k, tl.load(positions + k, mask=k < 3 * num_atoms, other=0.0), mask=k < 3 * num_atoms)
        for start in range(program * BLOCK, 9 * num_systems, num_bins * BLOCK):
            k = start + tl.arange(0, BLOCK)
            tl.store(
                reference_cell + k, tl.load(cell + k, mask=k < 9 * num_systems, other=0.0), mask=k < 9 * num_systems
            )
