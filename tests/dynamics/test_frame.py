"""The frame of a captured step survives a restart, since it decides the rounding of coordinates."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE

from torchmdx import Dynamics, System
from torchmdx.dynamics.frame import frame_of, set_frame
from torchmdx.step import captured_step


@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_a_restart_continues_to_the_bit_in_a_new_frame(make_potential, name, request, tmp_path, monkeypatch):
    device_loop = pytest.importorskip("torchmdx.dynamics.device_loop")
    for module in (captured_step, device_loop):
        monkeypatch.setattr(module, "REFRESH_EVERY", 6)
    potential = make_potential(dtype=torch.float32).to(DEVICE)
    atoms = request.getfixturevalue(name)
    atoms.positions += 1e4
    system = System.from_ase(atoms)
    velocities = np.full((len(atoms), 3), 0.05)  # all move as a whole, out of the cell

    def make():
        return Dynamics(potential, system, velocities=velocities, timestep=0.5)

    first = make()
    at_start = first.snapshot().frame
    before = first.run(32)
    assert any((before.frame[part] != at_start[part]).any() for part in ("images", "origin"))
    before.save(tmp_path / "a.npz")
    expected = first.run(20)
    again = make()
    again.restore(tmp_path / "a.npz")
    found = again.run(20)
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.velocities, expected.velocities)


def test_elements_follow_the_order(make_potential, ethanol):
    step = captured_step.CapturedStep(make_potential(), System.from_ase(ethanol))
    expected = step(ethanol.positions)
    frame = frame_of(step)
    frame["order"] = frame["order"][::-1].copy()
    set_frame(step, frame)
    np.testing.assert_allclose(step(ethanol.positions).forces, expected.forces, atol=1e-10)
    np.testing.assert_array_equal(step.ordered.atomic_numbers.numpy(), ethanol.numbers[::-1])
