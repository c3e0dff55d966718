"""Whether a list with skin still holds every pair within the cutoff."""

import triton
import triton.language as tl

from torchmdx.neighbors.kernels.lattice import duals


@triton.jit
def moved(
    positions, cell, pbc, system_index, reference, reference_cell, cutoffs, active, num_atoms, BLOCK: tl.constexpr
):  # fmt: skip
    """Sets `active` where an atom moved, or a cell changed, too much for the list.

    Between the reference and now the lattice is strained by F = 1 + Σ_k g_k ⊗ (h_k - h_k'), g the duals of the
    reference cell h'. Let δ be an atom's displacement beyond its strained reference position. A pair that was not in
    the list was at least R = cutoff + skin apart, so is at least (1 - |F - 1|) R - 2 δ apart now: the list is good
    while that is not below the cutoff. |.| is the Frobenius norm. With a constant cell this is δ <= skin / 2.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < num_atoms
    i = i.to(tl.int64)
    system = tl.load(system_index + i, mask=here, other=0).to(tl.int64)
    old, new = reference_cell + 9 * system, cell + 9 * system
    g = duals(old, pbc + 3 * system, here)
    x = tl.load(reference + 3 * i, mask=here, other=0.0)
    y = tl.load(reference + 3 * i + 1, mask=here, other=0.0)
    z = tl.load(reference + 3 * i + 2, mask=here, other=0.0)
    s0, s1, s2 = g[0] * x + g[1] * y + g[2] * z, g[3] * x + g[4] * y + g[5] * z, g[6] * x + g[7] * y + g[8] * z
    radius, cutoff = tl.load(cutoffs), tl.load(cutoffs + 2)
    delta = tl.zeros((BLOCK,), x.dtype)
    strain = tl.zeros((BLOCK,), x.dtype)
    for axis in tl.static_range(3):
        c0 = tl.load(new + axis, mask=here, other=0.0) - tl.load(old + axis, mask=here, other=0.0)
        c1 = tl.load(new + 3 + axis, mask=here, other=0.0) - tl.load(old + 3 + axis, mask=here, other=0.0)
        c2 = tl.load(new + 6 + axis, mask=here, other=0.0) - tl.load(old + 6 + axis, mask=here, other=0.0)
        for k in tl.static_range(3):
            f = g[k] * c0 + g[3 + k] * c1 + g[6 + k] * c2
            strain += f * f
        now = tl.load(positions + 3 * i + axis, mask=here, other=0.0)
        then = tl.load(reference + 3 * i + axis, mask=here, other=0.0)
        d = now - then - (s0 * c0 + s1 * c1 + s2 * c2)
        delta += d * d
    room = (1.0 - tl.sqrt(strain)) * radius - cutoff
    fine = (room > 0.0) & (4.0 * delta <= room * room)
    # Written so that NaN counts as moved: a new search flags or tells what is wrong.
    if tl.sum((here & ~fine).to(tl.int32), 0) > 0:
        tl.store(active, 1)
