"""The kernels of the barostat against NumPy: on a GPU, and under Triton's interpreter."""

import numpy as np
import pytest
import torch
from interpreter import DEVICE, needs_kernels

from torchmdx.dynamics.barostat import CellRescaling, barostat_noise, volumes
from torchmdx.dynamics.particles import Particles
from torchmdx.structures.units import BAR, BOLTZMANN, FORCE_TO_ACCELERATION

pytest.importorskip("triton")

SIZES = [40, 3, 1]
COUNT, STEP = len(SIZES), 2**33 + 5
BAROSTAT = CellRescaling(pressure=500.0, relaxation=0.05, compressibility=1e-4)


def on_device(array):
    return torch.as_tensor(np.ascontiguousarray(array), device=DEVICE)


@pytest.fixture
def state():
    """Velocities, masses, seeds, temperatures, cells (one left-handed) and virials of three structures."""
    random = np.random.default_rng(3)
    cell = 6 * np.eye(3) + random.normal(0, 0.5, (COUNT, 3, 3))
    cell[1] = cell[1][::-1]
    return dict(
        velocities=0.02 * random.normal(size=(sum(SIZES), 3)),
        forces=random.normal(size=(sum(SIZES), 3)),
        masses=random.uniform(1, 20, sum(SIZES)),
        held=np.array([False, True, False]),
        seeds=np.array([2**40, 1, 2]),
        temperatures=np.array([100.0, 300.0, 700.0]),
        cell=cell,
        virial=random.normal(0, 0.1, COUNT),
    )


def particles_of(state):
    """Three structures, of which the second drifts."""
    system, place = np.repeat(np.arange(COUNT), SIZES), np.concatenate([np.arange(size) for size in SIZES])
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    return Particles(system, place, starts, state["masses"], np.ones(sum(SIZES), dtype=bool), state["held"])


def launched(state, barostat=BAROSTAT, halted=0, kick=0.0):
    """(ratio, scale, trial cell) of the kernel; zeros if it does nothing."""
    from torchmdx.dynamics.kernels.cell import rescale_cell

    starts = on_device(np.concatenate([[0], np.cumsum(SIZES)]))
    thermal = on_device(BOLTZMANN * FORCE_TO_ACCELERATION * state["temperatures"])
    constants = on_device(np.array([barostat.mobility(2.0), barostat.pressure * BAR, FORCE_TO_ACCELERATION, kick]))
    given = {name: on_device(values) for name, values in state.items()}
    held = on_device(particles_of(state).held_inverse_masses())
    moved = torch.zeros_like(given["cell"])
    ratio, scale = torch.zeros(2, COUNT, dtype=torch.float64, device=DEVICE)
    rescale_cell[(COUNT,)](
        given["velocities"], given["forces"], given["masses"], 1 / given["masses"], held, starts, given["seeds"],
        thermal, given["cell"], given["virial"], constants, moved, ratio, scale, on_device(np.array([STEP, halted])),
        BLOCK=32, num_warps=4,
    )  # fmt: skip
    return [values.cpu().numpy() for values in (ratio, scale, moved)]


@needs_kernels
@pytest.mark.parametrize("kick", [0.0, 0.01])
def test_scales_are_those_of_the_host(state, kick):
    particles = particles_of(state)
    moving = state["velocities"] + kick * state["forces"] / state["masses"][:, None]
    kinetic = particles.kinetic_virial(particles.kinetic_energy(moving), state["temperatures"])
    noise = barostat_noise(state["seeds"], STEP + 1)
    given = (volumes(state["cell"]), kinetic, state["virial"], state["temperatures"], noise)
    expected = BAROSTAT.scaling(2.0, *given)
    ratio, scale, moved = launched(state, kick=kick)
    assert (np.abs(expected - 1) > 1e-3).all()
    np.testing.assert_allclose(scale, expected, rtol=1e-12)
    np.testing.assert_allclose(ratio, expected**1.5, rtol=1e-12)
    np.testing.assert_allclose(moved, expected[:, None, None] * state["cell"], rtol=1e-12)
    assert not np.any([values.any() for values in launched(state, halted=1)])


@needs_kernels
def test_a_volume_that_jumps_gives_no_finite_scale(state):
    state["virial"][1] = 1e5
    ratio, scale, moved = launched(state)
    assert np.isfinite(scale).tolist() == [True, False, True]
    assert ratio[1] > 2**0.5
    np.testing.assert_array_equal(moved[1], state["cell"][1])


@needs_kernels
@pytest.mark.parametrize("halted", [0, 1])
def test_cells_and_virials_are_committed_unless_halted(state, halted):
    from torchmdx.dynamics.kernels.cell import commit_cell

    random = np.random.default_rng(4)
    stress, added = random.normal(size=(COUNT, 3, 3)), random.normal(size=COUNT)
    cell, virial = (torch.zeros(shape, dtype=torch.float64, device=DEVICE) for shape in ((COUNT, 3, 3), COUNT))
    commit_cell[(1,)](
        cell, virial, on_device(state["cell"]), on_device(stress), on_device(added),
        on_device(np.array([STEP, halted])), COUNT, BLOCK=128, num_warps=4,
    )  # fmt: skip
    expected = added - volumes(state["cell"]) * np.trace(stress, axis1=1, axis2=2)
    np.testing.assert_allclose(virial.cpu(), 0 * expected if halted else expected, rtol=1e-12)
    np.testing.assert_array_equal(cell.cpu(), 0 * state["cell"] if halted else state["cell"])
