"""TensorNet2's kernels for few atoms: as one_atom.py, with charges and a network of edges.

::

    embed → L x (first_maps → multiply_rows → layer)
    → L x (messages_gradient → multiply_rows_back → multiply_rows_back → charges_gradient → layer_gradient) → forces

A molecule is one system. The sums of its charges are little work, so every program that needs them takes them itself.
Buffers are those of charge_equilibration.py and edge_mlp.py, where the other kernels are; PROPOSED keeps its values.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import one_atom, one_atom_maps
from torchmdx.engines.gpu.triton.activations import activate
from torchmdx.engines.gpu.triton.edge_geometry import cosine_cut
from torchmdx.engines.gpu.triton.edge_walk import filter_part
from torchmdx.engines.gpu.triton.forces import opposite_edges
from torchmdx.engines.gpu.triton.layer_norm import part_gradient
from torchmdx.engines.gpu.triton.nine import (
    add9,
    add_to_scalar,
    load3,
    load9,
    nine,
    part_norms,
    part_norms_gradient,
    scale9,
    scale_parts,
    store3,
    store9,
)
from torchmdx.engines.gpu.triton.one_atom import PARTS, multiply1, multiply9, put9

# Edges whose opposite edges are looked for at a time, and candidates for each.
FOUND_AT_ONCE, CANDIDATES = tl.constexpr(32), tl.constexpr(64)


@triton.jit
def _tensor(X, INVERSE, CHANNELS: tl.constexpr):
    """X of X̂ and 1/(|X|²+1); INVERSE: if None, X itself is stored."""
    n = tl.arange(0, CHANNELS)
    x = load9(X + n, n < CHANNELS, CHANNELS)
    if INVERSE is not None:
        x = scale9(x, 1.0 / tl.load(INVERSE + n))
    return x


@triton.jit(noinline=True)
def _charge_norms(X, INVERSE, SCALE, OFFSET, OUT, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """OUT [3,C] = LayerNorm(s, |a|², |q|²)."""
    x = _tensor(X, INVERSE, CHANNELS)
    _, n1, n2 = part_norms(x)
    one_atom_maps.store_norms(x[0], n1, n2, SCALE, OFFSET, OUT, epsilon, WIDTH, CHANNELS)


@triton.jit(noinline=True)
def charge_norms_gradient(
    PARTS_OF, X, INVERSE, SCALE, OUT, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """OUT [9,C], the gradient in X, from that in the result of `_charge_norms`, whose shares are in PARTS_OF."""
    n = tl.arange(0, CHANNELS)
    x = _tensor(X, INVERSE, CHANNELS)
    _, n1, n2 = part_norms(x)
    norms, inverse = one_atom_maps.standardised_norms(x[0], n1, n2, epsilon, WIDTH, CHANNELS)
    g0, g1, g2 = one_atom_maps.sum3(PARTS_OF, CHANNELS, GROUPS)
    s0, s1, s2 = load3(SCALE + n, None, CHANNELS)
    g0, g1, g2 = part_gradient(g0 * s0, g1 * s1, g2 * s2, norms[0], norms[1], norms[2], inverse, WIDTH)
    store9(OUT + n, add_to_scalar(part_norms_gradient(x, 0.0, g1, g2), g0), n < CHANNELS, CHANNELS)


@triton.jit
def _propose(
    X, INVERSE, SCALE, OFFSET, FIRST_IN, FIRST_BIAS, SECOND_IN, SECOND_BIAS, THIRD_IN, THIRD_BIAS,
    FIRST, SECOND, PROPOSED, work, parts, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    APART: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """PROPOSED [2K] of an atom, and both hidden layers of its network before their activations, from X̂ and INVERSE."""
    _charge_norms(X, INVERSE, SCALE, OFFSET, work, epsilon, WIDTH, CHANNELS)
    multiply1(work, FIRST_IN, parts, 3 * CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.activated(parts, FIRST_BIAS, FIRST, work + 3 * CHANNELS, CHANNELS, GROUPS, ACTIVATION)
    multiply1(work + 3 * CHANNELS, SECOND_IN, parts, CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.activated(parts, SECOND_BIAS, SECOND, work + 4 * CHANNELS, CHANNELS, GROUPS, ACTIVATION)
    multiply1(work + 4 * CHANNELS, THIRD_IN, parts, CHANNELS, 2 * K, GROUPS, UNROLL, APART)
    one_atom_maps.activated(parts, THIRD_BIAS, PROPOSED, work + 5 * CHANNELS, 2 * K, GROUPS, "none")


@triton.jit(do_not_specialize=["last_interval"])
def embed(
    POSITIONS, CELL, SYSTEM, SHIFTS, CONSTANTS, STRETCH, last_interval,
    NUMBERS, TARGETS, SOURCES, TABLE, OWN, ROW_PTR, SOURCE, KNOT, PLACE,
    GATE_SCALE, GATE_OFFSET, GATE_IN, GATE_IN_BIAS, GATE_OUT, GATE_OUT_BIAS, MIX,
    A, HIDDEN, GATE, MIXED, X, INVERSE, WORK, epsilon,
    SCALE, OFFSET, FIRST_IN, FIRST_BIAS, SECOND_IN, SECOND_BIAS, THIRD_IN, THIRD_BIAS,
    FIRST, SECOND, PROPOSED, charge_epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN_WIDTH: tl.constexpr, DEGREE: tl.constexpr, K: tl.constexpr,
    WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr, APART: tl.constexpr,
    ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """`one_atom.embed` without Y, and what the charges' network makes of atom i."""
    one_atom.embed(
        POSITIONS, CELL, SYSTEM, SHIFTS, CONSTANTS, STRETCH, last_interval,
        NUMBERS, TARGETS, SOURCES, TABLE, OWN, ROW_PTR, SOURCE, KNOT, PLACE,
        GATE_SCALE, GATE_OFFSET, GATE_IN, GATE_IN_BIAS, GATE_OUT, GATE_OUT_BIAS, MIX, None,
        A, HIDDEN, GATE, MIXED, X, INVERSE, None, WORK, epsilon,
        WIDTH, CHANNELS, HIDDEN_WIDTH, DEGREE, WORK_WIDTH, GROUPS, UNROLL, DEPTH, APART, ACTIVATION, KEEP,
    )  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    work = WORK + i * WORK_WIDTH
    tl.debug_barrier()
    _propose(
        X + i * (9 * CHANNELS), INVERSE + i * CHANNELS, SCALE, OFFSET,
        FIRST_IN, FIRST_BIAS, SECOND_IN, SECOND_BIAS, THIRD_IN, THIRD_BIAS,
        FIRST + i * CHANNELS, SECOND + i * CHANNELS, PROPOSED + i * (2 * K), work, work + PARTS * CHANNELS,
        charge_epsilon, WIDTH, CHANNELS, K, GROUPS, UNROLL, APART, ACTIVATION,
    )  # fmt: skip


@triton.jit
def sums(PROPOSED, num_atoms, k, least, K: tl.constexpr, BLOCK: tl.constexpr):
    """Σ p and Σ (f² + least) over all atoms, float64, for the charges k."""
    proposed = tl.zeros((BLOCK, k.shape[0]), tl.float64)
    shares = tl.zeros((BLOCK, k.shape[0]), tl.float64)
    for start in range(0, num_atoms, BLOCK):
        row = start + tl.arange(0, BLOCK)
        mask = (row < num_atoms)[:, None]
        at = PROPOSED + row[:, None] * (2 * K) + k[None, :]
        f = tl.load(at + K, mask=mask, other=0.0)
        proposed += tl.load(at, mask=mask, other=0.0).to(tl.float64)
        shares += tl.where(mask, f * f + least, 0.0).to(tl.float64)
    return tl.sum(proposed, 0), tl.sum(shares, 0)


@triton.jit(noinline=True)
def _find_opposite(i, ROW_PTR, SOURCE, SHIFTS, REVERSE):
    """REVERSE of the edges of row i; those without an opposite edge point to themselves."""
    end = tl.load(ROW_PTR + i + 1)
    for first in range(tl.load(ROW_PTR + i), end, FOUND_AT_ONCE):
        e = first + tl.arange(0, FOUND_AT_ONCE)
        mask = e < end
        j = tl.load(SOURCE + e, mask=mask, other=0)
        back = opposite_edges(e, mask, j, i, ROW_PTR, SOURCE, SHIFTS, CANDIDATES, True)
        tl.store(REVERSE + e, tl.where(back >= 0, back, e), mask=mask)


@triton.jit(do_not_specialize=["num_atoms"])
def first_maps(
    PROPOSED, CHARGE, SHARES, TABLE, OWN, ROW_PTR, SOURCE, TARGET, SHIFTS, KNOT, PLACE, W, BIAS, Z1, Z2, ACTED,
    X, MIX_IN, Y, WORK, REVERSE, num_atoms, least, slack,
    CHANNELS: tl.constexpr, K: tl.constexpr, DEGREE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    STEP: tl.constexpr, BLOCK: tl.constexpr, WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    APART: tl.constexpr, ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """z₁ (Z1), z₂ (Z2 if KEEP) and act(z₂) (ACTED) of rows of edges; and Y of every atom by the first programs.

    The last programs, which exist if KEEP, find the opposite edges of an atom: REVERSE [E].
    A program makes COLUMNS of z₂ for ROWS rows, STEP channels of z₁ at a time. SHARES [C,2K]: matrix of the charges of
    target and source. W [2C,C].
    """
    program = tl.program_id(0)
    if program < num_atoms:
        row, parts = program.to(tl.int64) * (9 * CHANNELS), WORK + program.to(tl.int64) * WORK_WIDTH + PARTS * CHANNELS
        multiply9(X + row, MIX_IN, parts, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.put_sum9(parts, Y + row, CHANNELS, GROUPS)
    elif program >= tl.num_programs(0) - (num_atoms if KEEP else 0):
        if KEEP:  # REVERSE is None otherwise
            _find_opposite(program - (tl.num_programs(0) - num_atoms), ROW_PTR, SOURCE, SHIFTS, REVERSE)
    else:
        BLOCKS: tl.constexpr = 2 * CHANNELS // COLUMNS
        program -= num_atoms
        count = tl.load(ROW_PTR + num_atoms)
        first = program // BLOCKS * ROWS
        if first < num_atoms + count:
            row = first + tl.arange(0, ROWS)
            e = row - num_atoms
            alone, edge = row < num_atoms, (e >= 0) & (e < count)
            knot = tl.load(KNOT + e, mask=edge, other=-1)
            inside = (knot >= 0)[:, None]
            t = tl.load(PLACE + e.to(tl.int64) * 4 + 3, mask=edge, other=0.0)[:, None]
            i = tl.where(alone, row, tl.load(TARGET + e, mask=edge, other=0))
            j = tl.where(alone, row, tl.load(SOURCE + e, mask=edge, other=0))
            there = alone[:, None] | inside
            # Charges of the target, then of the source.
            k = tl.arange(0, 2 * K)
            proposed, shares = sums(PROPOSED, num_atoms, k % K, least, K, BLOCK)
            each = (tl.load(CHARGE).to(tl.float64) - proposed) / (shares + slack)
            at = PROPOSED + tl.where(k[None, :] < K, i[:, None], j[:, None]) * (2 * K) + (k % K)[None, :]
            f = tl.load(at + K, mask=there, other=0.0)
            q = (tl.load(at, mask=there, other=0.0) + (f * f + least) * each[None, :]).to(tl.float32)
            n = program % BLOCKS * COLUMNS + tl.arange(0, COLUMNS)
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
            for start in tl.static_range(0, CHANNELS, STEP):
                c = start + tl.arange(0, STEP)
                w = tl.load(W + n[None, :] * CHANNELS + c[:, None])
                entry = TABLE + knot.to(tl.int64)[:, None] * ((DEGREE + 1) * 3 * CHANNELS) + c[None, :]
                z = filter_part(entry, 0, t, inside, CHANNELS, DEGREE)
                z = tl.where(alone[:, None], tl.load(OWN + c)[None, :], z)
                matrix = tl.load(SHARES + c[None, :] * (2 * K) + k[:, None])
                z += tl.dot(q, matrix, input_precision="tf32x3")
                if program % BLOCKS == 0:
                    tl.store(Z1 + row.to(tl.int64)[:, None] * CHANNELS + c[None, :], z, mask=there)
                acc += tl.dot(activate(z, ACTIVATION), w, input_precision="tf32x3")
            acc += tl.load(BIAS + n)[None, :]
            at = row.to(tl.int64)[:, None] * (2 * CHANNELS) + n[None, :]
            if KEEP:
                tl.store(Z2 + at, acc, mask=there)
            tl.store(ACTED + at, activate(acc, ACTIVATION), mask=there)


@triton.jit
def _messages(
    Y, Z3, ROW_PTR, SOURCE, KNOT, STRETCH, OUT, OWN, num_atoms, cutoff,
    CHANNELS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """OUT [9,C] = Σ_j f_ij Y_j, and OWN [3,C] = f_ii."""
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    n = tl.arange(0, CHANNELS)
    own = load3(Z3 + i.to(tl.int64) * (3 * CHANNELS) + n, None, CHANNELS)
    own = activate(own[0], ACTIVATION), activate(own[1], ACTIVATION), activate(own[2], ACTIVATION)
    store3(OWN + n, own, None, CHANNELS)
    end = tl.load(ROW_PTR + i + 1)
    total = nine(tl.zeros((DEPTH, CHANNELS), tl.float32))
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        within = tl.load(KNOT + e, mask=e < end, other=-1) >= 0
        j = tl.load(SOURCE + e, mask=e < end, other=0).to(tl.int64)
        cut, _ = cosine_cut(STRETCH, e, within, cutoff)
        cut, inside = cut[:, None], within[:, None]
        y = load9(Y + j[:, None] * (9 * CHANNELS) + c, inside, CHANNELS)
        z0, z1, z2 = load3(Z3 + (num_atoms + e).to(tl.int64)[:, None] * (3 * CHANNELS) + c, inside, CHANNELS)
        f0, f1, f2 = activate(z0, ACTIVATION) * cut, activate(z1, ACTIVATION) * cut, activate(z2, ACTIVATION) * cut
        total = add9(total, scale_parts(y, f0, f1, f2))
    put9(OUT, total, CHANNELS, DEPTH)


@triton.jit(do_not_specialize=["num_atoms"])
def layer(
    Y, M, CHARGE, SYSTEM, Z3, ROW_PTR, SOURCE, KNOT, STRETCH, num_atoms, cutoff,
    MIX_OUT, X, D, NEXT_X, NEXT_INVERSE, MIX_OUT_BACK, G, GY,
    READ_SCALE, READ_OFFSET, READ, READ_BIAS, READ_BACK, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
    HEAD_MORE, HEAD_MORE_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, WORK, epsilon,
    SCALE, OFFSET, FIRST_IN, FIRST_BIAS, SECOND_IN, SECOND_BIAS, THIRD_IN, THIRD_BIAS,
    FIRST, SECOND, PROPOSED, charge_epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HEAD: tl.constexpr, LAYERS: tl.constexpr, K: tl.constexpr,
    WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr, APART: tl.constexpr,
    ACTIVATION: tl.constexpr, READOUT: tl.constexpr, REFLECTIONS: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr,
    CHARGES: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """`one_atom.layer` with the filters of TensorNet2 and without Y of the next layer.

    CHARGES: also what the charges' network makes of the output.
    """
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts, own = work + PARTS * CHANNELS, work + 9 * CHANNELS
    _messages(Y, Z3, ROW_PTR, SOURCE, KNOT, STRETCH, parts, own, num_atoms, cutoff, CHANNELS, DEPTH, ACTIVATION)
    tl.debug_barrier()
    one_atom_maps.message_out(parts, Y + row, own, CHARGE, SYSTEM, M + row, work, i, CHANNELS, DEPTH, REFLECTIONS, KEEP)
    one_atom.update_atom(
        Y, M, CHARGE, SYSTEM, MIX_OUT, X, D, NEXT_X, NEXT_INVERSE, None, None, MIX_OUT_BACK, G, GY,
        READ_SCALE, READ_OFFSET, READ, READ_BIAS, READ_BACK, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
        HEAD_MORE, HEAD_MORE_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, work, parts, i, epsilon,
        WIDTH, CHANNELS, HEAD, LAYERS, GROUPS, UNROLL, APART, ACTIVATION, READOUT, False, REFLECTIONS, KEEP, LAST,
        INPUT_WIDTH,
    )  # fmt: skip
    if CHARGES:
        tl.debug_barrier()
        _propose(
            NEXT_X + row, None if LAST else NEXT_INVERSE + i * CHANNELS, SCALE, OFFSET,
            FIRST_IN, FIRST_BIAS, SECOND_IN, SECOND_BIAS, THIRD_IN, THIRD_BIAS,
            FIRST + i * CHANNELS, SECOND + i * CHANNELS, PROPOSED + i * (2 * K), work, parts, charge_epsilon,
            WIDTH, CHANNELS, K, GROUPS, UNROLL, APART, ACTIVATION,
        )  # fmt: skip
