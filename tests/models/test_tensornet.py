import numpy as np
import oracles
import pytest
import torch

from torchmdx import System, TensorNetConfig, evaluate


def assert_agrees_with_loops(potential, atoms, charge=None):
    system = System.from_ase(atoms, charge)
    result = evaluate(potential, system, forces=False)
    reference = oracles.TensorNet(potential)
    more = dict(cell=atoms.cell.array, pbc=atoms.pbc, charge=system.charge)
    wanted = reference.energy(atoms.positions, atoms.numbers, **more)
    assert np.ptp(reference.energies(atoms.positions, atoms.numbers, **more)) > 1e-3
    assert float(result.energy[0]) == pytest.approx(wanted, abs=1e-10)
    shared = float(potential.shift) / len(atoms)
    energies = reference.energies(atoms.positions, atoms.numbers, **more) + shared
    np.testing.assert_allclose(result.energies, energies, atol=1e-10)


SETTINGS = [
    dict(),
    dict(group="SO(3)"),
    dict(num_layers=0),
    dict(num_layers=1, radial_basis="gauss"),
    dict(num_layers=3, num_channels=4),
    dict(num_layers=1, radial_basis="bessel", num_radial=3),
    dict(head="gated", num_head_layers=1),
    dict(self_message=False),
    dict(readout_activation=False),
    dict(messages="target"),
    dict(messages="target", self_message=False, group="SO(3)", num_layers=3, num_channels=4),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", ["chiral", "wire"])
def test_energies_agree_with_explicit_matrices(make_potential, settings, name, request):
    assert_agrees_with_loops(make_potential(**settings), request.getfixturevalue(name))


def test_a_crystal_smaller_than_the_cutoff_agrees_with_explicit_matrices(make_potential, crystal):
    assert_agrees_with_loops(make_potential(num_channels=4, num_layers=1), crystal)


@pytest.mark.parametrize("activation", ["silu", "swish", "ssp", "tanh", "sigmoid", "mish"])
def test_every_activation_agrees_with_explicit_matrices(make_potential, activation, cation):
    assert_agrees_with_loops(make_potential(activation=activation, num_channels=4), cation)


@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
@pytest.mark.parametrize("charge", [-1.0, 2.0, 0.5])
def test_charged_molecules_agree_with_explicit_matrices(make_potential, group, charge, cation):
    assert_agrees_with_loops(make_potential(group=group, num_channels=4), cation, charge)


def test_without_the_factor_the_total_charge_has_no_effect(make_potential, cation):
    assert_agrees_with_loops(make_potential(charge_factor=False, num_channels=4), cation, 2.0)


def test_a_charge_changes_the_energy(potential, ethanol):
    neutral, ion = (evaluate(potential, System.from_ase(ethanol, charge)) for charge in (0, 1))
    assert abs(float(neutral.energy[0] - ion.energy[0])) > 1e-4


@pytest.mark.parametrize("trainable", [True, False])
def test_weights_of_every_part_are_reachable_for_training(make_potential, ethanol, trainable):
    potential = make_potential(trainable_basis=trainable).requires_grad_(True)
    energy = evaluate(potential, System.from_ase(ethanol), create_graph=True).energy
    # The network's output sees a shared offset of all symmetric parts only through products: no parameter is idle.
    gradients = torch.autograd.grad(energy.sum(), list(potential.parameters()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(cutoff=0.0), "cutoff must be > 0 Å and finite, got 0.0"),
        (dict(cutoff=-1.0), "cutoff must be > 0 Å and finite, got -1.0"),
        (dict(cutoff=float("nan")), "cutoff must be > 0 Å and finite, got nan"),
        (dict(cutoff="5"), "cutoff must be a number of Å, got '5'"),
        (dict(cutoff=True), "cutoff must be a number of Å, got True"),
        (dict(num_channels=1), "num_channels must be a whole number >= 2, got 1"),
        (dict(num_channels=16.0), "num_channels must be a whole number >= 2, got 16.0"),
        (dict(num_layers=-1), "num_layers must be a whole number >= 0, got -1"),
        (dict(num_layers=True), "num_layers must be a whole number >= 0, got True"),
        (dict(num_radial=1), "num_radial must be a whole number >= 2, got 1"),
        (dict(max_z=0), "max_z must be a whole number >= 1, got 0"),
        (dict(max_z=119), "max_z must be <= 118, got 119"),
        (dict(trainable_basis="False"), "trainable_basis must be True or False, got 'False'"),
        (dict(radial_basis="sine"), "radial_basis must be one of expnorm, gauss, bessel, got 'sine'"),
        (dict(radial_basis="bessel", trainable_basis=True), "trainable_basis must be False for the basis bessel"),
        (dict(head="wide"), "head must be one of scalar, gated, got 'wide'"),
        (dict(messages="own"), "messages must be one of source, target, got 'own'"),
        (dict(self_message=1), "self_message must be True or False, got 1"),
        (dict(charge_factor=None), "charge_factor must be True or False, got None"),
        (dict(activation="relu"), "activation must be one of silu, .*, got 'relu'"),
        (dict(group="O3"), r"group must be one of O\(3\), SO\(3\), got 'O3'"),
    ],
)
def test_a_wrong_setting_is_refused_with_the_requirement_and_the_value(settings, message):
    with pytest.raises(ValueError, match=message):
        TensorNetConfig(**settings)


def test_settings_have_names():
    with pytest.raises(TypeError, match="positional"):
        TensorNetConfig(128)
