"""Edges where atoms are evaluated in slabs (slabs.py): whether neighbours are in slabs nearby."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_atoms", "rows", "reach"])
def check_reach(ROW_PTR, SOURCE, TARGET, KNOT, PLACE, FAR, num_atoms, rows, reach, BLOCK: tl.constexpr):
    """Marks edges within the cutoff between slabs of `rows` atoms that are more than `reach` apart.

    Such an edge would meet the tensors of other atoms. It sets FAR [1], and its place in the filter table becomes NaN,
    which reaches energies and forces.
    """
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = e < tl.load(ROW_PTR + num_atoms)
    here = tl.load(TARGET + e, mask=mask, other=0) // rows
    there = tl.load(SOURCE + e, mask=mask, other=0) // rows
    far = mask & (tl.abs(here - there) > reach) & (tl.load(KNOT + e, mask=mask, other=-1) >= 0)
    tl.store(PLACE + e.to(tl.int64) * 4 + 3, float("nan"), mask=far)
    tl.store(FAR + e * 0, 1, mask=far)
