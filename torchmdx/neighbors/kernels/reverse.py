"""Finding the other direction of every edge on the GPU, by walking the row of its source."""

import triton
import triton.language as tl
from torch import Tensor

from torchmdx.neighbors.edges import Edges

BLOCK = 128


def launch(edges: Edges, out: Tensor) -> None:
    """Fills out [E] with the slots of reverse edges."""
    _reverse[(triton.cdiv(edges.capacity, BLOCK),)](
        edges.row_ptr, edges.source, edges.target, edges.shifts, edges.num_edges, out, edges.capacity, BLOCK=BLOCK
    )


@triton.jit
def _reverse(row_ptr, source, target, shifts, num_edges, out, capacity, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = e < tl.load(num_edges)
    i = tl.load(target + e, mask=there, other=0)
    j = tl.load(source + e, mask=there, other=0)
    s0 = tl.load(shifts + 3 * e, mask=there, other=0)
    s1 = tl.load(shifts + 3 * e + 1, mask=there, other=0)
    s2 = tl.load(shifts + 3 * e + 2, mask=there, other=0)
    first = tl.load(row_ptr + j, mask=there, other=0)
    length = tl.load(row_ptr + j + 1, mask=there, other=0) - first
    found = e
    for step in range(tl.max(tl.where(there, length, 0), 0)):
        q = (first + step).to(tl.int64)
        inside = there & (step < length)
        same = inside & (tl.load(source + q, mask=inside, other=-1) == i)
        same = same & (tl.load(shifts + 3 * q, mask=same, other=0) == -s0)
        same = same & (tl.load(shifts + 3 * q + 1, mask=same, other=0) == -s1)
        same = same & (tl.load(shifts + 3 * q + 2, mask=same, other=0) == -s2)
        found = tl.where(same, q, found)
    tl.store(out + e, found.to(tl.int32), mask=e < capacity)
