"""Steps of springs as launches of a `DeviceState`: on a GPU, or under Triton's interpreter."""

from types import SimpleNamespace

import numpy as np
import torch
from interpreter import DEVICE
from oscillators import STIFFNESS, last, springs

from torchmdx.step.buffer_storage import NUM_FLAGS

SIZES = [140, 1, 30]  # more than one program, and blocks that are not full


def device_state(loop):
    from torchmdx.dynamics.device_state import DeviceState

    state, start = DeviceState(loop.motion, torch.device(DEVICE)), loop.snapshot()
    for name in ("positions", "velocities", "forces", "energy", "restraint_energy"):
        getattr(state, name).copy_(torch.as_tensor(getattr(start, name)))
    return state


def buffers_of(state):
    inputs = {"positions": torch.zeros_like(state.positions)}
    outputs = {
        "forces": torch.zeros_like(state.forces),
        "energy": torch.zeros_like(state.energy),
        "flags": torch.zeros(NUM_FLAGS, dtype=torch.int64, device=DEVICE),
    }
    return SimpleNamespace(inputs=inputs, outputs=outputs, doubts=None)


def take(state, buffers):
    """One step, with the energies and forces of the springs."""
    state.launch_advance(buffers)
    moved = buffers.inputs["positions"]
    buffers.outputs["forces"].copy_(-STIFFNESS * moved)
    buffers.outputs["energy"].zero_().index_add_(0, state.system, 0.5 * STIFFNESS * (moved**2).sum(-1))
    state.launch_complete(buffers)


def require_same_on_device(integrator):
    """That steps on the device are those of the loop in NumPy, also with frozen atoms."""
    frozen = np.zeros(sum(SIZES), dtype=bool)
    frozen[[3, 150]] = True
    loop = springs(integrator, 2.0, SIZES, frozen=frozen, seed=2**40)
    state = device_state(loop)
    buffers = buffers_of(state)
    for _ in range(7):
        take(state, buffers)
    expected = last(loop, 7)
    assert state.control.tolist() == [7, 0]
    for name in ("positions", "velocities", "forces", "energy"):
        found = getattr(state, name).cpu().numpy()
        np.testing.assert_allclose(found, getattr(expected, name), rtol=1e-11, atol=1e-13)
    assert (state.velocities[torch.as_tensor(frozen)] == 0).all()
