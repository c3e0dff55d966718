"""A TensorNet2 with an Ewald sum learns charges from energies and forces of ions, most beyond its cutoff."""

import lattice_sums
import numpy as np
import pytest
import torch

from torchmdx import Batch, Potential, System, TensorNet2Config, evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.structures.units import COULOMB

CHARGE, CELL, STEP = 0.8, np.array([[16.0, 0, 0], [2.0, 17.0, 0], [0, 0, 18.0]]), 1e-3


def places(distance):
    return np.array([[1.0, 2.0, 3.0], [1.0 + 0.6 * distance, 2.0, 3.0 + 0.8 * distance]])


def energy(x) -> float:
    q = np.array([CHARGE, -CHARGE])
    return 0.5 * COULOMB * q @ lattice_sums.bulk_potentials(x, CELL) @ q


def forces(x) -> np.ndarray:
    found = np.zeros((2, 3))
    for atom, axis in np.ndindex(2, 3):
        moved = [x.copy(), x.copy()]
        moved[0][atom, axis] += STEP
        moved[1][atom, axis] -= STEP
        found[atom, axis] = -(energy(moved[0]) - energy(moved[1])) / (2 * STEP)
    return found


def batch_of(distances) -> Batch:
    return Batch.from_systems([System.create(places(r), [11, 17], CELL, True) for r in distances])


@pytest.mark.nightly
@pytest.mark.slow
def test_charges_and_energies_of_ions_beyond_the_cutoff_are_learned():
    trained, others = (4.8, 6.0, 8.0), (5.4, 7.0, 9.0)
    energies = torch.tensor([energy(places(r)) for r in trained])
    wanted = torch.tensor(np.concatenate([forces(places(r)) for r in trained]))
    torch.manual_seed(0)
    config = TensorNet2Config(num_channels=8, num_layers=1, num_charges=1, cutoff=4.0, max_z=18)
    potential = Potential(config, [CoulombConfig(periodic="ewald", weights=(0.0, 1.0))]).double()
    optimizer = torch.optim.Adam(potential.parameters(), lr=0.02)
    for _ in range(150):
        found = evaluate(potential, batch_of(trained), create_graph=True)
        loss = (found.energy - energies).square().mean() + 10 * (found.forces - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = evaluate(potential.requires_grad_(False), batch_of(others))
    assert np.abs(np.abs(found.charges.numpy()) - CHARGE).max() < 2e-3
    np.testing.assert_allclose(found.energy, [energy(places(r)) for r in others], atol=2e-3)
    np.testing.assert_allclose(found.forces[:2], forces(places(others[0])), atol=2e-3)


@pytest.mark.nightly
def test_charges_of_a_gas_are_learned_from_openmm():
    pytest.importorskip("openmm")
    from benchmarks.learned_charges import SETUPS, prior, structures, train

    gas = SETUPS["gas"]
    data = structures(gas, seed=0)
    charges, error = train(gas, data, [prior(2.0)], steps=100, seed=0)
    assert charges[-20:].mean() == pytest.approx(CHARGE, abs=0.016)
    _, without = train(gas, data, [], steps=100, seed=0)
    assert error < 0.25 * without
