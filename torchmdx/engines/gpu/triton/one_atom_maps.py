"""The maps of one_atom.py between two products: those of interaction.py, embedding.py and readout.py for one atom.

Each is a separate function in the compiled code (noinline) with inputs and outputs in memory: inlined, a kernel has
thousands of operations, which Triton takes a minute to compile. Every thread has stored its share of a product before
one of these functions starts, and products start with a barrier, so threads see each other's values. Where a function
reads and writes the same buffer, a barrier separates the two, because several threads may hold the same value.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, sigmoid, slope
from torchmdx.engines.gpu.triton.layer_norm import part_gradient, part_statistics, statistics
from torchmdx.engines.gpu.triton.nine import (
    add9,
    add_to_scalar,
    dot_parts,
    load3,
    load9,
    message_product,
    message_product_gradient,
    normalise,
    normalise_gradient,
    part_norms,
    part_norms_gradient,
    scale9,
    scale_parts,
    square,
    square_gradient,
    squared_norm,
    store3,
    store9,
)


@triton.jit
def sum9(PARTS, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Nine vectors [C]: sums over the groups of PARTS [GROUPS,9,C]."""
    n = tl.arange(0, CHANNELS)
    x = load9(PARTS + n, n < CHANNELS, CHANNELS)
    for g in tl.static_range(1, GROUPS):
        x = add9(x, load9(PARTS + g * (9 * CHANNELS) + n, n < CHANNELS, CHANNELS))
    return x


@triton.jit
def sum1(PARTS, WIDTH: tl.constexpr, GROUPS: tl.constexpr, STRIDE: tl.constexpr):
    """One vector [WIDTH]: the sum over groups, STRIDE apart."""
    n = tl.arange(0, WIDTH)
    x = tl.load(PARTS + n)
    for g in tl.static_range(1, GROUPS):
        x += tl.load(PARTS + g * STRIDE + n)
    return x


@triton.jit
def sum3(PARTS, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Three vectors [C]: sums over the groups of PARTS [GROUPS,3,C]."""
    return (
        sum1(PARTS, CHANNELS, GROUPS, 3 * CHANNELS),
        sum1(PARTS + CHANNELS, CHANNELS, GROUPS, 3 * CHANNELS),
        sum1(PARTS + 2 * CHANNELS, CHANNELS, GROUPS, 3 * CHANNELS),
    )


@triton.jit
def standardised(x, real, width, epsilon):
    """(x - mean) / deviation over the real channels, 0 in the others, and 1 / deviation."""
    mean, inverse = statistics(x, real, width, epsilon)
    return tl.where(real, x - mean, 0.0) * inverse, inverse


@triton.jit
def system_factor(CHARGE, SYSTEM, i):
    """1 + q/10 of the system of atom i."""
    return 1.0 + 0.1 * tl.load(CHARGE + tl.load(SYSTEM + i)).to(tl.float32)


@triton.jit(noinline=True)
def put_sum9(PARTS, OUT, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """OUT [9,C] = sums over groups."""
    n = tl.arange(0, CHANNELS)
    store9(OUT + n, sum9(PARTS, CHANNELS, GROUPS), n < CHANNELS, CHANNELS)


@triton.jit(noinline=True)
def surroundings_norm(
    PARTS, NUMBERS, TARGETS, SOURCES, OWN, SCALE, OFFSET, A, OUT, i, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A of atom i, from its sum over neighbours, and OUT [C], the LayerNorm of |A|²."""
    n = tl.arange(0, CHANNELS)
    a = sum9(PARTS, CHANNELS, DEPTH)
    # The message of an atom to itself has no direction, so it contributes to the scalar part only.
    element = tl.load(NUMBERS + i) * CHANNELS + n
    own = tl.load(OWN + n) * (tl.load(TARGETS + element) + tl.load(SOURCES + element))
    a = add_to_scalar(a, own)
    store9(A + n, a, n < CHANNELS, CHANNELS)
    norm, _ = standardised(squared_norm(a), n < WIDTH, WIDTH, epsilon)
    tl.store(OUT + n, norm * tl.load(SCALE + n) + tl.load(OFFSET + n))


@triton.jit(noinline=True)
def activated(
    PARTS, BIAS, BEFORE, OUT, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ACTIVATION: tl.constexpr
):  # fmt: skip
    """BEFORE [WIDTH] = sum over groups + bias; OUT = act(BEFORE)."""
    n = tl.arange(0, WIDTH)
    x = sum1(PARTS, WIDTH, GROUPS, WIDTH) + tl.load(BIAS + n)
    tl.store(BEFORE + n, x)
    tl.store(OUT + n, activate(x, ACTIVATION))


@triton.jit(noinline=True)
def gated(
    PARTS, MORE_PARTS, BIAS, GATE, MIXED, X, INVERSE,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, ACTIVATION: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """X = MIXED act(GATE), stored as X̂ and INVERSE; MIXED and GATE are stored if KEEP."""
    n = tl.arange(0, CHANNELS)
    g0, g1, g2 = sum3(PARTS, CHANNELS, GROUPS)
    b0, b1, b2 = load3(BIAS + n, None, CHANNELS)
    g0, g1, g2 = g0 + b0, g1 + b1, g2 + b2
    mixed = sum9(MORE_PARTS, CHANNELS, GROUPS)
    if KEEP:
        store3(GATE + n, (g0, g1, g2), None, CHANNELS)
        store9(MIXED + n, mixed, n < CHANNELS, CHANNELS)
    x = scale_parts(mixed, activate(g0, ACTIVATION), activate(g1, ACTIVATION), activate(g2, ACTIVATION))
    _store_input(X, INVERSE, x, CHANNELS)


@triton.jit
def _store_input(X, INVERSE, x, CHANNELS: tl.constexpr):
    """X̂ and 1/(|X|²+1), what the next layer reads."""
    n = tl.arange(0, CHANNELS)
    inverse = 1.0 / (squared_norm(x) + 1.0)
    tl.store(INVERSE + n, inverse)
    store9(X + n, scale9(x, inverse), n < CHANNELS, CHANNELS)


@triton.jit(noinline=True)
def message_out(
    PARTS, Y, OWN, CHARGE, SYSTEM, M, OUT, i,
    CHANNELS: tl.constexpr, DEPTH: tl.constexpr, REFLECTIONS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """M, stored if KEEP, from its sum over neighbours, and OUT [9,C], P̂ of its product with Y."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    y = load9(Y + n, every, CHANNELS)
    f0, f1, f2 = load3(OWN + n, None, CHANNELS)
    m = add9(sum9(PARTS, CHANNELS, DEPTH), scale_parts(y, f0, f1, f2))
    if KEEP:
        store9(M + n, m, every, CHANNELS)
    factor = system_factor(CHARGE, SYSTEM, i)
    store9(OUT + n, normalise(message_product(y, m, factor, REFLECTIONS)), every, CHANNELS)


@triton.jit(noinline=True)
def updated(
    PARTS, X, D, CHARGE, SYSTEM, OUT, INVERSE, i,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, KEEP: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """X' = X̂ + D + (1 + q/10) D D, as the next layer reads it, or, of the LAST layer, itself. D is stored if KEEP."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    d = sum9(PARTS, CHANNELS, GROUPS)
    if KEEP:
        store9(D + n, d, every, CHANNELS)
    factor = system_factor(CHARGE, SYSTEM, i)
    x = add9(add9(load9(X + n, every, CHANNELS), d), scale9(square(d), factor))
    if LAST:
        store9(OUT + n, x, every, CHANNELS)
    else:
        _store_input(OUT, INVERSE, x, CHANNELS)


@triton.jit
def standardised_norms(n0, n1, n2, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """Three numbers of each channel, standardised together over the real channels, and 1 / deviation."""
    real = tl.arange(0, CHANNELS) < WIDTH
    mean, inverse = part_statistics(n0, n1, n2, real, WIDTH, epsilon)
    n0, n1, n2 = tl.where(real, n0 - mean, 0.0), tl.where(real, n1 - mean, 0.0), tl.where(real, n2 - mean, 0.0)
    return (n0 * inverse, n1 * inverse, n2 * inverse), inverse


@triton.jit(noinline=True)
def read_norms(X, SCALE, OFFSET, OUT, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """OUT [3,C] = LayerNorm(|s|², |a|², |q|²)."""
    n = tl.arange(0, CHANNELS)
    n0, n1, n2 = part_norms(load9(X + n, n < CHANNELS, CHANNELS))
    store_norms(n0, n1, n2, SCALE, OFFSET, OUT, epsilon, WIDTH, CHANNELS)


@triton.jit
def store_norms(n0, n1, n2, SCALE, OFFSET, OUT, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr):
    """OUT [3,C] = LayerNorm of three numbers of each channel."""
    n = tl.arange(0, CHANNELS)
    norms, _ = standardised_norms(n0, n1, n2, epsilon, WIDTH, CHANNELS)
    s0, s1, s2 = load3(SCALE + n, None, CHANNELS)
    o0, o1, o2 = load3(OFFSET + n, None, CHANNELS)
    store3(OUT + n, (norms[0] * s0 + o0, norms[1] * s1 + o1, norms[2] * s2 + o2), None, CHANNELS)


@triton.jit(noinline=True)
def energy_out(
    PARTS, BIAS, LAST, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, GRADIENT, i,
    HEAD: tl.constexpr, GROUPS: tl.constexpr, ACTIVATION: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The energy of atom i, and GRADIENT [HEAD], its gradient before the head's activation.

    INPUTS: as in readout.py.
    """
    h = tl.arange(0, HEAD)
    z = sum1(PARTS, HEAD, GROUPS, HEAD) + tl.load(BIAS + h)
    last, scale = tl.load(LAST + h), tl.load(CONSTANTS)
    output = tl.sum((activate(z, ACTIVATION) * last).to(tl.float64), 0) + tl.load(CONSTANTS + 1)
    tl.store(ENERGIES + i, output * scale + tl.load(REFERENCES + tl.load(NUMBERS + i)))
    if INPUTS is not None:
        tl.store(INPUTS + i * INPUT_WIDTH + h, activate(z, ACTIVATION), mask=h < INPUT_WIDTH - 1)
        tl.store(INPUTS + i * INPUT_WIDTH + INPUT_WIDTH - 1, 1.0)
    tl.store(GRADIENT + h, slope(z, ACTIVATION) * last * scale.to(tl.float32))


@triton.jit(noinline=True)
def gated_energy_out(
    Z, LAST, CONSTANTS, REFERENCES, NUMBERS, ENERGIES, INPUTS, GRADIENT, i,
    CHANNELS: tl.constexpr, ACTIVATION: tl.constexpr, INPUT_WIDTH: tl.constexpr,
):  # fmt: skip
    """The energy of atom i from the last hidden layer Z [2,C] of a gated head, and GRADIENT [2,C], that in Z.

    INPUTS: as in gated_head.py.
    """
    n = tl.arange(0, CHANNELS)
    z, gate = tl.load(Z + n), tl.load(Z + CHANNELS + n)
    w, w_gate = tl.load(LAST + n), tl.load(LAST + CHANNELS + n)
    scale = tl.load(CONSTANTS)
    value = tl.sum((activate(z, ACTIVATION) * w).to(tl.float64), 0) + tl.load(CONSTANTS + 1)
    opening = tl.sum((activate(gate, ACTIVATION) * w_gate).to(tl.float64), 0) + tl.load(CONSTANTS + 2)
    open_share = sigmoid(opening)
    tl.store(ENERGIES + i, value * open_share * scale + tl.load(REFERENCES + tl.load(NUMBERS + i)))
    if INPUTS is not None:
        inputs = activate(z, ACTIVATION) * open_share.to(tl.float32)
        tl.store(INPUTS + i * INPUT_WIDTH + n, inputs, mask=n < INPUT_WIDTH - 1)
        tl.store(INPUTS + i * INPUT_WIDTH + INPUT_WIDTH - 1, open_share.to(tl.float32))
    of_opening = value * open_share * (1.0 - open_share) * scale
    tl.store(GRADIENT + n, slope(z, ACTIVATION) * w * (open_share * scale).to(tl.float32))
    tl.store(GRADIENT + CHANNELS + n, slope(gate, ACTIVATION) * w_gate * of_opening.to(tl.float32))


@triton.jit(noinline=True)
def times_slope(PARTS, BEFORE, OUT, WIDTH: tl.constexpr, GROUPS: tl.constexpr, ACTIVATION: tl.constexpr):
    """OUT [WIDTH] = sum over groups, through the activation of BEFORE."""
    n = tl.arange(0, WIDTH)
    tl.store(OUT + n, sum1(PARTS, WIDTH, GROUPS, WIDTH) * slope(tl.load(BEFORE + n), ACTIVATION))


@triton.jit(noinline=True)
def read_gradient(
    PARTS, X, SCALE, D, CHARGE, SYSTEM, G, GD, i, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """From the gradient in the scaled norms, through the LayerNorm, those in X', G, and in D, GD."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    x = load9(X + n, every, CHANNELS)
    n0, n1, n2 = part_norms(x)
    norms, inverse = standardised_norms(n0, n1, n2, epsilon, WIDTH, CHANNELS)
    g0, g1, g2 = sum3(PARTS, CHANNELS, GROUPS)
    s0, s1, s2 = load3(SCALE + n, None, CHANNELS)
    g0, g1, g2 = part_gradient(g0 * s0, g1 * s1, g2 * s2, norms[0], norms[1], norms[2], inverse, WIDTH)
    g = part_norms_gradient(x, g0, g1, g2)
    store9(G + n, g, every, CHANNELS)
    _store_update_gradient(GD, D, CHARGE, SYSTEM, g, i, CHANNELS)


@triton.jit
def _store_update_gradient(GD, D, CHARGE, SYSTEM, g, i, CHANNELS: tl.constexpr):
    """GD = gradient in D from the gradient g in X' = X̂ + D + (1 + q/10) D D."""
    n = tl.arange(0, CHANNELS)
    d = load9(D + n, n < CHANNELS, CHANNELS)
    gd = add9(g, scale9(square_gradient(d, g), system_factor(CHARGE, SYSTEM, i)))
    store9(GD + n, gd, n < CHANNELS, CHANNELS)


@triton.jit(noinline=True)
def add_output_gradient(MORE, D, CHARGE, SYSTEM, G, GD, i, CHANNELS: tl.constexpr):
    """Adds MORE to the gradient G in X'; and GD, that in D."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    g = add9(load9(G + n, every, CHANNELS), load9(MORE + n, every, CHANNELS))
    tl.debug_barrier()
    store9(G + n, g, every, CHANNELS)
    _store_update_gradient(GD, D, CHARGE, SYSTEM, g, i, CHANNELS)


@triton.jit(noinline=True)
def product_gradient(
    PARTS, Y, M, CHARGE, SYSTEM, GY, i, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, REFLECTIONS: tl.constexpr
):  # fmt: skip
    """From the gradient in P̂ those in Y, as far as it does not come through messages, and in M, which replaces M."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    y, m = load9(Y + n, every, CHANNELS), load9(M + n, every, CHANNELS)
    factor = system_factor(CHARGE, SYSTEM, i)
    p = message_product(y, m, factor, REFLECTIONS)
    inverse = 1.0 / (squared_norm(p) + 1.0)
    g = normalise_gradient(scale9(p, inverse), inverse, sum9(PARTS, CHANNELS, GROUPS))
    gy, gm = message_product_gradient(y, m, g, factor, REFLECTIONS)
    tl.debug_barrier()
    store9(GY + n, gy, every, CHANNELS)
    store9(M + n, gm, every, CHANNELS)


@triton.jit(noinline=True)
def messages_back(PARTS, GM, GY, OWN, OUT, CHANNELS: tl.constexpr, DEPTH: tl.constexpr):
    """OUT [9,C], the whole gradient in Y: through messages to neighbours, to itself, and GY."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    f0, f1, f2 = load3(OWN + n, None, CHANNELS)
    g = add9(sum9(PARTS, CHANNELS, DEPTH), scale_parts(load9(GM + n, every, CHANNELS), f0, f1, f2))
    store9(OUT + n, add9(g, load9(GY + n, every, CHANNELS)), every, CHANNELS)


@triton.jit
def _input_gradient(PARTS, MORE, G, X, INVERSE, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Gradient in a layer's input: through Y, G, which reached X̂ from the layer's output, and MORE, if not None."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    g = add9(sum9(PARTS, CHANNELS, GROUPS), load9(G + n, every, CHANNELS))
    g = normalise_gradient(load9(X + n, every, CHANNELS), tl.load(INVERSE + n), g)
    if MORE is not None:
        g = add9(g, load9(MORE + n, every, CHANNELS))
    return g


@triton.jit(noinline=True)
def input_gradient(
    PARTS, MORE, G, X, INVERSE, D, CHARGE, SYSTEM, GD, i, CHANNELS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """G becomes the gradient in the input, which is the output of the layer before; GD is that in this one's D."""
    n = tl.arange(0, CHANNELS)
    g = _input_gradient(PARTS, MORE, G, X, INVERSE, CHANNELS, GROUPS)
    tl.debug_barrier()
    store9(G + n, g, n < CHANNELS, CHANNELS)
    _store_update_gradient(GD, D, CHARGE, SYSTEM, g, i, CHANNELS)


@triton.jit(noinline=True)
def gate_gradient(
    PARTS, MORE, G, X, INVERSE, GATE, MIXED, GGATE, GMIXED,
    CHANNELS: tl.constexpr, GROUPS: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """GGATE [3,C] and GMIXED [9,C]: the gradients in both factors of the first X = MIXED act(GATE)."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    g = _input_gradient(PARTS, MORE, G, X, INVERSE, CHANNELS, GROUPS)
    z0, z1, z2 = load3(GATE + n, None, CHANNELS)
    s0, s1, s2 = dot_parts(g, load9(MIXED + n, every, CHANNELS))
    s = (s0 * slope(z0, ACTIVATION), s1 * slope(z1, ACTIVATION), s2 * slope(z2, ACTIVATION))
    store3(GGATE + n, s, None, CHANNELS)
    g = scale_parts(g, activate(z0, ACTIVATION), activate(z1, ACTIVATION), activate(z2, ACTIVATION))
    store9(GMIXED + n, g, every, CHANNELS)


@triton.jit(noinline=True)
def surroundings_norm_gradient(
    PARTS, MORE_PARTS, SCALE, A, GA, epsilon, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """GA [9,C]: through mix(A), MORE_PARTS, and through the LayerNorm of |A|², PARTS."""
    n = tl.arange(0, CHANNELS)
    every = n < CHANNELS
    g = sum1(PARTS, CHANNELS, GROUPS, CHANNELS) * tl.load(SCALE + n)
    a = load9(A + n, every, CHANNELS)
    norm, inverse = standardised(squared_norm(a), n < WIDTH, WIDTH, epsilon)
    g = inverse * (g - tl.sum(g, 0) / WIDTH - norm * (tl.sum(g * norm, 0) / WIDTH))
    ga = add9(sum9(MORE_PARTS, CHANNELS, GROUPS), part_norms_gradient(a, g, g, g))
    store9(GA + n, ga, every, CHANNELS)
