"""From the sum over neighbours A to the first tensors X = mix(A) · gate(norm(A)), and the backward pass.

::

    | buffer | shape | holds |
    |---|---|---|
    | A, MIXED, X | [N,9,C] | the sum, mix(A), and their gated product |
    | HIDDEN | [N,H] | before the first activation of the gate; H is 2C; its gradient in the backward pass |
    | GATE | [N,3,C] | before its second activation; its gradient in the backward pass |

Channels are padded to a power of two with weights of zero; WIDTH is how many of them are real.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.interaction import atoms_here, gated_tensors, store_output
from torchmdx.engines.gpu.triton.layer_norm import statistics
from torchmdx.engines.gpu.triton.nine import add9, load9, part_norms_gradient, squared_norm, store9


@triton.jit(do_not_specialize=["num_atoms"])
def standardised_norms(
    A, SCALE, OFFSET, NORMS, num_atoms, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """NORMS [N,C] = LayerNorm(|A|²)."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    r = row.to(tl.int64)[:, None]
    norm = squared_norm(load9(A + r * (9 * CHANNELS) + c, valid, CHANNELS))
    mean, inverse = statistics(norm, c < WIDTH, WIDTH, epsilon)
    norm = (norm - mean) * inverse * tl.load(SCALE + c) + tl.load(OFFSET + c)
    tl.store(NORMS + r * CHANNELS + c, norm, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def gated(
    MIXED, GATE, X, INVERSE, num_atoms,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, ACTIVATION: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """X = MIXED act(GATE)."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, n, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    r = row.to(tl.int64)[:, None]
    gate = GATE + r * (3 * CHANNELS) + n
    x = gated_tensors(MIXED + r * (9 * CHANNELS) + n, gate, valid, CHANNELS, ACTIVATION)
    store_output(X, INVERSE, x, row, n, valid, CHANNELS, LAST)


@triton.jit(do_not_specialize=["num_atoms"])
def surroundings_mix_gradient(
    GA, A, GNORM, num_atoms, epsilon,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Adds to the gradient GA, which came through mix(A), that of the LayerNorm of |A|², from GNORM."""
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row, c, valid = atoms_here(num_atoms, ROWS, CHANNELS)
    r = row.to(tl.int64)[:, None]
    at = r * (9 * CHANNELS) + c
    a = load9(A + at, valid, CHANNELS)
    norm = squared_norm(a)
    mean, inverse = statistics(norm, c < WIDTH, WIDTH, epsilon)
    # The gradient of a LayerNorm takes two means over all channels.
    g = tl.load(GNORM + r * CHANNELS + c, mask=valid, other=0.0)
    level = tl.sum(g, 1)[:, None] / WIDTH
    along = tl.sum(g * (norm - mean), 1)[:, None] * inverse / WIDTH
    g = inverse * (g - level - (norm - mean) * inverse * along)
    store9(GA + at, add9(load9(GA + at, valid, CHANNELS), part_norms_gradient(a, g, g, g)), valid, CHANNELS)
