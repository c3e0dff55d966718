"""The gated head for blocks of atoms: two networks side by side, and the energy layers · sigmoid(gates).

::

    | buffer | shape | holds |
    |---|---|---|
    | Z | [N,2C] | a hidden layer of both networks before its activation; its gradient in the backward pass |
    | ENERGIES | [N] float64 | scale · head + reference energy of the element |

The first hidden layer is one product of all features (tf32_product.multiply), the others are `multiply_halves`.
"""

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton.activations import activate, sigmoid, slope
from torchmdx.engines.gpu.triton.tf32_product import product


@triton.jit(do_not_specialize=["num_atoms"])
def multiply_halves(
    X,
    W,
    SMALL,
    SIDE,
    Y,
    num_atoms,
    CHANNELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STEP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BACK: tl.constexpr,
):
    """Y [N,2,C] from X [N,2,C], each half times its matrix of W [2,C,C], which has outputs as rows.

    Forward: act(X) W + SIDE, with SIDE [2,C]. BACK: (X W) act'(SIDE), with SIDE [N,2,C], which may be Y.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ROWS >= num_atoms:
            return
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    half = tl.program_id(2)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = (row < num_atoms)[:, None]
    base = row.to(tl.int64)[:, None] * (2 * CHANNELS) + half * CHANNELS
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, CHANNELS, STEP):
        k = first + tl.arange(0, STEP)[None, :]
        x = tl.load(X + base + k, mask=valid, other=0.0)
        if not BACK:
            x = activate(x, ACTIVATION)
        acc = product(acc, x, W, SMALL, half * (CHANNELS * CHANNELS) + n[:, None] * CHANNELS + k)
    if BACK:
        acc *= slope(tl.load(SIDE + base + n[None, :], mask=valid, other=0.0), ACTIVATION)
    else:
        acc += tl.load(SIDE + half * CHANNELS + n)[None, :]
    tl.store(Y + base + n[None, :], acc, mask=valid)


@triton.jit(do_not_specialize=["num_atoms"])
def gated_energies(
    Z,
    LAST,
    CONSTANTS,
    REFERENCES,
    NUMBERS,
    ENERGIES,
    INPUTS,
    num_atoms,
    CHANNELS: tl.constexpr,
    ATOMS: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GRADIENT: tl.constexpr,
    INPUT_WIDTH: tl.constexpr,
):
    """ENERGIES from the last hidden layer Z and LAST [2,C]. GRADIENT: Z becomes the gradient of the energy in Z.

    CONSTANTS: scale, and the last biases of layers and gates, float64. INPUTS [N,INPUT_WIDTH]: inputs of the last
    layer, and 1 for its bias, times the gate; None where they are not wanted.
    """
    if num_atoms.dtype.is_ptr():
        num_atoms = tl.load(num_atoms)
        if tl.program_id(0) * ATOMS >= num_atoms:
            return
    row = tl.program_id(0) * ATOMS + tl.arange(0, ATOMS)
    valid = row < num_atoms
    keep = valid[:, None]
    c = tl.arange(0, CHANNELS)[None, :]
    at = Z + row.to(tl.int64)[:, None] * (2 * CHANNELS) + c
    z, gate = tl.load(at, mask=keep, other=0.0), tl.load(at + CHANNELS, mask=keep, other=0.0)
    w, w_gate = tl.load(LAST + c), tl.load(LAST + CHANNELS + c)
    scale = tl.load(CONSTANTS)
    value = tl.sum((activate(z, ACTIVATION) * w).to(tl.float64), 1) + tl.load(CONSTANTS + 1)
    opening = tl.sum((activate(gate, ACTIVATION) * w_gate).to(tl.float64), 1) + tl.load(CONSTANTS + 2)
    open_share = sigmoid(opening)
    reference = tl.load(REFERENCES + tl.load(NUMBERS + row, mask=valid, other=0), mask=valid, other=0.0)
    tl.store(ENERGIES + row, value * open_share * scale + reference, mask=valid)
    if INPUTS is not None:
        to, share = INPUTS + row.to(tl.int64) * INPUT_WIDTH, open_share.to(tl.float32)
        inputs = activate(z, ACTIVATION) * share[:, None]
        tl.store(to[:, None] + c, inputs, mask=keep & (c < INPUT_WIDTH - 1))
        tl.store(to + INPUT_WIDTH - 1, share, mask=valid)
    if GRADIENT:
        of_value = (open_share * scale).to(tl.float32)[:, None]
        of_opening = (value * open_share * (1.0 - open_share) * scale).to(tl.float32)[:, None]
        tl.store(at, slope(z, ACTIVATION) * w * of_value, mask=keep)
        tl.store(at + CHANNELS, slope(gate, ACTIVATION) * w_gate * of_opening, mask=keep)
