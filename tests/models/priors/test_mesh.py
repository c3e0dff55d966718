"""Particle mesh Ewald against Ewald sums, published constants and its own derivatives."""

import math

import lattice_sums
import numpy as np
import pytest
import torch
from test_reciprocal import SLAB, assert_stress_is_the_derivative, ions, only, supercell

from torchmdx import Batch, System, evaluate
from torchmdx.models.priors import splitting as splittings
from torchmdx.models.priors.ewald import KVectors
from torchmdx.models.priors.mesh import Mesh, polynomials, relative_error, spline_slopes, splines, wave_amplitudes
from torchmdx.models.priors.reciprocal import reciprocal_energies
from torchmdx.models.priors.splitting import Splitting
from torchmdx.structures.units import COULOMB


def meshed(**settings):
    return only(**{"periodic": "pme", "accuracy": 1e-6, **settings})


def of(spline, u):
    """M_p(u) by its sum over truncated powers."""
    p = spline
    terms = ((-1) ** k * math.comb(p, k) * max(u - k, 0.0) ** (p - 1) for k in range(p + 1))
    return sum(terms) / math.factorial(p - 1)


@pytest.mark.parametrize("order", [4, 7, 8])
def test_splines(order):
    w = torch.tensor([0.0, 0.25, 0.9], dtype=torch.float64)
    wanted = [[of(order, float(each) + d) for d in range(order)] for each in w]
    found, slopes = splines(order, w), spline_slopes(order, w)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(slopes, (splines(order, w + 1e-6) - splines(order, w - 1e-6)) / 2e-6, atol=1e-8)
    powers = w[:, None] ** torch.arange(order)
    np.testing.assert_allclose(powers @ polynomials(order)[0].T, found, rtol=0, atol=1e-12)
    np.testing.assert_allclose(powers @ polynomials(order)[1].T, slopes, rtol=0, atol=1e-12)
    # At whole numbers they add up to the wave whose amplitude they are multiplied by.
    waves = np.abs(np.fft.fft(splines(order, w[:1])[0].numpy(), 24)) ** -2
    waves[12] = 0.0
    np.testing.assert_allclose(wave_amplitudes(order, 24, w.device), waves, rtol=1e-10)


@pytest.mark.parametrize(("accuracy", "cutoff"), [(1e-3, 9.0), (1e-5, 6.0), (1e-5, 9.0), (1e-7, 9.0)])
def test_forces_are_as_accurate_as_requested(accuracy, cutoff):
    system = ions(pairs=13, size=11.0)
    exact = evaluate(only(), system, stress=True)
    found = evaluate(meshed(accuracy=accuracy, cutoff=cutoff), system, stress=True)
    error = (found.forces - exact.forces).norm() / exact.forces.norm()
    assert accuracy / 100 < error < accuracy
    assert (found.stress - exact.stress).norm() < 3 * accuracy * exact.stress.norm()


def test_a_slab_is_its_ewald_sum():
    system = ions(pbc=SLAB)
    exact, found = (evaluate(potential, system) for potential in (only(), meshed()))
    assert (found.forces - exact.forces).norm() < 1e-6 * exact.forces.norm()
    assert float(found.energy) == pytest.approx(float(exact.energy), rel=1e-6)


def test_a_finer_grid_and_a_higher_order_are_more_accurate():
    errors = [relative_error(order, 0.7, 0.38) for order in (4, 5, 6, 7, 8)]
    assert errors == sorted(errors, reverse=True)
    assert relative_error(6, 0.5, 0.38) < relative_error(6, 0.7, 0.38) / 5
    # Without aliases the largest wave decides, as Kolafa and Perram estimate it for all directions.
    last = math.pi / 1.1
    beyond = 2 * math.sqrt(2) * 0.38 / math.sqrt(last) * math.exp(-((last / 0.76) ** 2)) * 0.1 ** (-1 / 6)
    assert 0.1 * beyond < relative_error(200, 1.1, 0.38) < beyond


def test_numbers_of_points_are_quick_to_transform():
    mesh = Mesh(5, 0.7)
    cells = torch.tensor([[[11.0, 0, 0], [0, 20.0, 0], [0, 0, 33.0]], [[5.0, 0, 0], [0, 5, 0], [0, 0, 40.0]]])
    assert mesh.shape(cells) == (16, 32, 60)
    assert mesh.shape(cells[1:, :, :] / 100) == (12, 12, 12)


def test_a_charged_cell_has_a_uniform_background():
    system = System.create([[0.3, 0.1, 0.2]], [11], 7.0 * np.eye(3), True, partial_charges=[2.0])
    wanted = -COULOMB * 4 * lattice_sums.WIGNER / (2 * 7.0)
    assert float(evaluate(meshed(), system).energy[0]) == pytest.approx(wanted, rel=1e-6)


def test_energies_do_not_depend_on_the_splitting():
    results = [evaluate(meshed(accuracy=1e-9, cutoff=cutoff), ions(size=7.0)) for cutoff in (6.0, 9.0)]
    assert float(results[0].energy) == pytest.approx(float(results[1].energy), rel=1e-8)
    assert (results[0].forces - results[1].forces).norm() < 1e-8 * results[1].forces.norm()


def test_a_supercell_has_twice_the_energy():
    system = ions()
    doubled = supercell(system)
    one, two = evaluate(meshed(accuracy=1e-8), system), evaluate(meshed(accuracy=1e-8), doubled)
    assert float(two.energy[0]) == pytest.approx(2 * float(one.energy[0]), rel=1e-9)


def test_stress_is_the_derivative_of_the_energy():
    assert_stress_is_the_derivative(meshed(), ions(), 0.2)


@pytest.mark.nightly
def test_first_and_second_derivatives_in_positions_cell_and_charges():
    batch = Batch.from_systems([ions(pairs=1, size=6.0), ions(pairs=1, pbc=SLAB, size=6.0)])
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64)
    charges = torch.stack([batch.partial_charges, 0.5 * batch.partial_charges], -1)
    vectors = KVectors.of(batch, Splitting.of(1e-2, 4.0), charges, method="pme")
    assert vectors.mesh is not None

    def energies(positions, cell, q):
        return reciprocal_energies(vectors, batch, positions, cell, q, weights)

    inputs = [x.clone().requires_grad_() for x in (batch.positions, batch.cell, charges)]
    assert torch.autograd.gradcheck(energies, inputs, atol=1e-6)
    assert torch.autograd.gradgradcheck(energies, inputs, atol=1e-5)


def test_a_batch_of_different_cells_and_none_is_that_of_each_system():
    apart = System.create([[0, 0, 0], [0, 0, 14.0]], [11, 17], partial_charges=[0.6, -0.2])
    systems = [ions(), apart, ions(pairs=3, pbc=SLAB, seed=2), ions(pairs=2, seed=7, size=6.5)]
    potential = meshed()
    together = evaluate(potential, Batch.from_systems(systems), stress=True)
    alone = [evaluate(potential, system, stress=True) for system in systems]
    for name in ("energy", "forces", "stress"):
        joined = torch.cat([getattr(result, name) for result in alone])
        np.testing.assert_allclose(getattr(together, name), joined, rtol=0, atol=2e-5)


def test_the_faster_of_both_is_taken(monkeypatch):
    batch = Batch.of(ions(pairs=13, size=11.0))
    charges, splitting = batch.partial_charges[:, None], Splitting.of(1e-5, 9.0)

    def found(method):
        return KVectors.of(batch, splitting, charges, method=method)

    few = found("auto")
    work = few.count * batch.num_atoms
    assert few.mesh is None
    assert found("pme").mesh == Mesh.of(splitting)
    monkeypatch.setattr(splittings, "MOST_WORK", int(0.9 * work))
    assert found("auto").mesh is not None
    assert found("ewald").mesh is None
    monkeypatch.setattr(splittings, "MOST_WORK", int(1.2 * work))
    assert found("auto").mesh is None
    large = Batch.of(System.create([[0.0, 0, 0]], [11], 3000.0 * np.eye(3), True))
    with pytest.raises(ValueError, match=r"a box of at most 40,000,000 points, got [\d,]{10,} for"):
        KVectors.of(large, splitting, charges[:1], method="pme")
