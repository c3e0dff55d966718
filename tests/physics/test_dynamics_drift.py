"""The total energy of `Dynamics` in the microcanonical ensemble does not drift, with a trained potential in float32."""

import numpy as np
import pytest
import torch
from ase.build import molecule
from interpreter import DEVICE

import torchmdx
from torchmdx import Dynamics, System

BLOCKS = 10
TIMESTEP, SPACING, NUM_STEPS = 0.5, 4, 8000  # fs, steps, steps


def slopes(num_replicas, **further):
    """Of the energies per atom of ethanol at 600 K, eV/atom/ps, by lines through means over blocks."""
    system = System.from_ase(molecule("CH3CH2OH"))
    options = dict(integrator="verlet", timestep=TIMESTEP, temperature=600, seed=1, **further)
    dynamics = Dynamics(trained(), [system] * num_replicas, **options)
    dynamics.run(400)
    totals = [state.energy + state.kinetic_energy for state in dynamics.snapshots(NUM_STEPS, every=SPACING)]
    means = np.reshape(totals, (BLOCKS, -1, num_replicas)).mean(1) / system.num_atoms
    times = (np.arange(BLOCKS) + 0.5) * NUM_STEPS / BLOCKS * TIMESTEP * 1e-3
    return np.polyfit(times, means, 1)[0]


def trained():
    return torchmdx.load(dtype=torch.float32, device=DEVICE)


@pytest.mark.nightly
def test_total_energy_does_not_drift():
    assert np.abs(slopes(1)).max() < 2e-5


@pytest.mark.nightly
def test_total_energy_does_not_drift_with_outer_steps():
    """Of 2 fs, with a fast potential of 0.97 of the full one, which is wrong by 3 % in every stiffness.

    Slopes of replicas scatter by up to 1e-5 eV/atom/ps; their mean does not.
    """
    fast = trained()
    fast.scale.mul_(0.97)
    assert abs(slopes(4, fast=fast, inner=4).mean()) < 1e-5
