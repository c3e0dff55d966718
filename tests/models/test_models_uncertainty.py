"""The uncertainty of a potential against the formula written out, with features by autograd; its checks and files."""

import copy
import json

import numpy as np
import pytest
import torch
from model_kinds import kinds
from safetensors.torch import load_file, safe_open, save_file
from uncertain import expected, features_by_autograd, last_layer_of, uncertain

import torchmdx
from torchmdx import Batch, Ensemble, Potential, System, evaluate
from torchmdx.checkpoints.save_load import load_one, with_uncertainty_in
from torchmdx.models.heads import MultiHead
from torchmdx.models.uncertainty import (
    Uncertainty,
    last_layer_inputs,
    last_layer_size,
    require_last_layer,
    with_uncertainty,
)

EYE = torch.eye(3, dtype=torch.float64)


@pytest.fixture
def batch(ethanol, cation):
    return Batch.from_systems([System.from_ase(ethanol), System.from_ase(cation)])


@pytest.mark.parametrize("kind", kinds("tensornet", "tensornet-gated", "qet", "tensornet2-SO(3)", "everything"))
def test_uncertainties_are_those_of_the_formula(kind, make_kind, batch):
    potential = uncertain(make_kind(kind))
    found = evaluate(potential, batch, forces=False)
    of_systems, of_atoms = expected(potential, batch)
    np.testing.assert_allclose(found.energy_uncertainty, of_systems, rtol=1e-9)
    np.testing.assert_allclose(found.energies_uncertainty, of_atoms, rtol=1e-9)
    np.testing.assert_allclose(found.last_inputs, features_by_autograd(potential, batch), rtol=1e-9, atol=1e-12)
    # Nothing else changes.
    plain = evaluate(make_kind(kind), batch)
    assert torch.equal(evaluate(potential, batch).forces, plain.forces)
    assert (plain.energy_uncertainty, plain.energies_uncertainty, plain.last_inputs) == (None, None, None)


@pytest.mark.nightly
def test_it_is_the_deviation_of_energies_with_drawn_last_layers(make_kind, batch):
    """Energies of potentials whose last layers are drawn from the Gaussian with covariance a² (C + r)⁻¹."""
    potential = uncertain(make_kind("tensornet"), factor=0.05)
    known, drawn = potential.uncertainty, copy.deepcopy(with_uncertainty(potential, None))
    cov = known.factor**2 * np.linalg.inv(known.covariance.numpy() + known.regulariser * np.eye(known.size))
    draws = torch.from_numpy(np.random.default_rng(0).multivariate_normal(np.zeros(known.size), cov, 400))
    weight, bias = last_layer_of(drawn)
    start, energies = weight.clone(), []
    for draw in draws / drawn.scale:
        weight.copy_(start + draw[:-1])
        bias.copy_(last_layer_of(potential)[1] + draw[-1])
        energies.append(evaluate(drawn, batch, forces=False).energy)
    spread = torch.stack(energies).std(0)
    found = evaluate(potential, batch, forces=False).energy_uncertainty
    np.testing.assert_allclose(spread, found, rtol=0.15)  # four deviations of 400 draws


def test_copies_of_a_structure_add_up_and_atoms_do_not(make_kind, ethanol):
    potential = uncertain(make_kind("tensornet"))
    far = ethanol.copy()
    far.translate([50, 0, 0])
    one, two = (evaluate(potential, System.from_ase(atoms), forces=False) for atoms in (ethanol, ethanol + far))
    torch.testing.assert_close(two.energy_uncertainty, 2 * one.energy_uncertainty)
    torch.testing.assert_close(two.energies_uncertainty, one.energies_uncertainty.repeat(2))


def test_training_forgets_it_and_copies_keep_it(make_kind):
    potential = uncertain(copy.deepcopy(make_kind("tensornet")))
    assert copy.deepcopy(potential).float().uncertainty.covariance.dtype == torch.float64
    assert potential.with_priors(()).uncertainty is potential.uncertainty
    assert potential.eval().uncertainty is not None
    potential.train()
    assert potential.uncertainty is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (dict(covariance=torch.zeros(2, 3, dtype=torch.float64)), r"must have shape \[D, D\], got \[2, 3\]"),
        (dict(covariance=EYE.float()), "must be of torch.float64, got torch.float32"),
        (dict(covariance=EYE * torch.nan), "must be finite, got NaN or infinity"),
        (dict(covariance=EYE.roll(1, 0)), "must be symmetric, got one that is not"),
        (dict(covariance=-EYE), "plus its regulariser 0.1 must be positive definite"),
        (dict(regulariser=0.0), "regulariser of an uncertainty must be > 0 and finite, got 0.0"),
        (dict(factor=-1.0), "factor of an uncertainty must be > 0 and finite, got -1.0"),
        (dict(force_factor=0.0), "force_factor of an uncertainty must be > 0 and finite, got 0.0"),
        (dict(num_frames=-1), "num_frames of an uncertainty must be a whole number >= 0, got -1"),
        (dict(quantiles={1.5: 2.0}), "for coverages between 0 and 1, got 2.0 for 1.5"),
        (dict(quantiles={0.5: -2.0}), "quantiles of an uncertainty must be >= 0.* got -2.0 for 0.5"),
    ],
)
def test_bad_values_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        Uncertainty(**(dict(covariance=EYE, regulariser=0.1) | given))


def test_quantiles_that_are_not_known_are_refused():
    known = Uncertainty(covariance=EYE, regulariser=0.1, quantiles={0.5: 0.7, 0.9: 1.6}, num_calibration=12)
    assert known.quantile(0.9) == 1.6
    with pytest.raises(ValueError, match="must be one of 0.5, 0.9, which 12 calibration frames can give, got 0.99"):
        known.quantile(0.99)


def test_potentials_and_sizes_that_do_not_fit_are_refused(make_kind):
    with pytest.raises(ValueError, match=r"must have shape \[\d+, \d+\], got \[3, 3\]"):
        with_uncertainty(make_kind("tensornet"), Uncertainty(covariance=EYE, regulariser=0.1))

    class Sum(torch.nn.Module):
        def forward(self, features):
            return features.sum(-1)

    other = copy.deepcopy(make_kind("tensornet"))
    other.head = Sum()
    with pytest.raises(ValueError, match="can't have an uncertainty: its head must have .*_inputs, got a Sum"):
        require_last_layer(other)


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(make_kind, tmp_path):
    potential = uncertain(
        make_kind("tensornet"), quantiles={0.5: 0.7, 0.9: 1.6}, num_frames=7, num_calibration=12, force_factor=0.6
    )
    torchmdx.save(potential, tmp_path / "model.safetensors")
    return potential, tmp_path / "model.safetensors"


def rewrite(path, change, **metadata):
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        held = file.metadata() | metadata
    change(tensors)
    save_file(tensors, path, {name: text for name, text in held.items() if text is not None})


def test_files_hold_it(saved, make_kind, batch):
    potential, path = saved
    found = torchmdx.load(path)
    assert torch.equal(found.uncertainty.covariance, potential.uncertainty.covariance)
    for name in ("regulariser", "factor", "quantiles", "num_frames", "num_calibration", "force_factor"):
        assert getattr(found.uncertainty, name) == getattr(potential.uncertainty, name)
    assert torch.equal(evaluate(found, batch).energy_uncertainty, evaluate(potential, batch).energy_uncertainty)
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format_version"] == "4"
    torchmdx.save(make_kind("tensornet"), path)  # a file without it stays readable by older versions
    with safe_open(path, framework="pt") as file:
        assert file.metadata()["format_version"] == "2"
        assert "uncertainty" not in file.metadata()
    assert torchmdx.load(path).uncertainty is None


def test_it_is_added_to_a_file_whose_other_content_stays(make_kind, tmp_path):
    path = tmp_path / "model.safetensors"
    torchmdx.save(make_kind("tensornet"), path)
    before = {name: value.clone() for name, value in load_file(path).items()}  # not of the file that changes
    for factor in (0.3, 0.4):  # the second replaces the first
        known = uncertain(make_kind("tensornet"), factor=factor).uncertainty
        path.write_bytes(with_uncertainty_in(path, known))
        after = load_file(path)
        assert after.keys() - before.keys() == {"uncertainty.covariance"}
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert torchmdx.load(path).uncertainty.factor == factor


def test_each_head_has_its_own(make_potential, tmp_path):
    path = tmp_path / "heads.safetensors"
    low, high = (make_potential(seed=seed) for seed in (1, 2))
    high.network = low.network
    torchmdx.save(MultiHead({"low": uncertain(low, 3), "high": high}, "low"), path)
    assert load_one(path, head="high").uncertainty is None
    assert load_one(path).uncertainty.factor == 0.3
    path.write_bytes(with_uncertainty_in(path, uncertain(high, 4, factor=0.7).uncertainty, "high"))
    found = {name: load_one(path, head=name).uncertainty for name in ("low", "high")}
    assert {name: one.factor for name, one in found.items()} == {"low": 0.3, "high": 0.7}
    assert torch.equal(found["high"].covariance, uncertain(high, 4).uncertainty.covariance)
    several = MultiHead({"low": uncertain(low, 3), "high": high}, "low")
    assert several.train().one("low").uncertainty is None


def test_members_of_an_ensemble_keep_theirs_and_it_has_spreads(make_potential, tmp_path, batch):
    members = [uncertain(make_potential(seed=seed), seed) for seed in (1, 2)]
    torchmdx.save(Ensemble(members), tmp_path / "both.safetensors")
    found = torchmdx.load(tmp_path / "both.safetensors")
    assert [member.uncertainty.factor for member in found] == [0.3, 0.3]
    result = evaluate(found, batch, forces=False)
    assert result.energy_uncertainty is None
    assert result.energy_spread is not None


def drop(name):
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "metadata", "text"),
    [
        (
            lambda tensors: tensors.update({"uncertainty.covariance": EYE.clone()}),
            {},
            r"uncertainty.covariance must have shape \[\d+, \d+\], got \[3, 3\]",
        ),
        (drop("uncertainty.covariance"), {}, "lacks the tensor uncertainty.covariance"),
        (lambda tensors: None, {"uncertainty": None}, "lacks the metadata 'uncertainty'"),
        (
            lambda tensors: None,
            {"uncertainty": "[1]"},
            r"settings of an uncertainty must be a JSON.* got '\[1\]'",
        ),
        (lambda tensors: None, {"uncertainty": "{"}, "settings of an uncertainty must be a JSON object"),
        (
            lambda tensors: tensors["uncertainty.covariance"].fill_(torch.nan),
            {},
            "covariance of an uncertainty must be finite",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(saved, change, metadata, text):
    path = saved[1]
    rewrite(path, change, **metadata)
    with pytest.raises(ValueError, match=f"model.safetensors.*{text}"):
        torchmdx.load(path)


def test_unknown_settings_of_a_later_version_are_ignored(saved):
    path = saved[1]
    with safe_open(path, framework="pt") as file:
        settings = json.loads(file.metadata()["uncertainty"])
    rewrite(path, lambda tensors: None, uncertainty=json.dumps(settings | {"of_a_later_version": 2.0}))
    assert torchmdx.load(path).uncertainty.num_frames == 7


def test_a_network_of_ones_own_states_its_last_layer(make_kind):
    """A head with the two members has an uncertainty, whatever its class."""

    class Linear(torch.nn.Module):
        last_layer_size = 2

        def forward(self, features):
            return 3.0 * features.sum(-1)

        def last_layer_inputs(self, features):
            return torch.stack([features.sum(-1), torch.ones_like(features[:, 0])], -1)

    other = copy.deepcopy(make_kind("tensornet"))
    other.head = Linear()
    assert last_layer_size(other) == 2
    features = torch.randn(4, 8, dtype=torch.float64)
    torch.testing.assert_close(last_layer_inputs(other, features)[:, 0], features.sum(-1))
    assert isinstance(uncertain(other), Potential)
