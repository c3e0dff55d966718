import hashlib
import io
import json
import os
import pickle
import stat
from pathlib import Path

import pytest
import torch
from model_kinds import kinds
from safetensors import safe_open
from safetensors.torch import save_file

import torchmdx
from torchmdx import System, TensorNetConfig, evaluate
from torchmdx.checkpoints.formats.reading import Report
from torchmdx.checkpoints.save_load import read
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.tensornet2 import TensorNet2Config


@pytest.fixture
def saved(make_potential, tmp_path) -> Path:
    path = tmp_path / "model.safetensors"
    torchmdx.save(make_potential(), path)
    return path


def rewrite(path: Path, tensors=(), drop=(), **metadata) -> Path:
    """Writes the file with some metadata and tensors replaced or dropped."""
    with safe_open(path, framework="pt") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        words = file.metadata()
    held |= dict(tensors)
    save_file({name: value for name, value in held.items() if name not in drop}, path, {**words, **metadata})
    return path


def with_config(path: Path, **changes) -> Path:
    with safe_open(path, framework="pt") as file:
        config = json.loads(file.metadata()["config"])
    return rewrite(path, config=json.dumps({**config, **changes}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "settings", [dict(), dict(group="SO(3)", radial_basis="gauss", num_layers=0, cutoff=3)], ids=str
)
def test_a_round_trip_keeps_every_bit(make_potential, tmp_path, crystal, dtype, settings):
    path = tmp_path / "model.safetensors"
    before = make_potential(dtype, **settings)
    torchmdx.save(before, path)
    after = torchmdx.load(path)
    assert after.config == before.config
    assert after.dtype == dtype
    for name, value in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], value), name
        assert after.state_dict()[name].dtype == value.dtype, name
    first, second = (evaluate(model, System.from_ase(crystal), stress=True) for model in (before, after))
    assert torch.equal(first.energy, second.energy)
    assert torch.equal(first.forces, second.forces)


def test_a_loaded_potential_is_ready_for_use(saved):
    potential = torchmdx.load(str(saved))
    assert not potential.training
    assert not any(parameter.requires_grad for parameter in potential.parameters())


def test_dtype_is_of_the_file_unless_given(saved):
    assert torchmdx.load(saved).dtype == torch.float64
    single = torchmdx.load(saved, dtype=torch.float32)
    assert single.dtype == torch.float32
    assert single.reference_energies.dtype == torch.float64


def test_the_name_of_a_file_does_not_matter(saved):
    other = saved.rename(saved.with_suffix(".ckpt"))
    assert torchmdx.load(other).config.max_z == 35


def test_every_setting_is_kept(make_potential, tmp_path):
    config = TensorNet2Config(
        num_channels=4,
        num_layers=1,
        num_radial=5,
        radial_basis="gauss",
        trainable_basis=True,
        activation="ssp",
        cutoff=3.25,
        max_z=9,
        group="SO(3)",
        num_head_layers=2,
        num_charges=3,
        charge_slack=0.5,
    )
    default = TensorNet2Config()
    fixed = {"head", "messages", "self_message", "readout_activation", "charge_factor"}
    assert all(getattr(config, name) != getattr(default, name) for name in vars(default) if name not in fixed)
    path = tmp_path / "model.safetensors"
    torchmdx.save(torchmdx.Potential(config), path)
    assert torchmdx.load(path).config == config


def test_settings_of_a_tensornet_alone_are_kept(tmp_path):
    options = dict(head="gated", self_message=False, readout_activation=False, charge_factor=False, messages="target")
    config = torchmdx.TensorNetConfig(num_channels=4, num_layers=1, num_radial=3, radial_basis="bessel", **options)
    torchmdx.save(torchmdx.Potential(config), tmp_path / "model.safetensors")
    assert torchmdx.load(tmp_path / "model.safetensors").config == config


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_others_may_read_a_checkpoint_as_any_new_file(saved):
    plain = saved.with_name("plain")
    plain.write_bytes(b"")
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize("failure", ["write", "replace"])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(make_potential, saved, monkeypatch, failure):
    before = saved.read_bytes()

    def full(descriptor):
        raise OSError("no space left on device")

    def not_replaced(*paths):
        raise OSError("no space left on device")

    if failure == "write":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(os, "replace", not_replaced)
    with pytest.raises(OSError, match="no space left"):
        torchmdx.save(make_potential(seed=1), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint at '.*nowhere.safetensors'"):
        torchmdx.load(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        torchmdx.load(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 8, 100, 2000, -1])
def test_a_truncated_file_is_refused(saved, kept):
    saved.write_bytes(saved.read_bytes()[:kept])
    with pytest.raises(ValueError, match="model.safetensors' is not a readable checkpoint"):
        torchmdx.load(saved)


@pytest.mark.parametrize("content", [b"hello " * 1000, b"\x00" * 64, b"\x89HDF\r\n\x1a\n" * 20, b'{"model": 1}'])
@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_a_foreign_file_is_refused(tmp_path, content, suffix):
    path = tmp_path / f"foreign.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"foreign.{suffix}'"):
        torchmdx.load(path)


def test_safetensors_of_another_program_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(ValueError, match="not a torchmdx potential: its format must be 'torchmdx-potential', got None"):
        torchmdx.load(path)


class Payload:
    """Unpickling an instance creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def raw_pickle(payload, path):
    path.write_bytes(pickle.dumps({"state_dict": {}, "hyper_parameters": payload}, protocol=2))


def zipped_pickle(payload, path):
    torch.save({"state_dict": {}, "hyper_parameters": {"model": payload}}, path)


@pytest.mark.parametrize("write", [raw_pickle, zipped_pickle])
@pytest.mark.parametrize("suffix", ["ckpt", "pt", "safetensors"])
def test_code_in_a_file_never_runs(tmp_path, write, suffix):
    proof, path = tmp_path / "executed", tmp_path / f"model.{suffix}"
    write(Payload(proof), path)
    with pytest.raises(ValueError, match=f"model.{suffix}'"):
        torchmdx.load(path)
    with pytest.raises(ValueError, match=f"model.{suffix}'"):
        torchmdx.Calculator(path)
    assert not proof.exists()
    if write is zipped_pickle:
        torch.load(io.BytesIO(path.read_bytes()), weights_only=False)  # it would have run
    else:
        pickle.loads(path.read_bytes())
    assert proof.exists()


def test_version_1_is_read(data, saved):
    with safe_open(data / "tensornet.safetensors", framework="pt") as file:
        assert file.metadata()["format_version"] == "1"
        assert "priors" not in file.metadata()
    potential = torchmdx.load(data / "tensornet.safetensors")
    assert (type(potential.config), potential.prior_configs) == (TensorNetConfig, ())
    again = saved.with_name("again.safetensors")
    torchmdx.save(potential, again)
    for name, value in torchmdx.load(again).state_dict().items():
        assert torch.equal(value, potential.state_dict()[name])


@pytest.mark.parametrize(("version", "advice"), [("5", "; update torchmdx"), ("0", "$"), ("one", "$")])
def test_another_format_version_is_refused(saved, version, advice):
    rewrite(saved, format_version=version)
    with pytest.raises(ValueError, match=f"reads format versions 1, 2, 3, 4, '.*' has version '{version}'{advice}"):
        torchmdx.load(saved)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"tensornet"', "{}"])
def test_an_unreadable_configuration_is_refused(saved, text):
    rewrite(saved, config=text)
    with pytest.raises(ValueError, match="holds no readable configuration"):
        torchmdx.load(saved)


def test_an_unknown_setting_is_named(saved):
    with pytest.raises(ValueError, match="model.safetensors': the model tensornet has no settings colour, flavour"):
        torchmdx.load(with_config(saved, flavour=1, colour=2))


def test_a_setting_out_of_range_is_refused(saved):
    with pytest.raises(ValueError, match="cutoff must be > 0 Å and finite, got -1"):
        torchmdx.load(with_config(saved, cutoff=-1))


def test_another_model_is_named(saved):
    with pytest.raises(
        ValueError, match="model.safetensors': model must be one of tensornet, tensornet2, qet, got 'schnet'"
    ):
        torchmdx.load(with_config(saved, model="schnet"))


def test_missing_and_unexpected_tensors_are_named(saved):
    rewrite(saved, tensors={"network.extra": torch.ones(1)}, drop=["network.readout.bias"])
    with pytest.raises(ValueError, match=r"missing \['network.readout.bias'\], unexpected \['network.extra'\]"):
        torchmdx.load(saved)


def test_a_tensor_of_the_wrong_shape_is_named(saved):
    rewrite(saved, tensors={"network.readout.bias": torch.ones(9)})
    with pytest.raises(ValueError, match=r"network.readout.bias in '.*' must have shape \[8\], got \[9\]"):
        torchmdx.load(saved)


def test_a_configuration_of_another_size_is_refused(saved):
    with pytest.raises(ValueError, match="must have shape"):
        torchmdx.load(with_config(saved, num_channels=16))
    with pytest.raises(ValueError, match=r"unexpected \['network.layers.1"):
        torchmdx.load(with_config(saved, num_layers=1))


@pytest.mark.parametrize("kind", kinds())
def test_every_model_and_prior_comes_back(make_kind, kind, tmp_path, crystal, cation):
    path, before = tmp_path / "model.safetensors", make_kind(kind)
    torchmdx.save(before, path, report=Report("elsewhere", "0" * 64))
    after = torchmdx.load(path)
    assert (after.config, after.prior_configs) == (before.config, before.prior_configs)
    for atoms in (crystal, cation):
        first, second = (evaluate(model, System.from_ase(atoms)) for model in (before, after))
        assert torch.equal(first.energies, second.energies)
        assert torch.equal(first.forces, second.forces)


def test_settings_of_priors_come_back_to_the_bit(tmp_path, make_potential):
    config = CoulombConfig(
        cutoff=8.125,
        cut_in_vacuum=True,
        damping=1 / 3,
        dielectric=float("inf"),
        switch=(1.0, 2.0),
        charges="given",
        weights=(0.1,),
        strength=1.1,
        accuracy=1e-7,
    )
    assert {name for name in vars(config) if getattr(config, name) == getattr(CoulombConfig(), name)} == {"periodic"}
    summed = CoulombConfig(charges="given", periodic="ewald")  # which cuts nothing off
    path = tmp_path / "model.safetensors"
    torchmdx.save(make_potential(priors=[lambda: config, lambda: summed]), path)
    assert torchmdx.load(path).prior_configs == (config, summed)


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        ('[{"prior": "d4"}]', "prior must be one of .*, got 'd4'"),
        ('[{"prior": "zbl", "colour": 1}]', "the prior zbl has no settings colour"),
        ('[{"prior": "zbl", "cutoff": -1}]', "cutoff of the prior zbl must be > 0 Å and finite, got -1"),
        ('[{"prior": "d2", "cutoff": 5}]', "the prior d2 cannot be made of its settings"),
        ('[{"prior": "coulomb"}]', "the prior coulomb needs a model that predicts charges"),
        ("{}", "holds no readable configuration"),
        ("[", "holds no readable configuration"),
    ],
)
def test_priors_that_cannot_be_are_refused(saved, priors, message):
    rewrite(saved, priors=priors)
    with pytest.raises(ValueError, match=message):
        torchmdx.load(saved)


@pytest.fixture
def checked(make_potential, tmp_path) -> Path:
    """A file with a report, and energies to be checked."""
    path = tmp_path / "checked.safetensors"
    torchmdx.save(make_potential(model="tensornet2", priors=[CoulombConfig]), path, report=Report("a.ckpt", "0" * 64))
    return path


def test_a_converted_file_keeps_its_report_and_energies(checked):
    with safe_open(checked, framework="pt") as file:
        words = file.metadata()
    assert "source: a.ckpt" in words["report"]
    held = json.loads(words["energies"])
    assert len(held["energies"]) == len(held["structures"]) == 2
    assert held["structures"][0]["charge"] == 1.0
    assert held["structures"][1]["cell"] is not None
    torchmdx.load(checked, dtype=torch.float32)


@pytest.mark.parametrize("name", ["head.network.2.bias", "network.charges.1.network.4.weight", "scale"])
def test_loading_checks_the_recorded_energies(checked, name):
    with safe_open(checked, framework="pt") as file:
        value = file.get_tensor(name)
    rewrite(checked, tensors={name: value * 1.001})
    with pytest.raises(
        ValueError, match="checked.safetensors' records an energy of .* eV for a small structure, but its weights"
    ):
        torchmdx.load(checked)


def test_loading_checks_that_priors_still_mean_the_same(checked):
    with safe_open(checked, framework="pt") as file:
        priors = json.loads(file.metadata()["priors"])
    priors[0]["damping"] = 4.5
    rewrite(checked, priors=json.dumps(priors))
    with pytest.raises(ValueError, match="the file is damaged, or was written for other formulas"):
        torchmdx.load(checked)


def test_energies_that_are_not_finite_are_not_recorded(make_potential, tmp_path):
    potential = make_potential()
    potential.shift.fill_(float("nan"))
    with pytest.raises(ValueError, match="a potential must give finite energies, got"):
        torchmdx.save(potential, tmp_path / "nan.safetensors", report=Report("a.ckpt", "0" * 64))
    assert list(tmp_path.iterdir()) == []


def test_a_hash_that_does_not_match_is_refused(saved):
    found = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert torchmdx.load(saved, sha256=found.upper()).config.max_z == 35
    with pytest.raises(ValueError, match=f"the SHA-256 of '.*model.safetensors' must be {'1' * 64}, got {found}"):
        torchmdx.load(saved, sha256="1" * 64)
    with pytest.raises(ValueError, match="sha256 must be 64 hexadecimal digits, got 'abc'"):
        torchmdx.load(saved, sha256="abc")
    assert read(saved).report.sha256 == found
