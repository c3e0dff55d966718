"""The kernels' random numbers against NumPy: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from torchmdx.dynamics.kernels.motion import normals  # noqa: E402
from torchmdx.dynamics.random_numbers import THERMOSTAT  # noqa: E402
from torchmdx.dynamics.random_numbers import normals as expected_normals  # noqa: E402


@triton.jit
def fill(OUT, SEEDS, ATOMS, STEP, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    z0, z1, z2 = normals(tl.load(SEEDS + i), tl.load(ATOMS + i), tl.load(STEP))
    tl.store(OUT + 3 * i, z0)
    tl.store(OUT + 3 * i + 1, z1)
    tl.store(OUT + 3 * i + 2, z2)


@needs_kernels
@pytest.mark.parametrize("step", [0, 5, 2**32 - 1, 2**32 + 3, 2**40])
def test_numbers_are_those_of_numpy(step):
    count = 64
    rng = np.random.default_rng(0)
    seeds, atoms = rng.integers(0, 2**62, count), rng.integers(0, 2**31, count)
    seeds[:3] = 0, 2**32 - 1, 2**32
    out = torch.zeros(count, 3, dtype=torch.float64, device=DEVICE)
    given = (torch.as_tensor(values, device=DEVICE) for values in (seeds, atoms, np.array([step])))
    fill[(1,)](out, *given, BLOCK=count)
    expected = expected_normals(seeds, atoms, np.full(count, step), THERMOSTAT)
    np.testing.assert_allclose(out.cpu().numpy(), expected, rtol=1e-12, atol=1e-12)
