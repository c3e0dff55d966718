"""The total energy of `Dynamics` in the microcanonical ensemble does not drift, with a trained potential in float32."""

import copy

import numpy as np
import pytest
import torch
from ase.build import molecule
from interpreter import DEVICE

import torchmdx
from torchmdx import Dynamics, System

BLOCKS = 10
TIMESTEP, SPACING, NUM_STEPS = 0.5, 4, 8000  # fs, steps, steps


@pytest.mark.nightly
@pytest.mark.parametrize(("inner", "most"), [(1, 2e-5), (4, 1e-5)])
def test_total_energy_does_not_drift(inner, most):
    """Within 4.5 standard errors, and below a limit in eV/atom/ps, with outer steps of 2 fs too.

    The error is that of a line through means over blocks, which are longer than any vibration. The fast potential is
    0.97 of the full one, so that it is wrong by 3% in the stiffness of every vibration.
    """
    system = System.from_ase(molecule("CH3CH2OH"))
    potential = torchmdx.load(dtype=torch.float32, device=DEVICE)
    further = {}
    if inner > 1:
        fast = copy.deepcopy(potential)
        fast.scale.mul_(0.97)
        further = dict(fast=fast, inner=inner)
    options = dict(integrator="verlet", timestep=TIMESTEP, temperature=600, seed=1, **further)
    dynamics = Dynamics(potential, system, **options)
    dynamics.run(400)
    totals = [state.energy[0] + state.kinetic_energy[0] for state in dynamics.snapshots(NUM_STEPS, every=SPACING)]
    means = np.reshape(totals, (BLOCKS, -1)).mean(1) / system.num_atoms
    times = (np.arange(BLOCKS) + 0.5) * NUM_STEPS / BLOCKS * TIMESTEP * 1e-3
    (slope, _), covariance = np.polyfit(times, means, 1, cov=True)
    assert abs(slope) < 4.5 * covariance[0, 0] ** 0.5
    assert abs(slope) < most
