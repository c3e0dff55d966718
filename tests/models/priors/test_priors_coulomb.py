"""Coulomb energies, compared with loops over the textbook formulas."""

import itertools
import math

import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from prior_formulas import given_charges, only, summed

from torchmdx import Batch, Potential, System, TensorNetConfig, evaluate
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.structures.units import COULOMB


def damping(r, length=4.6):
    return 1 - math.exp(1 - 1 / (1 - (r / length) ** 2)) if r < length else 1.0


def reaction_field(r, cutoff, epsilon):
    k = (epsilon - 1) / (2 * epsilon + 1) / cutoff**3
    c = 3 * epsilon / (2 * epsilon + 1) / cutoff
    return 1 / r + k * r**2 - c


@pytest.fixture
def charged(make_potential):
    """A TensorNet2 of one layer with 3 charges a layer, its Coulomb prior alone left of its energy."""

    def make(**settings):
        potential = make_potential(model="tensornet2", num_layers=1, priors=[lambda: CoulombConfig(**settings)])
        for constant in (potential.scale, potential.shift, potential.reference_energies):
            constant.zero_()
        return potential

    return make


def products(potential, atoms, weights) -> np.ndarray:
    """Σ w q_i q_j / Σ w [N,N] of the charges that the oracle predicts."""
    reference = oracles.TensorNet2(potential)
    reference.energies(atoms.positions, atoms.numbers, atoms.cell.array, atoms.pbc, atoms.info.get("charge", 0))
    embedded, layer = reference.charges
    weights = np.repeat(weights, 3) if len(weights) == 2 else np.array(weights)
    charges = np.concatenate([embedded, layer], axis=1)
    return (charges * weights / weights.sum()) @ charges.T


@pytest.mark.parametrize("weights", [(1.0, 1.0), (0.0, 2.0), (1.0, 0.5, 0.0, 2.0, 1.0, 0.25)], ids=str)
@pytest.mark.parametrize("name", ["ethanol", "cation"])
def test_coulomb_in_vacuum_is_the_sum_over_all_pairs(charged, weights, name, request):
    atoms = request.getfixturevalue(name)
    atoms.positions *= 3  # pairs beyond every cutoff
    potential = charged(weights=weights, cutoff=3.0)
    q = products(potential, atoms, weights)
    wanted = np.zeros(len(atoms))
    for i, j in itertools.permutations(range(len(atoms)), 2):
        r = math.dist(atoms.positions[i], atoms.positions[j])
        wanted[i] += 0.5 * COULOMB * damping(r) * q[i, j] / r
    result = evaluate(potential, System.from_ase(atoms))
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(result.energies, wanted, atol=1e-11)


@pytest.mark.parametrize("name", ["crystal", "slab", "wire"])
@pytest.mark.parametrize("cut_in_vacuum", [True, False])
@pytest.mark.parametrize("epsilon", [78.3, 2.0])
def test_coulomb_under_periodic_boundaries_has_a_reaction_field(charged, name, cut_in_vacuum, epsilon, request):
    atoms = request.getfixturevalue(name)
    potential = charged(cutoff=5.5, cut_in_vacuum=cut_in_vacuum, dielectric=epsilon, damping=3.0)
    q = products(potential, atoms, (1.0, 1.0))

    def energy(i, j, r):
        return COULOMB * damping(r, 3.0) * q[i, j] * reaction_field(r, 5.5, epsilon)

    result = evaluate(potential, System.from_ase(atoms))
    np.testing.assert_allclose(result.energies, summed(atoms, 5.5, energy), atol=1e-10)


def test_coulomb_is_cut_in_vacuum_where_that_is_asked(charged, ethanol):
    ethanol.positions *= 3
    potential = charged(cutoff=6.0, cut_in_vacuum=True)
    q = products(potential, ethanol, (1.0, 1.0))

    def energy(i, j, r):
        return COULOMB * damping(r) * q[i, j] * reaction_field(r, 6.0, 78.3)

    result = evaluate(potential, System.from_ase(ethanol))
    wanted = summed(ethanol, 6.0, energy)
    assert np.abs(wanted).max() > 1e-5
    np.testing.assert_allclose(result.energies, wanted, atol=1e-11)


def test_coulomb_of_a_mixed_batch_is_that_of_each_system(charged, ethanol, cation, crystal, wire):
    ethanol.positions *= 3
    potential = charged(cutoff=5.0)
    systems = [System.from_ase(atoms) for atoms in (ethanol, crystal, cation, ethanol[:1], wire, cation)]
    together = evaluate(potential, Batch.from_systems(systems), stress=True)
    alone = [evaluate(potential, system, stress=True) for system in systems]
    for name in ("energies", "forces", "stress", "charges"):
        joined = torch.cat([getattr(result, name) for result in alone])
        np.testing.assert_allclose(getattr(together, name), joined, rtol=0, atol=1e-11)


def test_coulomb_of_given_charges_switched_on_along_a_cosine(ethanol):
    q = np.linspace(-0.7, 0.5, 9)
    potential = only(CoulombConfig(charges="given", switch=(1.5, 2.5), strength=3.0))
    wanted = np.zeros(9)
    for i, j in itertools.permutations(range(9), 2):
        r = math.dist(ethanol.positions[i], ethanol.positions[j])
        phase = min(max(r - 1.5, 0.0), 1.0)
        wanted[i] += 0.5 * 3.0 * (0.5 - 0.5 * math.cos(math.pi * phase)) * q[i] * q[j] / r
    result = evaluate(potential, given_charges(ethanol, q))
    np.testing.assert_allclose(result.energies, wanted, atol=1e-12)
    assert result.charges is None


def test_given_charges_must_be_given(ethanol):
    potential = only(CoulombConfig(charges="given"))
    with pytest.raises(ValueError, match="structures need partial_charges, which ASE calls initial charges"):
        evaluate(potential, System.from_ase(ethanol))


def test_two_opposite_charges_far_apart_attract_by_coulombs_law():
    atoms = Atoms("NaCl", [[0, 0, 0], [0, 0, 20.0]])
    result = evaluate(only(CoulombConfig(charges="given")), given_charges(atoms, [1.0, -1.0]))
    assert float(result.energy[0]) == pytest.approx(-14.3996454784 / 20, rel=1e-9)
    assert float(result.forces[0, 2]) == pytest.approx(14.3996454784 / 400, rel=1e-9)


def test_pairs_that_no_list_holds_need_positions(charged, ethanol):
    potential = charged()
    batch = Batch.of(System.from_ase(ethanol))
    edges = brute_force(batch, potential.cutoff)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)
    with pytest.raises(ValueError, match="coulomb sums over all pairs of atoms and needs positions, got None"):
        potential(batch, edges, vectors)
    energy, _ = potential(batch, edges, vectors, batch.positions)
    assert torch.equal(energy, evaluate(potential, batch, edges).energy)


def test_a_coulomb_energy_needs_charges():
    with pytest.raises(ValueError, match="the prior coulomb needs a model that predicts charges: tensornet2"):
        Potential(TensorNetConfig(num_channels=2), [CoulombConfig()])
    config = TensorNet2Config(num_channels=2, num_layers=1, num_charges=2)
    with pytest.raises(ValueError, match=r"weights of the prior coulomb must be 2 .* or 4 .*, got 3"):
        Potential(config, [CoulombConfig(weights=(1, 2, 3))])
