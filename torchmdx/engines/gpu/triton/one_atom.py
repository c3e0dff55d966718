"""The chain for few atoms: one program per atom, and one kernel between two exchanges with neighbours.

::

    embed → L x layer → L x layer_gradient

`embed` ends with Y of the first layer; `layer` with Y of the next layer or, in the last layer, with the energy and the
gradient in that layer's messages; `layer_gradient` with the gradient in the messages of the layer before, or in the
edges. A molecule is then a chain of a few kernels, limited by how fast one multiprocessor reads the weights.

Products are plain float32 sums, not tensor cores: an atom has nine rows, and warps share the inner sum. Each group of
threads stores its share of a product in memory; the function that uses it (one_atom_maps.py) adds the shares. WORK
[N,.] is the program's own memory: 32 C for vectors that products read, then two places for shares.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import edge_geometry, one_atom_maps
from torchmdx.engines.gpu.triton.edge_walk import (
    direction,
    filter_and_slope,
    filters,
    pair_embedding,
    read_edge,
    store_edge_gradient,
)
from torchmdx.engines.gpu.triton.nine import add9, along, dot_parts, load3, load9, nine, scale_parts, store3, store9

# Where the shares begin in WORK, in channels.
PARTS = tl.constexpr(32)
# Edges of a row that are placed at a time; most rows have fewer.
EDGES = tl.constexpr(64)


@triton.jit
def _multiply9(X, W, OUT, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr):
    """See `multiply9`. Each group has its share of the rows of W, and reads UNROLL of them at a time."""
    SQUARE: tl.constexpr = CHANNELS * CHANNELS
    tl.debug_barrier()
    share = tl.arange(0, GROUPS)[:, None] * (CHANNELS // GROUPS)
    n = tl.arange(0, CHANNELS)[None, :]
    total = nine(tl.zeros((GROUPS, CHANNELS), tl.float32))
    for first in range(0, CHANNELS // GROUPS, UNROLL):
        for next_one in tl.static_range(UNROLL):
            k = share + first + next_one
            w0, w1, w2 = load3(W + k * CHANNELS + n, None, SQUARE)
            total = add9(total, scale_parts(load9(X + k, None, CHANNELS), w0, w1, w2))
    put9(OUT, total, CHANNELS, GROUPS)
    tl.debug_barrier()


@triton.jit
def put9(OUT, x, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """OUT [GROUPS,9,C] = nine blocks [GROUPS,C], for `sum9`: one trip through memory, not nine sums over warps."""
    n = tl.arange(0, CHANNELS)[None, :]
    at = OUT + tl.arange(0, GROUPS)[:, None] * (9 * CHANNELS) + n
    store9(at, x, n < CHANNELS, CHANNELS)


@triton.jit
def _multiply1(X, W, OUT, INNER: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr):
    """See `multiply1`."""
    STEP: tl.constexpr = UNROLL if UNROLL < INNER // GROUPS else INNER // GROUPS
    tl.debug_barrier()
    n = tl.arange(0, WIDTH)
    a = tl.zeros((GROUPS, WIDTH), tl.float32)
    share = tl.arange(0, GROUPS)[:, None] * (INNER // GROUPS)
    for first in range(0, INNER // GROUPS, STEP):
        for next_one in tl.static_range(STEP):
            k = share + first + next_one
            a += tl.load(X + k) * tl.load(W + k * WIDTH + n[None, :])
    tl.store(OUT + tl.arange(0, GROUPS)[:, None] * WIDTH + n[None, :], a)
    tl.debug_barrier()


@triton.jit
def _multiply3(X, W, OUT, INNER: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr):
    """See `multiply3`."""
    STEP: tl.constexpr = UNROLL if UNROLL < INNER // GROUPS else INNER // GROUPS
    tl.debug_barrier()
    n = tl.arange(0, CHANNELS)
    a = tl.zeros((GROUPS, CHANNELS), tl.float32)
    b, c = a, a
    share = tl.arange(0, GROUPS)[:, None] * (INNER // GROUPS)
    for first in range(0, INNER // GROUPS, STEP):
        for next_one in tl.static_range(STEP):
            k = share + first + next_one
            x = tl.load(X + k)
            w = W + k * (3 * CHANNELS) + n[None, :]
            a += x * tl.load(w)
            b += x * tl.load(w + CHANNELS)
            c += x * tl.load(w + 2 * CHANNELS)
    store3(OUT + tl.arange(0, GROUPS)[:, None] * (3 * CHANNELS) + n[None, :], (a, b, c), None, CHANNELS)
    tl.debug_barrier()


@triton.jit
def _surroundings(
    NUMBERS, TARGETS, SOURCES, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, OUT,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """OUT [9,C] = Σ_j f(r_ij) Z_ij (1, d, d dᵀ - 1/3), DEPTH neighbours at a time."""
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    end = tl.load(ROW_PTR + i + 1)
    target = tl.load(TARGETS + tl.load(NUMBERS + i) * CHANNELS + c)
    total = nine(tl.zeros((DEPTH, CHANNELS), tl.float32))
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        mask = e < end
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        x, y, z = direction(e, mask, PLACE)
        pair = pair_embedding(target, tl.load(NUMBERS + j), inside, SOURCES, c, CHANNELS)
        f = filters(entry, t, inside, CHANNELS, DEGREE)
        f = f[0] * pair, f[1] * pair, f[2] * pair
        total = add9(total, along(f, x[:, None], y[:, None], z[:, None]))
    put9(OUT, total, CHANNELS, DEPTH)


@triton.jit
def _messages(
    Y, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, OUT, CHANNELS: tl.constexpr, DEGREE: tl.constexpr, DEPTH: tl.constexpr
):
    """OUT [9,C] = Σ_j f(r_ij) Y_j."""
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    end = tl.load(ROW_PTR + i + 1)
    total = nine(tl.zeros((DEPTH, CHANNELS), tl.float32))
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        inside, j, entry, t = read_edge(e, e < end, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        y = load9(Y + j[:, None] * (9 * CHANNELS) + c, inside, CHANNELS)
        f = filters(entry, t, inside, CHANNELS, DEGREE)
        total = add9(total, scale_parts(y, f[0], f[1], f[2]))
    put9(OUT, total, CHANNELS, DEPTH)


@triton.jit
def _messages_gradient(
    Y, GM, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, PULL, OUT,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, DEPTH: tl.constexpr, FIRST: tl.constexpr,
):  # fmt: skip
    """OUT [9,C] = Σ_j f(r_ij) GM_j, and Σ_c f'(t) (Y_i · GM_j) into PULL [E]; see messages.messages_gradient."""
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    end = tl.load(ROW_PTR + i + 1)
    y = load9(Y + i.to(tl.int64) * (9 * CHANNELS) + c, c < CHANNELS, CHANNELS)
    total = nine(tl.zeros((DEPTH, CHANNELS), tl.float32))
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        inside, j, entry, t = read_edge(e, e < end, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        g = load9(GM + j[:, None] * (9 * CHANNELS) + c, inside, CHANNELS)
        f0, d0 = filter_and_slope(entry, 0, t, inside, CHANNELS, DEGREE)
        f1, d1 = filter_and_slope(entry, 1, t, inside, CHANNELS, DEGREE)
        f2, d2 = filter_and_slope(entry, 2, t, inside, CHANNELS, DEGREE)
        total = add9(total, scale_parts(g, f0, f1, f2))
        s0, s1, s2 = dot_parts(y, g)
        pull = tl.sum(d0 * s0 + d1 * s1 + d2 * s2, 1)
        if not FIRST:
            pull += tl.load(PULL + e, mask=e < end, other=0.0)
        tl.store(PULL + e, pull, mask=e < end)
    put9(OUT, total, CHANNELS, DEPTH)


@triton.jit
def _edges_gradient(
    NUMBERS, TARGETS, SOURCES, GA, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF,
    CHANNELS: tl.constexpr, DEGREE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """h_e of the edges of row i from the gradient GA [9,C] in A_i; see embedding_sum.surroundings_gradient."""
    i = tl.program_id(0)
    c = tl.arange(0, CHANNELS)[None, :]
    end = tl.load(ROW_PTR + i + 1)
    target = tl.load(TARGETS + tl.load(NUMBERS + i) * CHANNELS + c)
    g = load9(GA + c, c < CHANNELS, CHANNELS)
    for first in range(tl.load(ROW_PTR + i), end, DEPTH):
        e = first + tl.arange(0, DEPTH)
        mask = e < end
        inside, j, entry, t = read_edge(e, mask, KNOT, SOURCE, PLACE, TABLE, c, CHANNELS, DEGREE)
        dx, dy, dz = direction(e, mask, PLACE)
        pull = tl.load(PULL + e, mask=mask, other=0.0)
        pair = pair_embedding(target, tl.load(NUMBERS + j), inside, SOURCES, c, CHANNELS)
        store_edge_gradient(e, mask, inside, entry, t, pair, pull, dx, dy, dz, g, STRETCH, HALF, CHANNELS, DEGREE)


# The same, not inlined: APART. A kernel of such functions compiles in half the time, since one pass of Triton compares
# every load of a function with every other; up to 128 atoms it takes 6 % longer to run.
_multiply9_apart = triton.jit(_multiply9.fn, noinline=True)
_multiply1_apart = triton.jit(_multiply1.fn, noinline=True)
_multiply3_apart = triton.jit(_multiply3.fn, noinline=True)
_messages_apart = triton.jit(_messages.fn, noinline=True)
_messages_gradient_apart = triton.jit(_messages_gradient.fn, noinline=True)
_edges_gradient_apart = triton.jit(_edges_gradient.fn, noinline=True)


@triton.jit
def multiply9(
    X, W, OUT, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, APART: tl.constexpr
):  # fmt: skip
    """OUT [GROUPS,9,C] = shares of X [9,C] W, one matrix of W [3,C,C] for each part; a barrier before and after."""
    (_multiply9_apart if APART else _multiply9)(X, W, OUT, CHANNELS, GROUPS, UNROLL)


@triton.jit
def multiply1(
    X, W, OUT, INNER: tl.constexpr, WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """OUT [GROUPS,WIDTH] = shares of X [INNER] W; a barrier before and after."""
    (_multiply1_apart if APART else _multiply1)(X, W, OUT, INNER, WIDTH, GROUPS, UNROLL)


@triton.jit
def multiply3(
    X, W, OUT, INNER: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    APART: tl.constexpr,
):  # fmt: skip
    """OUT [GROUPS,3,C] = shares of X [INNER] W, W [INNER,3,C]; a barrier before and after."""
    (_multiply3_apart if APART else _multiply3)(X, W, OUT, INNER, CHANNELS, GROUPS, UNROLL)


@triton.jit(noinline=True)
def _place_row(
    POSITIONS, CELL, SYSTEM, ROW_PTR, SOURCE, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, last_interval, i
):  # fmt: skip
    """Direction and table position of the edges of row i, EDGES at a time; see edge_geometry.place_edges."""
    end = tl.load(ROW_PTR + i + 1)
    target = tl.zeros((EDGES,), tl.int64) + i
    for first in range(tl.load(ROW_PTR + i), end, EDGES):
        e = first + tl.arange(0, EDGES)
        edge_geometry.place(
            e, e < end, target, POSITIONS, CELL, SYSTEM, SOURCE, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, last_interval
        )


@triton.jit(do_not_specialize=["last_interval"])
def embed(
    POSITIONS, CELL, SYSTEM, SHIFTS, CONSTANTS, STRETCH, last_interval,
    NUMBERS, TARGETS, SOURCES, TABLE, OWN, ROW_PTR, SOURCE, KNOT, PLACE,
    GATE_SCALE, GATE_OFFSET, GATE_IN, GATE_IN_BIAS, GATE_OUT, GATE_OUT_BIAS, MIX, MIX_IN,
    A, HIDDEN, GATE, MIXED, X, INVERSE, Y, WORK, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN_WIDTH: tl.constexpr, DEGREE: tl.constexpr,
    WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr, APART: tl.constexpr,
    ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Places the edges of atom i; its embedding, and Y of the first layer. The gradient needs GATE and MIXED.

    MIX_IN: if None, Y is left out.
    """
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts = work + PARTS * CHANNELS
    more = parts + (WORK_WIDTH - PARTS * CHANNELS) // 2
    a, x, hidden = A + row, X + row, HIDDEN + i * HIDDEN_WIDTH
    _place_row(POSITIONS, CELL, SYSTEM, ROW_PTR, SOURCE, SHIFTS, CONSTANTS, KNOT, PLACE, STRETCH, last_interval, i)
    tl.debug_barrier()
    _surroundings(NUMBERS, TARGETS, SOURCES, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, parts, CHANNELS, DEGREE, DEPTH)
    tl.debug_barrier()
    one_atom_maps.surroundings_norm(
        parts, NUMBERS, TARGETS, SOURCES, OWN, GATE_SCALE, GATE_OFFSET, a, work, i, epsilon, WIDTH, CHANNELS, DEPTH
    )
    multiply1(work, GATE_IN, parts, CHANNELS, HIDDEN_WIDTH, GROUPS, UNROLL, APART)
    one_atom_maps.activated(parts, GATE_IN_BIAS, hidden, work + CHANNELS, HIDDEN_WIDTH, GROUPS, ACTIVATION)
    multiply3(work + CHANNELS, GATE_OUT, parts, HIDDEN_WIDTH, CHANNELS, GROUPS, UNROLL, APART)
    multiply9(a, MIX, more, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.gated(
        parts, more, GATE_OUT_BIAS, GATE + i * (3 * CHANNELS), MIXED + row, x, INVERSE + i * CHANNELS,
        CHANNELS, GROUPS, ACTIVATION, KEEP,
    )  # fmt: skip
    if MIX_IN is not None:
        multiply9(x, MIX_IN, parts, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.put_sum9(parts, Y + row, CHANNELS, GROUPS)


@triton.jit
def _gated_head(
    X, Z, G, PARTS, W, BIAS, LAST, W_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, i,
    CHANNELS: tl.constexpr, LAYERS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    ACTIVATION: tl.constexpr, KEEP: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The energy of atom i from its features X [C]; if KEEP, G [2C], its gradient in the first hidden layer.

    Z [LAYERS,2,C]: memory for the hidden layers of both networks before their activations. Matrices as in
    head_weights.py. Products are never inlined: there are too many of them for a short compilation.
    """
    SQUARE: tl.constexpr = CHANNELS * CHANNELS
    multiply1(X, W, PARTS, CHANNELS, 2 * CHANNELS, GROUPS, UNROLL, True)
    one_atom_maps.activated(PARTS, BIAS, Z, G, 2 * CHANNELS, GROUPS, ACTIVATION)
    for layer in tl.static_range(1, LAYERS):
        for half in tl.static_range(2):
            at = half * CHANNELS
            multiply1(G + at, W + (2 * layer + half) * SQUARE, PARTS, CHANNELS, CHANNELS, GROUPS, UNROLL, True)
            z = 2 * layer * CHANNELS + at
            one_atom_maps.activated(PARTS, BIAS + z, Z + z, G + at, CHANNELS, GROUPS, ACTIVATION)
    tl.debug_barrier()
    one_atom_maps.gated_energy_out(
        Z + 2 * (LAYERS - 1) * CHANNELS, LAST, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, G, i, CHANNELS,
        ACTIVATION, INPUT_WIDTH,
    )  # fmt: skip
    if KEEP:
        for step in tl.static_range(1, LAYERS):
            for half in tl.static_range(2):
                at = half * CHANNELS
                w = W_BACK + (2 * (LAYERS - step) + half) * SQUARE
                multiply1(G + at, w, PARTS, CHANNELS, CHANNELS, GROUPS, UNROLL, True)
                z = 2 * (LAYERS - step - 1) * CHANNELS + at
                one_atom_maps.times_slope(PARTS, Z + z, G + at, CHANNELS, GROUPS, ACTIVATION)


@triton.jit
def _plain_head(
    X, Z, ACTED, G, PARTS, W, MORE, MORE_BACK, BIAS, LAST, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, i,
    CHANNELS: tl.constexpr, HEAD: tl.constexpr, LAYERS: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr,
    APART: tl.constexpr, ACTIVATION: tl.constexpr, KEEP: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The energy of atom i from its features X [C]; if KEEP, G [HEAD], its gradient in the first hidden layer.

    Z [LAYERS-1,HEAD] and ACTED [HEAD]: memory for hidden layers before the last, and for one of them activated.
    """
    SQUARE: tl.constexpr = HEAD * HEAD
    multiply1(X, W, PARTS, CHANNELS, HEAD, GROUPS, UNROLL, APART)
    for layer in tl.static_range(1, LAYERS):
        at = (layer - 1) * HEAD
        one_atom_maps.activated(PARTS, BIAS + at, Z + at, ACTED, HEAD, GROUPS, ACTIVATION)
        multiply1(ACTED, MORE + (layer - 1) * SQUARE, PARTS, HEAD, HEAD, GROUPS, UNROLL, True)
    one_atom_maps.energy_out(
        PARTS, BIAS + (LAYERS - 1) * HEAD, LAST, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, G, i, HEAD, GROUPS,
        ACTIVATION, INPUT_WIDTH,
    )  # fmt: skip
    if KEEP:
        for step in tl.static_range(1, LAYERS):
            at = LAYERS - step - 1
            multiply1(G, MORE_BACK + at * SQUARE, PARTS, HEAD, HEAD, GROUPS, UNROLL, True)
            one_atom_maps.times_slope(PARTS, Z + at * HEAD, G, HEAD, GROUPS, ACTIVATION)


@triton.jit
def layer(
    Y, M, CHARGE, SYSTEM, TABLE, OWN, ROW_PTR, SOURCE, KNOT, PLACE,
    MIX_OUT, X, D, NEXT_X, NEXT_INVERSE, MIX_IN, NEXT_Y, MIX_OUT_BACK, G, GY,
    READ_SCALE, READ_OFFSET, READ, READ_BIAS, READ_BACK, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
    HEAD_MORE, HEAD_MORE_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, WORK, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HEAD: tl.constexpr, LAYERS: tl.constexpr, DEGREE: tl.constexpr,
    WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr, APART: tl.constexpr,
    ACTIVATION: tl.constexpr, READOUT: tl.constexpr, GATED: tl.constexpr,
    REFLECTIONS: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """X' = X̂ + D + (1 + q/10) D D with D = P̂ W and P = product(Y, M): a layer of atom i; see interaction.py.

    Then Y of the next layer. LAST: the energy of atom i, and if KEEP what `layer_gradient` of this layer starts from:
    G, GY, and M becomes the gradient in M. READOUT: the activation of the features. LAYERS: hidden layers of the head.
    INPUTS, INPUT_WIDTH: as in readout.py and gated_head.py.
    """
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts = work + PARTS * CHANNELS
    (_messages_apart if APART else _messages)(Y, TABLE, ROW_PTR, SOURCE, KNOT, PLACE, parts, CHANNELS, DEGREE, DEPTH)
    tl.debug_barrier()
    one_atom_maps.message_out(parts, Y + row, OWN, CHARGE, SYSTEM, M + row, work, i, CHANNELS, DEPTH, REFLECTIONS, KEEP)
    update_atom(
        Y, M, CHARGE, SYSTEM, MIX_OUT, X, D, NEXT_X, NEXT_INVERSE, MIX_IN, NEXT_Y, MIX_OUT_BACK, G, GY,
        READ_SCALE, READ_OFFSET, READ, READ_BIAS, READ_BACK, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
        HEAD_MORE, HEAD_MORE_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, work, parts, i, epsilon,
        WIDTH, CHANNELS, HEAD, LAYERS, GROUPS, UNROLL, APART, ACTIVATION, READOUT, GATED, REFLECTIONS, KEEP, LAST,
        INPUT_WIDTH,
    )  # fmt: skip


@triton.jit
def update_atom(
    Y, M, CHARGE, SYSTEM, MIX_OUT, X, D, NEXT_X, NEXT_INVERSE, MIX_IN, NEXT_Y, MIX_OUT_BACK, G, GY,
    READ_SCALE, READ_OFFSET, READ, READ_BIAS, READ_BACK, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
    HEAD_MORE, HEAD_MORE_BACK, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, work, parts, i, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HEAD: tl.constexpr, LAYERS: tl.constexpr, GROUPS: tl.constexpr,
    UNROLL: tl.constexpr, APART: tl.constexpr, ACTIVATION: tl.constexpr, READOUT: tl.constexpr, GATED: tl.constexpr,
    REFLECTIONS: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """What `layer` does from P̂ on, which is in `work`.

    MIX_IN: if None, Y of the next layer is left out. MIX_OUT_BACK: if None, the backward pass ends with G.
    """
    row = i * (9 * CHANNELS)
    x = NEXT_X + row
    multiply9(work, MIX_OUT, parts, CHANNELS, GROUPS, UNROLL, APART)
    one_atom_maps.updated(
        parts, X + row, D + row, CHARGE, SYSTEM, x, NEXT_INVERSE + i * CHANNELS, i, CHANNELS, GROUPS, KEEP, LAST
    )
    if not LAST:
        if MIX_IN is not None:
            multiply9(x, MIX_IN, parts, CHANNELS, GROUPS, UNROLL, APART)
            one_atom_maps.put_sum9(parts, NEXT_Y + row, CHANNELS, GROUPS)
    else:
        features, head = work + 9 * CHANNELS, work + 10 * CHANNELS
        tl.debug_barrier()
        one_atom_maps.read_norms(x, READ_SCALE, READ_OFFSET, work, epsilon, WIDTH, CHANNELS)
        multiply1(work, READ, parts, 3 * CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.activated(parts, READ_BIAS, features, work + 4 * CHANNELS, CHANNELS, GROUPS, READOUT)
        if GATED:
            gradient = work + 28 * CHANNELS
            _gated_head(
                work + 4 * CHANNELS, work + 20 * CHANNELS, gradient, parts, HEAD_IN, HEAD_BIAS, HEAD_OUT, HEAD_BACK,
                CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, i, CHANNELS, LAYERS, GROUPS, UNROLL, ACTIVATION,
                KEEP, INPUT_WIDTH,
            )  # fmt: skip
            if KEEP:
                multiply1(gradient, HEAD_BACK, parts, 2 * CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
        else:
            _plain_head(
                work + 4 * CHANNELS, work + 20 * CHANNELS, work + 28 * CHANNELS, head, parts, HEAD_IN, HEAD_MORE,
                HEAD_MORE_BACK, HEAD_BIAS, HEAD_OUT, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, i,
                CHANNELS, HEAD, LAYERS, GROUPS, UNROLL, APART, ACTIVATION, KEEP, INPUT_WIDTH,
            )  # fmt: skip
            if KEEP:
                multiply1(head, HEAD_BACK, parts, HEAD, CHANNELS, GROUPS, UNROLL, APART)
        if KEEP:
            one_atom_maps.times_slope(parts, features, work + 5 * CHANNELS, CHANNELS, GROUPS, READOUT)
            multiply3(work + 5 * CHANNELS, READ_BACK, parts, CHANNELS, CHANNELS, GROUPS, UNROLL, APART)
            one_atom_maps.read_gradient(
                parts, x, READ_SCALE, D + row, CHARGE, SYSTEM, G + row, work + 11 * CHANNELS, i, epsilon,
                WIDTH, CHANNELS, GROUPS,
            )  # fmt: skip
            if MIX_OUT_BACK is not None:
                multiply9(work + 11 * CHANNELS, MIX_OUT_BACK, parts, CHANNELS, GROUPS, UNROLL, APART)
                one_atom_maps.product_gradient(
                    parts, Y + row, M + row, CHARGE, SYSTEM, GY + row, i, CHANNELS, GROUPS, REFLECTIONS
                )


@triton.jit
def layer_gradient(
    Y, GM, GY, TABLE, OWN, SENDER, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF,
    MIX_IN_BACK, X, INVERSE, G, CHARGE, SYSTEM,
    D, MIX_OUT_BACK, BEFORE_Y, BEFORE_M,
    A, HIDDEN, GATE, MIXED, GATE_SCALE, GATE_IN_BACK, GATE_OUT_BACK, MIX_BACK, FILTERS, NUMBERS, TARGETS, SOURCES,
    WORK, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN_WIDTH: tl.constexpr, DEGREE: tl.constexpr,
    WORK_WIDTH: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr, APART: tl.constexpr,
    ACTIVATION: tl.constexpr, REFLECTIONS: tl.constexpr, FIRST: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """GM and GY of the layer before from those of a layer; of the first layer (EMBEDDING), HALF of every edge.

    FIRST: the first of these kernels, which writes PULL instead of adding to it. SENDER [E]: whose tensors the messages
    carry, as in `Chain.senders`.
    """
    i = tl.program_id(0).to(tl.int64)
    row, work = i * (9 * CHANNELS), WORK + i * WORK_WIDTH
    parts = work + PARTS * CHANNELS
    (_messages_gradient_apart if APART else _messages_gradient)(
        Y, GM, TABLE, ROW_PTR, SENDER, KNOT, PLACE, PULL, parts, CHANNELS, DEGREE, DEPTH, FIRST
    )
    tl.debug_barrier()
    one_atom_maps.messages_back(parts, GM + row, GY + row, OWN, work, CHANNELS, DEPTH)
    multiply9(work, MIX_IN_BACK, parts, CHANNELS, GROUPS, UNROLL, APART)
    input_back(
        parts, None, GY, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, X, INVERSE, G, CHARGE, SYSTEM,
        D, MIX_OUT_BACK, BEFORE_Y, BEFORE_M, A, HIDDEN, GATE, MIXED, GATE_SCALE, GATE_IN_BACK, GATE_OUT_BACK, MIX_BACK,
        FILTERS, NUMBERS, TARGETS, SOURCES, work, parts, i, epsilon, WIDTH, CHANNELS, HIDDEN_WIDTH, DEGREE, WORK_WIDTH,
        GROUPS, GROUPS, UNROLL, DEPTH, APART, ACTIVATION, REFLECTIONS, EMBEDDING,
    )  # fmt: skip


@triton.jit
def input_back(
    THROUGH_Y, MORE, GY, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF, X, INVERSE, G, CHARGE, SYSTEM,
    D, MIX_OUT_BACK, BEFORE_Y, BEFORE_M, A, HIDDEN, GATE, MIXED, GATE_SCALE, GATE_IN_BACK, GATE_OUT_BACK, MIX_BACK,
    FILTERS, NUMBERS, TARGETS, SOURCES, work, parts, i, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, HIDDEN_WIDTH: tl.constexpr, DEGREE: tl.constexpr,
    WORK_WIDTH: tl.constexpr, SHARES: tl.constexpr, GROUPS: tl.constexpr, UNROLL: tl.constexpr, DEPTH: tl.constexpr,
    APART: tl.constexpr, ACTIVATION: tl.constexpr, REFLECTIONS: tl.constexpr, EMBEDDING: tl.constexpr,
):  # fmt: skip
    """What `layer_gradient` does from the gradient in X̂ through Y on, whose shares THROUGH_Y [SHARES,9,C] are.

    MORE [9,C]: a gradient in X to be added, or None; in neither of the first 18 C of `work`.
    """
    row = i * (9 * CHANNELS)
    x, inverse = X + row, INVERSE + i * CHANNELS
    if EMBEDDING:
        more, hidden = parts + (WORK_WIDTH - PARTS * CHANNELS) // 2, work + 3 * CHANNELS
        mixed, ga = work + 9 * CHANNELS, work + 18 * CHANNELS
        one_atom_maps.gate_gradient(
            THROUGH_Y, MORE, G + row, x, inverse, GATE + i * (3 * CHANNELS), MIXED + row, work, mixed,
            CHANNELS, SHARES, ACTIVATION,
        )  # fmt: skip
        multiply1(work, GATE_OUT_BACK, parts, 3 * CHANNELS, HIDDEN_WIDTH, GROUPS, UNROLL, APART)
        one_atom_maps.times_slope(parts, HIDDEN + i * HIDDEN_WIDTH, hidden, HIDDEN_WIDTH, GROUPS, ACTIVATION)
        multiply1(hidden, GATE_IN_BACK, parts, HIDDEN_WIDTH, CHANNELS, GROUPS, UNROLL, APART)
        multiply9(mixed, MIX_BACK, more, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.surroundings_norm_gradient(parts, more, GATE_SCALE, A + row, ga, epsilon, WIDTH, CHANNELS, GROUPS)
        tl.debug_barrier()
        (_edges_gradient_apart if APART else _edges_gradient)(
            NUMBERS, TARGETS, SOURCES, ga, FILTERS, ROW_PTR, SOURCE, KNOT, PLACE, STRETCH, PULL, HALF,
            CHANNELS, DEGREE, DEPTH,
        )  # fmt: skip
    else:
        one_atom_maps.input_gradient(
            THROUGH_Y, MORE, G + row, x, inverse, D + row, CHARGE, SYSTEM, work, i, CHANNELS, SHARES
        )
        multiply9(work, MIX_OUT_BACK, parts, CHANNELS, GROUPS, UNROLL, APART)
        one_atom_maps.product_gradient(
            parts, BEFORE_Y + row, BEFORE_M + row, CHARGE, SYSTEM, GY + row, i, CHANNELS, GROUPS, REFLECTIONS
        )
