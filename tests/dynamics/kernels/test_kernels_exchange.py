"""The kernels' logarithms against NumPy's, bit for bit: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from torchmdx.dynamics.kernels.exchange import log_uniform  # noqa: E402
from torchmdx.dynamics.random_numbers import log_uniform as expected_log_uniform  # noqa: E402


@triton.jit
def fill(OUT, WORDS, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(OUT + i, log_uniform(tl.load(WORDS + i).to(tl.uint32)))


@needs_kernels
def test_logarithms_are_those_of_numpy():
    words = np.random.default_rng(0).integers(0, 2**32, 4096)
    words[:4] = 0, 1, 2**31, 2**32 - 1
    out = torch.zeros(len(words), dtype=torch.float64, device=DEVICE)
    given = torch.as_tensor(words, device=DEVICE)
    fill[(len(words) // 512,)](out, given, BLOCK=512, enable_fp_fusion=False)
    np.testing.assert_array_equal(out.cpu().numpy(), expected_log_uniform(words.astype(np.uint64)))
