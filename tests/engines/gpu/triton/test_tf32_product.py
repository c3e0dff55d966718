"""What tensor cores cut off of their sums, in a model of them."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import tf32_product
from torchmdx.engines.gpu.triton.tf32_product import restored


@triton.jit
def restore_ones(OUT, STEPS: tl.constexpr):
    k = tl.arange(0, 16)
    tl.store(OUT + k, restored(tl.full((16,), 1.0, tl.float32), STEPS))


def towards_zero(x):
    """float64 to float32."""
    rounded = x.astype(np.float32)
    beyond = np.abs(rounded.astype(np.float64)) > np.abs(x)
    return np.where(beyond, np.nextafter(rounded, np.float32(0)), rounded)


@needs_kernels
@pytest.mark.parametrize(("steps", "inner"), [(2, 8), (4, 8), (4, 16), (8, 16)])
def test_what_steps_cut_off_is_made_up_for(monkeypatch, steps, inner):
    monkeypatch.setattr(tf32_product, "CUTS_OFF", tl.constexpr(1))  # as on a GPU
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(count, steps * inner)).astype(np.float32).astype(np.float64) for count in (400, 64))
    total = np.zeros((400, 64), np.float32)
    for k in range(0, steps * inner, inner):
        total = towards_zero(total + x[:, k : k + inner] @ w[:, k : k + inner].T)
    exact = x @ w.T
    lost = 1 - (total * exact).sum() / (exact**2).sum()
    out = torch.zeros(16, device=DEVICE)
    restore_ones[(1,)](out, STEPS=steps)
    given_back = float(out[0].double()) - 1
    assert lost > 5e-8
    assert abs(given_back - lost) < 6e-8  # half of the last bit
