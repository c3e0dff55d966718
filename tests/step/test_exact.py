"""Exact results: of whole batches in blocks, and of a few atoms from their environments alone."""

from functools import partial

import numpy as np
import pytest
import torch
from ase.build import bulk

from torchmdx import Batch, Ensemble, System, evaluate
from torchmdx.evaluation import blocks
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.d2 import D2Config
from torchmdx.models.priors.d3 import D3Config
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.step import exact
from torchmdx.step.exact import exact_results, local_results, whole_only
from torchmdx.structures.domain import Domain

PRIORS = {
    "none": (),
    "short": (ZBLConfig, partial(D2Config, cutoff=4.5, c6=(0.5,) * 20, radii=(1.2,) * 20)),
    "given charges": (partial(CoulombConfig, charges="given", cutoff=5.0, cut_in_vacuum=True),),
    "many-body": (partial(D3Config, functional="pbe", cutoff=4.5),),
}


@pytest.fixture
def salt():
    """An oblique crystal of 48 atoms, smaller than an environment, with vacancies and a charge."""
    atoms = bulk("NaCl", "rocksalt", 5.0) * (3, 3, 3)
    del atoms[[3, 11, 20, 21, 40, 50]]
    atoms.rattle(0.15, seed=1)
    atoms.info["charge"] = 1.0
    return atoms


@pytest.mark.nightly_for("tensornet", "qet")
@pytest.mark.parametrize("model", ["tensornet", "tensornet2", "qet"])
def test_the_exact_model_is_evaluated_in_blocks(make_potential, ethanol, cation, model, monkeypatch):
    potentials = [make_potential(model=model), make_potential(model=model, seed=1)]
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, cation)])
    wanted = evaluate(Ensemble(potentials).double(), batch.to(dtype=torch.float64), stress=True)
    counted, plain = [], blocks.embed
    monkeypatch.setattr(blocks, "embed", lambda *given: counted.append(len(given[1].blocks)) or plain(*given))
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1.0)
    found = exact_results(Ensemble(potentials), batch, stress=True)
    assert counted == [batch.num_atoms] * 2
    assert set(found) == {"energy", "energies", "forces", "stress", "energy_spread", "force_spread"}
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(wanted, name), atol=1e-9, rtol=1e-10, equal_nan=True)


def test_large_structures_are_searched_otherwise_with_the_same_results(make_potential, salt, monkeypatch):
    potential, batch = make_potential(), Batch.of(System.from_ase(salt))
    wanted = exact_results(potential, batch, stress=True)
    searched, plain = [], exact.search_explicitly
    monkeypatch.setattr(exact, "search_explicitly", lambda *given: searched.append(given) or plain(*given))
    monkeypatch.setattr(exact, "FEW_ATOMS", 10)
    for name, value in exact_results(potential, batch, stress=True).items():
        torch.testing.assert_close(value, wanted[name], atol=1e-10, rtol=1e-10)
    assert len(searched) == 1


@pytest.mark.parametrize("pbc", [True, False, (True, True, False)], ids=["crystal", "cluster", "slab"])
@pytest.mark.parametrize("priors", PRIORS)
def test_energies_and_forces_of_environments_are_those_of_the_structure(make_potential, salt, pbc, priors, device):
    salt.pbc = pbc
    if priors == "many-body":
        pytest.importorskip("torch_dftd")
    potential, first = make_potential(num_layers=1, cutoff=3.5, priors=PRIORS[priors]), bulk("Si")
    if priors == "given charges":
        for number, atoms in enumerate((first, salt)):
            atoms.set_initial_charges(np.random.default_rng(number).normal(0, 0.3, len(atoms)))
            atoms.info.setdefault("charge", 0)
    batch = Batch.of([System.from_ase(first), System.from_ase(salt)])
    wanted, atom = evaluate(potential, batch), batch.num_atoms - 11
    found = local_results(potential.to(device), batch.to(device), atom)
    atoms, forces = found.atoms.cpu(), found.results["forces"].cpu()
    assert int(atoms[0]) == atom
    assert len(atoms) > 8 or priors != "none"
    torch.testing.assert_close(found.results["energies"].cpu(), wanted.energies[atoms], atol=1e-9, rtol=0)
    torch.testing.assert_close(forces, wanted.forces[atoms[: len(forces)]], atol=1e-9, rtol=0)
    potential.to("cpu")


def test_a_force_needs_more_than_the_reach_of_an_energy(make_potential, salt):
    """A cluster of L+1 cutoffs has the energy of its central atom right, but not the force on it."""
    potential = make_potential(num_layers=1, cutoff=3.5)
    salt = salt.repeat(3)
    salt.pbc = False
    centre = int(np.linalg.norm(salt.positions - salt.positions.mean(0), axis=1).argmin())
    wanted = evaluate(potential, System.from_ase(salt))
    near = np.linalg.norm(salt.positions - salt.positions[centre], axis=1) <= 2 * 3.5
    found, place = evaluate(potential, System.from_ase(salt[near])), int(near[:centre].sum())
    shift = float(potential.shift) * (1 / near.sum() - 1 / len(salt))
    assert abs(float(found.energies[place] - wanted.energies[centre]) - shift) < 1e-9
    error = (found.forces[place] - wanted.forces[centre]).norm() / wanted.forces[centre].norm()
    assert error > 1e-3  # of which float32 may have a tenth
    local = local_results(potential, Batch.of(System.from_ase(salt)), centre)
    torch.testing.assert_close(local.results["forces"][0], wanted.forces[centre], atol=1e-9, rtol=0)


def test_an_ensemble_has_the_environments_of_its_members(make_potential, salt):
    """Members with other numbers of layers depend on other atoms."""
    members = [make_potential(num_layers=layers, cutoff=3.2, seed=layers) for layers in (0, 2)]
    for member in members:
        member.reference_energies.copy_(members[0].reference_energies)
    wanted = evaluate(Ensemble(members), System.from_ase(salt))
    found = local_results(Ensemble(members), Batch.of(System.from_ase(salt)), 5)
    drawn = found.atoms[: len(found.results["forces"])]
    torch.testing.assert_close(found.results["forces"], wanted.forces[drawn], atol=1e-9, rtol=0)
    torch.testing.assert_close(found.results["force_spread"], wanted.force_spread[drawn], atol=1e-9, rtol=0)
    torch.testing.assert_close(found.results["energies"], wanted.energies[found.atoms], atol=1e-9, rtol=0)


def test_in_a_domain_the_energies_of_owned_atoms_count(make_potential, salt):
    potential, count = make_potential(num_layers=1, cutoff=3.5), len(salt)
    salt.pbc = (True, False, False)
    hops = (torch.arange(count) >= 20).int() + (torch.arange(count) >= 40).int()
    given = vars(Batch.of(System.from_ase(salt)))
    domain = Domain(**given, hops=hops, within=torch.tensor([20, 40, count], dtype=torch.int32))
    wanted = evaluate(potential, domain)
    for atom in (2, 30):
        found = local_results(potential, domain, atom)
        drawn = found.atoms[: len(found.results["forces"])]
        torch.testing.assert_close(found.results["forces"], wanted.forces[drawn], atol=1e-9, rtol=0)
        torch.testing.assert_close(found.results["energies"], wanted.energies[found.atoms], atol=1e-9, rtol=0)


def test_atoms_without_neighbours(make_potential):
    potential, alone = make_potential(), System.create([[0.0, 0, 0], [50.0, 0, 0]], [1, 8])
    found = local_results(potential, Batch.of(alone), 1)
    assert not found.results["forces"].any()
    torch.testing.assert_close(found.results["energies"], evaluate(potential, alone).energies[1:], atol=1e-12, rtol=0)


def test_some_potentials_know_only_the_whole_structure(make_potential):
    assert whole_only(make_potential(priors=PRIORS["short"]), periodic=False) is None
    assert whole_only(make_potential(priors=PRIORS["given charges"]), periodic=False) is None
    given = make_potential(priors=[partial(CoulombConfig, charges="given")])
    assert whole_only(given, periodic=True) is None
    assert whole_only(given, periodic=False) == "the prior coulomb may depend on atoms at any distance"
    both = Ensemble([make_potential(seed=seed, model="tensornet2") for seed in (0, 1)])
    assert whole_only(both, periodic=True) == "its charges depend on all atoms of a system"
    other = make_potential()
    other = other.with_network(blocks.BlockedTensorNet(other.network))
    assert whole_only(other, periodic=True) == "what an atom depends on is not known of a BlockedTensorNet"
