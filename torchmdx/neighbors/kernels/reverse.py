"""Finding the other direction of every edge on the GPU, by walking the row of its source."""

import triton
import triton.language as tl
from torch import Tensor

from torchmdx.neighbors.edges import Edges

BLOCK, CANDIDATES = 128, 8  # edges of a program; slots of the other row that it looks at together


def launch(edges: Edges, out: Tensor) -> None:
    """Fills out [E] with the slots of reverse edges."""
    _reverse[(triton.cdiv(edges.capacity, BLOCK),)](
        edges.row_ptr, edges.source, edges.target, edges.shifts, edges.num_edges, out, edges.capacity,
        BLOCK=BLOCK, CANDIDATES=CANDIDATES,
    )  # fmt: skip


@triton.jit
def _reverse(row_ptr, source, target, shifts, num_edges, out, capacity, BLOCK: tl.constexpr, CANDIDATES: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = e < tl.load(num_edges)
    i = tl.load(target + e, mask=there, other=0)[:, None]
    j = tl.load(source + e, mask=there, other=0)
    s0 = tl.load(shifts + 3 * e, mask=there, other=0)[:, None]
    s1 = tl.load(shifts + 3 * e + 1, mask=there, other=0)[:, None]
    s2 = tl.load(shifts + 3 * e + 2, mask=there, other=0)[:, None]
    first = tl.load(row_ptr + j, mask=there, other=0)
    length = tl.where(there, tl.load(row_ptr + j + 1, mask=there, other=0) - first, 0)
    candidate = tl.arange(0, CANDIDATES)[None, :]
    found = tl.full((BLOCK, CANDIDATES), -1, tl.int32)
    for step in range(0, tl.max(length, 0), CANDIDATES):
        q = (first[:, None] + step + candidate).to(tl.int64)
        inside = step + candidate < length[:, None]
        same = inside & (tl.load(source + q, mask=inside, other=-1) == i)
        same = same & (tl.load(shifts + 3 * q, mask=same, other=0) == -s0)
        same = same & (tl.load(shifts + 3 * q + 1, mask=same, other=0) == -s1)
        same = same & (tl.load(shifts + 3 * q + 2, mask=same, other=0) == -s2)
        found = tl.where(same, q.to(tl.int32), found)
    slot = tl.max(found, 1)
    tl.store(out + e, tl.where(slot < 0, e, slot).to(tl.int32), mask=e < capacity)
