"""The launches of triton/element_sums.py: the embedding's sum over neighbours, for structures of few elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from torch import Tensor

from torchmdx.engines.gpu.triton import element_sums

if TYPE_CHECKING:
    from torchmdx.engines.gpu.chain_walks import ChainWalks


def sum_by_elements(chain: ChainWalks) -> Tensor | None:
    """A of all rows but the rare. Returns the marks of the latter; None if all rows need the general kernel."""
    present, sizes = chain.buffers.present, chain.tiles.by_elements
    if present is None or sizes is None:
        return None
    b, w, e, n, functions = chain.b, chain.weights, chain.edges, chain.n, present.functions
    atoms, sums = chain.atoms(len(w.layers)), b.sums_of(back=False)
    counts = dict(FUNCTIONS=functions.count, ELEMENTS=present.count)
    walk = sizes.walk(present.count)
    groups = triton.cdiv(present.count, walk["GROUP"])
    element_sums.element_sums[(triton.cdiv(n, walk["ROWS"]) * groups,)](
        chain.all_numbers, present.slots, sums, b.rare, functions.table, e.row_ptr, e.source, b.knot, b.place, atoms,
        functions.last_knot, DEGREE=w.degree, **counts, **walk,
    )  # fmt: skip
    block = sizes.product.options(functions.count, chain.c)
    del block["STEP"]
    element_sums.multiply_sums[(9 * triton.cdiv(n, block["ROWS"]) * (chain.c // block["COLUMNS"]),)](
        sums, *present.matrices, chain.numbers, w.targets, w.sources, w.own, b.a, atoms, CHANNELS=chain.c, **counts,
        **block,
    )  # fmt: skip
    return b.rare


def gradient_by_elements(chain: ChainWalks, gradient: Tensor) -> Tensor | None:
    """h_e of the edges of all rows but the rare, from the gradient in A. Returns as `sum_by_elements`."""
    present, sizes = chain.buffers.present, chain.tiles.by_elements
    if present is None or sizes is None:
        return None
    b, g, w, e, n, functions = chain.b, chain.gradient, chain.weights, chain.edges, chain.n, present.functions
    atoms, sums = chain.atoms(len(w.layers)), b.sums_of(back=True)
    counts = dict(FUNCTIONS=functions.count, ELEMENTS=present.count)
    block = sizes.product_back.options(chain.c, functions.count)
    del block["COLUMNS"]
    element_sums.multiply_sums_back[(9 * triton.cdiv(n, block["ROWS"]),)](
        gradient, *present.matrices_back, chain.numbers, w.targets, sums, atoms, CHANNELS=chain.c, **counts, **block
    )
    walk = sizes.walk_back()
    element_sums.element_sums_gradient[(triton.cdiv(n, walk["ROWS"]),)](
        chain.all_numbers, present.slots, sums, b.rare, functions.table, e.row_ptr, e.source, b.knot, b.place,
        b.stretch, g.pull, g.half, atoms, e.capacity, DEGREE=w.degree, SLICES=len(g.pull), **counts, **walk,
    )  # fmt: skip
    return b.rare
