import numpy as np
import oracles
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from model_kinds import coulomb

from torchmdx import Batch, System, evaluate
from torchmdx.models.charge_equilibration import equilibrated
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.structures.units import COULOMB


def make(make_potential, **settings):
    return make_potential(model="tensornet2", **settings)


SETTINGS = [
    dict(),
    dict(group="SO(3)", charge_slack=0.3),
    dict(num_layers=0),
    dict(num_layers=1, radial_basis="gauss", num_charges=1),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["chiral", "wire", "cation"])
def test_energies_and_charges_agree_with_explicit_matrices(make_potential, settings, name, request):
    potential, atoms = make(make_potential, **settings), request.getfixturevalue(name)
    system = System.from_ase(atoms)
    result, reference = evaluate(potential, system, forces=False), oracles.TensorNet2(potential)
    wanted = reference.energies(atoms.positions, atoms.numbers, atoms.cell.array, atoms.pbc, system.charge)
    assert np.ptp(wanted) > 1e-3
    np.testing.assert_allclose(result.energies, wanted + float(potential.shift) / len(atoms), atol=1e-10)
    batch = Batch.of(system)
    edges = oracle_edges(batch, potential.cutoff)
    _, channels = potential.features(batch, edges, edges.vectors(batch.positions, batch.cell, batch.system_index))
    np.testing.assert_allclose(channels, np.concatenate(reference.charges, axis=1), atol=1e-10)
    assert np.abs(reference.charges[0]).max() > 0.01


def oracle_edges(batch, cutoff):
    from torchmdx.neighbors.brute_force import brute_force

    return brute_force(batch, cutoff)


@pytest.mark.parametrize("charge", [-2.0, 0.0, 1.0, 0.37])
def test_every_channel_of_every_layer_adds_up_to_the_charge(make_potential, ethanol, crystal, charge):
    potential = make(make_potential)
    batch = Batch.from_systems([System.from_ase(ethanol, charge), System.from_ase(crystal, -charge)])
    edges = oracle_edges(batch, potential.cutoff)
    _, channels = potential.features(batch, edges, edges.vectors(batch.positions, batch.cell, batch.system_index))
    assert channels.shape == (12, 9)
    sums = torch.zeros(2, 9, dtype=torch.float64).index_add(0, batch.system_index, channels)
    np.testing.assert_allclose(sums, np.outer([charge, -charge], np.ones(9)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("slack", [0.0, 1e-6, 0.5])
@pytest.mark.parametrize("priors", [[], [coulomb]], ids=["mean", "weighted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_charges_that_are_given_out_add_up(make_potential, slack, priors, dtype, ethanol, crystal, cation):
    potential = make(make_potential, charge_slack=slack, priors=priors, dtype=dtype)
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, crystal, cation)])
    charges = evaluate(potential, batch).charges
    sums = torch.zeros(3, dtype=torch.float64).index_add(0, batch.system_index, charges)
    np.testing.assert_allclose(sums, batch.charge, rtol=0, atol=1e-10)
    assert charges.abs().max() > 0.01
    assert not charges.requires_grad


def test_charges_given_out_are_those_that_the_coulomb_energy_weighs(make_potential, ethanol):
    plain = make(make_potential, num_layers=1)
    batch = Batch.of(System.from_ase(ethanol, 1))
    edges = oracle_edges(batch, plain.cutoff)
    _, channels = plain.features(batch, edges, edges.vectors(batch.positions, batch.cell, batch.system_index))
    np.testing.assert_allclose(evaluate(plain, batch).charges, channels[:, 3:].mean(1), atol=1e-12)
    weighted = plain.with_priors([CoulombConfig(weights=(3.0, 1.0))])
    wanted = 0.75 * channels[:, :3].mean(1) + 0.25 * channels[:, 3:].mean(1)
    np.testing.assert_allclose(evaluate(weighted, batch).charges, wanted, atol=1e-12)


def test_charges_are_moved_by_the_share_of_each_atom():
    batch = Batch.of(System.create(np.zeros((3, 3)), [1, 1, 1], charge=2.0))
    first = torch.tensor([[0.5], [0.1], [0.0]], dtype=torch.float64)
    spread = torch.tensor([[1.0], [-2.0], [0.0]], dtype=torch.float64)
    got = equilibrated(first, spread, batch, slack=0.0)
    np.testing.assert_allclose(got[:, 0], [0.5 + 1.4 / 5, 0.1 + 1.4 * 4 / 5, 0.0], atol=1e-10)
    slack = equilibrated(first, spread, batch, slack=5.0)
    np.testing.assert_allclose(slack[:, 0], [0.5 + 1.4 / 10, 0.1 + 1.4 * 4 / 10, 0.0], atol=1e-10)


def test_charges_without_any_share_are_moved_equally():
    batch = Batch.of(System.create(np.zeros((4, 3)), [1] * 4, charge=-1.0))
    nothing = torch.zeros(4, 1, dtype=torch.float64)
    np.testing.assert_allclose(equilibrated(nothing, nothing, batch, 0.0)[:, 0], [-0.25] * 4, atol=1e-12)


@pytest.mark.parametrize("priors", [[], [coulomb]], ids=["without", "with"])
@pytest.mark.parametrize("copies", [2, 3])
def test_energies_of_charged_fragments_far_apart_are_additive(make_potential, cation, priors, copies):
    """Apart from the Coulomb energy of their charges, which is exact where all pairs interact."""
    potential = make(make_potential, priors=priors)
    far = 1e5
    many = Atoms()
    for k in range(copies):
        moved = cation.copy()
        moved.translate([far * k, 0, 0])
        many += moved
    alone = evaluate(potential, System.from_ase(cation))
    together = evaluate(potential, System.from_ase(many, charge=copies))
    between = sum(COULOMB / (far * (i - j)) for i in range(copies) for j in range(i)) if priors else 0.0
    shift = float(potential.shift)
    wanted = copies * (float(alone.energy[0]) - shift) + shift + between
    assert float(together.energy[0]) == pytest.approx(wanted, abs=1e-8)
    np.testing.assert_allclose(together.charges, alone.charges.repeat(copies), atol=1e-9)
    # The others' field, up to 3e-4 V, moves charge within a fragment.
    tolerance = 1e-4 if priors else 1e-7
    np.testing.assert_allclose(together.forces, alone.forces.repeat(copies, 1), atol=tolerance)
    if priors:
        assert between > 1e-4


def test_slack_couples_fragments_far_apart_by_no_more_than_itself(make_potential, cation):
    potential = make(make_potential, charge_slack=1e-6)
    moved = cation.copy()
    moved.translate([1e4, 0, 0])
    alone, both = (evaluate(potential, System.from_ase(a, c)) for a, c in ((cation, 1), (cation + moved, 2)))
    error = float(both.energy[0] + potential.shift - 2 * alone.energy[0])
    assert 0 < abs(error) < 1e-4


def test_a_charge_changes_the_energy(make_potential, ethanol):
    potential = make(make_potential)
    neutral, ion = (evaluate(potential, System.from_ase(ethanol, charge)) for charge in (0, 1))
    assert abs(float(neutral.energy[0] - ion.energy[0])) > 1e-3


def test_the_order_of_target_and_source_matters(make_potential):
    """Charges of target and source stand in different columns of the filters."""
    potential = make(make_potential, num_layers=1)
    layer = potential.network.layers[0]
    system = System.from_ase(molecule("HCOOH"), -1)
    before = float(evaluate(potential, system).energy[0])
    weight = layer.filters[0].weight
    with torch.no_grad():
        weight[:, -6:-3], weight[:, -3:] = weight[:, -3:].clone(), weight[:, -6:-3].clone()
    assert abs(float(evaluate(potential, system).energy[0]) - before) > 1e-6


def test_weights_of_every_part_are_reachable_for_training(make_potential, ethanol):
    potential = make(make_potential, priors=[coulomb], trainable_basis=True).requires_grad_(True)
    energy = evaluate(potential, System.from_ase(ethanol, 1), create_graph=True).energy
    gradients = torch.autograd.grad(energy.sum(), list(potential.parameters()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_a_loss_on_charges_and_dipoles_reaches_the_weights(make_potential, cation):
    potential = make(make_potential).requires_grad_(True)
    result = evaluate(potential, System.from_ase(cation), create_graph=True)
    loss = (result.dipoles**2).sum() + (result.charges**2).sum()
    (gradient,) = torch.autograd.grad(loss, [potential.network.charges[-1].network[4].weight])
    assert gradient.abs().max() > 0


def test_dipoles_are_the_moments_of_the_charges(make_potential, ethanol, cation, crystal):
    potential = make(make_potential)
    batch = Batch.from_systems([System.from_ase(atoms) for atoms in (ethanol, cation, crystal)])
    result = evaluate(potential, batch)
    charges = result.charges.numpy()
    np.testing.assert_allclose(result.dipoles[0], charges[:9] @ ethanol.positions, atol=1e-10)
    centre = cation.numbers @ cation.positions / cation.numbers.sum()
    np.testing.assert_allclose(result.dipoles[1], charges[9:14] @ (cation.positions - centre), atol=1e-10)
    assert torch.isnan(result.dipoles[2]).all()


def test_dipoles_turn_with_the_structure_and_do_not_move_with_it(make_potential, cation):
    potential = make(make_potential)
    before = evaluate(potential, System.from_ase(cation))
    turn = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    cation.positions = cation.positions @ turn.T + [30.0, -7.0, 4.0]
    after = evaluate(potential, System.from_ase(cation))
    np.testing.assert_allclose(after.dipoles[0], turn @ before.dipoles[0].numpy(), atol=1e-10)
    np.testing.assert_allclose(after.charges, before.charges, atol=1e-10)


def test_a_tensornet_has_no_charges(potential, ethanol):
    result = evaluate(potential, System.from_ase(ethanol))
    assert result.charges is None
    assert result.dipoles is None
    assert not potential.predicts_charges


def test_no_atoms_have_no_energy_and_no_dipole(make_potential):
    result = evaluate(make(make_potential, priors=[coulomb]), System.create([], [], charge=1), stress=True)
    assert result.energy.tolist() == [0.0]
    assert result.dipoles.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(num_charges=0), "num_charges must be a whole number >= 1, got 0"),
        (dict(num_charges=2.0), "num_charges must be a whole number >= 1, got 2.0"),
        (dict(charge_slack=-1e-6), "charge_slack must be >= 0 and < 1, got -1e-06"),
        (dict(charge_slack="0"), "charge_slack must be >= 0 and < 1, got '0'"),
        (dict(num_channels=1), "num_channels must be a whole number >= 2, got 1"),
        (dict(num_head_layers=-1), "num_head_layers must be a whole number >= 0, got -1"),
        (dict(head="gated"), "head of a TensorNet2 must be 'scalar', got 'gated'"),
        (dict(messages="target"), "messages of a TensorNet2 must be 'source', got 'target'"),
        (dict(self_message=False), "self_message of a TensorNet2 must be True, got False"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_requirement_and_the_value(settings, message):
    with pytest.raises(ValueError, match=message):
        TensorNet2Config(**settings)
