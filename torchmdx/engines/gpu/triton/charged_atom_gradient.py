"""The backward pass of charged_atom.py, where it differs from that of edge_mlp.py and one_atom.py."""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import edge_mlp, one_atom, one_atom_maps
from torchmdx.engines.gpu.triton.charged_atom import charge_norms_gradient, sums
from torchmdx.engines.gpu.triton.edge_walk import filter_and_slope, read_edge
from torchmdx.engines.gpu.triton.one_atom import PARTS, multiply1, multiply3, multiply9


@triton.jit(do_not_specialize=["num_atoms", "capacity"])
def charges_gradient(
    Z1, SHARES, TABLE, ROW_PTR, SOURCE, REVERSE, KNOT, PLACE, PULL_PARTS, PULL, GQ, num_atoms, capacity,
    CHANNELS: tl.constexpr, K: tl.constexpr, DEGREE: tl.constexpr, DEPTH: tl.constexpr, SLICES: tl.constexpr,
    FIRST: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """GQ [N,K], the gradient in the charges of atom i, from that in Z1 of the edges to it and from it.

    Adds the gradient through a(r), and the sum of PULL_PARTS [SLICES,E], to PULL [E]; FIRST: PULL is written. ADD: adds
    to GQ. SHARES [C,2K].
    """
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    end = tl.load(ROW_PTR + i + 1)
    own = tl.load(Z1 + i.to(tl.int64) * CHANNELS + c)
    as_target = tl.zeros((DEPTH, CHANNELS), tl.float32)
    as_source = as_target
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        mask = e < end
        inside, _, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        back = num_atoms + tl.load(REVERSE + e, mask=mask, other=0).to(tl.int64)
        g = tl.load(Z1 + (num_atoms + e).to(tl.int64)[:, None] * CHANNELS + c, mask=inside, other=0.0)
        as_target += g
        as_source += tl.load(Z1 + back[:, None] * CHANNELS + c, mask=inside, other=0.0)
        _, da = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        pull = tl.sum(g * da, 1)
        for part in tl.static_range(SLICES):
            pull += tl.load(PULL_PARTS + part * capacity + e, mask=mask, other=0.0)
        if not FIRST:
            pull += tl.load(PULL + e, mask=mask, other=0.0)
        tl.store(PULL + e, pull, mask=mask)
    k = tl.arange(0, K)[None, :]
    w = SHARES + tl.arange(0, CHANNELS)[:, None] * (2 * K) + k
    of_target = tl.sum(as_target, 0) + tl.sum(own, 0)
    of_source = tl.sum(as_source, 0) + tl.sum(own, 0)
    total = tl.sum(of_target[:, None] * tl.load(w) + of_source[:, None] * tl.load(w + K), 0)
    out = GQ + i.to(tl.int64) * K + tl.arange(0, K)
    if ADD:
        total += tl.load(out)
    tl.store(out, total)


@triton.jit(do_not_specialize=["num_atoms", "rows", "edge_programs"])
def last_map_gradient(
    X, W, SMALL, Z2, ROW_PTR, num_atoms, rows, edge_programs, GY, MIX_IN_BACK, THROUGH_Y, WORK,
    INNER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
    ACTIVATION: tl.constexpr, CHANNELS: tl.constexpr, WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr,
    UNROLL: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """The gradient in Z2, by the first programs, and by others that in X̂ of an atom through Y, THROUGH_Y [N,9,C]."""
    program = tl.program_id(0)
    if program < edge_programs:
        edge_mlp.multiply_rows_back(
            X, W, SMALL, Z2, ROW_PTR, num_atoms, 0, rows, INNER, WIDTH, ROWS, COLUMNS, STEP, ACTIVATION
        )  # fmt: skip
    else:
        i = (program - edge_programs).to(tl.int64)
        row, parts = i * (9 * CHANNELS), WORK + i * WORK_WIDTH + PARTS * CHANNELS
        multiply9(GY + row, MIX_IN_BACK, parts, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.put_sum9(parts, THROUGH_Y + row, CHANNELS, GROUPS)


@triton.jit(noinline=True)
def _proposed_gradient(
    PROPOSED, GQ, CHARGE, OUT, i, num_atoms, least, slack, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """OUT [2K], the gradient in what atom i proposed, from that in the charges of all atoms."""
    k = tl.arange(0, K)
    common = tl.zeros((BLOCK, K), tl.float64)
    for start in range(0, num_atoms, BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < num_atoms)[:, None]
        f = tl.load(PROPOSED + row[:, None] * (2 * K) + K + k[None, :], mask=mask, other=0.0)
        g = tl.load(GQ + row[:, None] * K + k[None, :], mask=mask, other=0.0)
        common += g.to(tl.float64) * (f * f + least)
    proposed, shares = sums(PROPOSED, num_atoms, k, least, K, BLOCK)
    missing, whole = tl.load(CHARGE).to(tl.float64) - proposed, shares + slack
    g = tl.load(GQ + i * K + k) - tl.sum(common, 0) / whole
    f = tl.load(PROPOSED + i * (2 * K) + K + k)
    tl.store(OUT + k, g.to(tl.float32))
    tl.store(OUT + K + k, (2.0 * f * (missing / whole) * g).to(tl.float32))


@triton.jit
def _through_charges(
    X, INVERSE, PROPOSED, GQ, TOTAL_CHARGE, FIRST, SECOND, SCALE, FIRST_BACK, SECOND_BACK, THIRD_BACK,
    OUT, work, parts, i, num_atoms, least, slack, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr,
    UNROLL: tl.constexpr, APART: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """OUT [9,C], the gradient in the tensors X of atom i through its charges; X, INVERSE: of that atom."""
    _proposed_gradient(PROPOSED, GQ, TOTAL_CHARGE, work, i, num_atoms, least, slack, K, BLOCK)
    multiply1(work, THIRD_BACK, parts, 2 * K, CHANNELS, GROUPS, UNROLL, APART)
    second, first = work + CHANNELS, work + 2 * CHANNELS
    one_atom_maps.times_slope(parts, SECOND + i * CHANNELS, second, CHANNELS, GROUPS, ACTIVATION)
    multiply1(second, SECOND_BACK, parts, CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.times_slope(parts, FIRST + i * CHANNELS, first, CHANNELS, GROUPS, ACTIVATION)
    multiply3(first, FIRST_BACK, parts, CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
    charge_norms_gradient(parts, X, INVERSE, SCALE, OUT, epsilon, WIDTH, CHANNELS, GROUPS)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["num_atoms"])
def output_gradient(
    Y, GM, CHARGE, SYSTEM, D, X, MIX_OUT_BACK, G, GY, WORK,
    PROPOSED, GQ, TOTAL_CHARGE, FIRST, SECOND, SCALE, FIRST_BACK, SECOND_BACK, THIRD_BACK,
    num_atoms, least, slack, charge_epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr, WORK_WIDTH: tl.constexpr,
    GROUPS: tl.constexpr, UNROLL: tl.constexpr, APART: tl.constexpr, ACTIVATION: tl.constexpr,
    REFLECTIONS: tl.constexpr,
):  # fmt: skip
    """The end of `layer` where other energies depend on the last charges: GM and GY of the last layer.

    G, the gradient in the last tensors X through the readout, becomes the whole one.
    """
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts, more = work + PARTS * CHANNELS, work + 18 * CHANNELS
    _through_charges(
        X + row, None, PROPOSED, GQ, TOTAL_CHARGE, FIRST, SECOND, SCALE, FIRST_BACK, SECOND_BACK, THIRD_BACK,
        more, work, parts, i, num_atoms, least, slack, charge_epsilon,
        WIDTH, CHANNELS, K, BLOCK, GROUPS, UNROLL, APART, ACTIVATION,
    )  # fmt: skip
    one_atom_maps.add_output_gradient(more, D + row, CHARGE, SYSTEM, G + row, work, i, CHANNELS)
    multiply9(work, MIX_OUT_BACK, parts, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.product_gradient(parts, Y + row, GM + row, CHARGE, SYSTEM, GY + row, i, CHANNELS, GROUPS, REFLECTIONS)


@triton.jit(do_not_specialize=["num_atoms"])
def layer_gradient(
    THROUGH_Y, GY, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, X, INVERSE, G, CHARGE, SYSTEM,
    D, MIX_OUT_BACK, BEFORE_Y, BEFORE_M,
    A, HIDDEN, GATE, MIXED, GATE_SCALE, GATE_IN_BACK, GATE_OUT_BACK, MIX_BACK, FILTERS, NUMBERS, TARGETS, SOURCES,
    WORK, epsilon,
    PROPOSED, GQ, TOTAL_CHARGE, FIRST, SECOND, SCALE, FIRST_BACK, SECOND_BACK, THIRD_BACK,
    num_atoms, least, slack, charge_epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN_WIDTH: tl.constexpr, DEGREE: tl.constexpr, K: tl.constexpr,
    BLOCK: tl.constexpr, WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr,
    APART: tl.constexpr, ACTIVATION: tl.constexpr, REFLECTIONS: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """`one_atom.layer_gradient` after the messages, with the gradient through the charges of atom i."""
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts, more = work + PARTS * CHANNELS, work + 18 * CHANNELS
    _through_charges(
        X + row, INVERSE + i * CHANNELS, PROPOSED, GQ, TOTAL_CHARGE, FIRST, SECOND, SCALE,
        FIRST_BACK, SECOND_BACK, THIRD_BACK, more, work, parts, i, num_atoms, least, slack, charge_epsilon,
        WIDTH, CHANNELS, K, BLOCK, GROUPS, UNROLL, APART, ACTIVATION,
    )  # fmt: skip
    one_atom.input_back(
        THROUGH_Y + row, more, GY, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, X, INVERSE, G, CHARGE, SYSTEM,
        D, MIX_OUT_BACK, BEFORE_Y, BEFORE_M, A, HIDDEN, GATE, MIXED, GATE_SCALE, GATE_IN_BACK, GATE_OUT_BACK, MIX_BACK,
        FILTERS, NUMBERS, TARGETS, SOURCES, work, parts, i, epsilon, WIDTH, CHANNELS, HIDDEN_WIDTH, DEGREE, WORK_WIDTH,
        1, GROUPS, UNROLL, DEPTH, APART, ACTIVATION, REFLECTIONS, EMBEDDING,
    )  # fmt: skip
