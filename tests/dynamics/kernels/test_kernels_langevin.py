"""The trial step of Langevin dynamics against its equations, written out here for single atoms."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

pytest.importorskip("triton")

from torchmdx.dynamics.kernels.langevin import advance_langevin
from torchmdx.dynamics.random_numbers import THERMOSTAT, normals

TIMESTEP, HALF_KICK, KEPT = 2.0, 0.01, 0.9


@needs_kernels
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("halted", [0, 1])
def test_a_trial_step(scaled, halted):
    random = np.random.default_rng(0)
    x, v, f = random.normal(size=(3, 5, 3))
    inverse, system, place = np.array([1.0, 0.5, 0.0, 0.25, 1.0]), np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 1])
    seeds, thermal, scale = np.array([7, 9]), np.array([0.02, 0.05]), np.array([1.1, 0.9])
    lost = np.sqrt(1 - KEPT**2)
    given = (x, v, f, np.zeros_like(x), np.zeros_like(x), inverse, system, place, seeds, thermal)
    constants = np.array([TIMESTEP, HALF_KICK, KEPT, lost])
    tensors = [torch.as_tensor(value, device=DEVICE) for value in (*given, constants, scale, np.array([4, halted]))]
    advance_langevin[(1,)](*tensors, 5, SCALED=scaled, BLOCK=8)
    moved, faster = (tensors[k].cpu().numpy() for k in (3, 4))
    if halted:
        assert not moved.any()
        assert not faster.any()
        return
    noise = normals(seeds[system], place, np.full(5, 5), THERMOSTAT)
    for k in range(5):
        kicked = v[k] + HALF_KICK * inverse[k] * f[k]
        thermalized = KEPT * kicked + lost * np.sqrt(thermal[system[k]] * inverse[k]) * noise[k]
        length = scale[system[k]] if scaled else 1.0
        np.testing.assert_allclose(moved[k], length * (x[k] + TIMESTEP / 2 * (kicked + thermalized)), rtol=1e-11)
        np.testing.assert_allclose(faster[k], thermalized / length, rtol=1e-11)
