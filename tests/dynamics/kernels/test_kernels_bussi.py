"""The kernel of velocity rescaling against the formula for one structure, with the centre of mass at rest or held."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

from torchmdx.dynamics.kernels.bussi import rescale
from torchmdx.dynamics.random_numbers import THERMOSTAT, normals

KEPT, THERMAL = 0.7, 0.3


@needs_kernels
@pytest.mark.parametrize("held", [False, True])
def test_velocities_are_multiplied_by_alpha(held):
    count = 70  # more than one block
    random = np.random.default_rng(1)
    masses, before = random.uniform(1, 3, count), random.normal(size=(count, 3))
    counted = np.ones(count)
    counted[0] = 0.0 if held else 1.0
    given = (before.copy(), masses, counted, np.array([held / masses.sum()]), np.array([0, count]))
    given += (np.array([1 if held else 0]), np.array([11]), np.array([THERMAL]), np.array([1.0, 0.01, KEPT, 0.0]))
    tensors = [torch.as_tensor(value, device=DEVICE) for value in (*given, np.array([6, 0]))]
    rescale[(1,)](*tensors, BLOCK=32)
    noise = normals(np.full(count, 11), np.arange(count), np.full(count, 6), THERMOSTAT)[int(held) :].ravel()
    drift = masses @ before / masses.sum() if held else np.zeros(3)
    twice = (masses[:, None] * (before - drift) ** 2).sum()
    ratio = (1 - KEPT) * THERMAL / twice
    alpha = np.sqrt(KEPT + ratio * (noise**2).sum() + 2 * noise[0] * np.sqrt(KEPT * ratio))
    assert noise[0] * np.sqrt(ratio) + np.sqrt(KEPT) > 0
    np.testing.assert_allclose(tensors[0].cpu(), drift + alpha * (before - drift), rtol=1e-11, atol=1e-13)
