"""Models from outside: registered, saved, loaded, trained, and refused by name where they are not registered."""

import json
import re
from dataclasses import asdict, dataclass

import numpy as np
import pytest
import torch
from ase.build import molecule
from outside_model import (  # registration: used by every test
    NAME,
    Outside,
    OutsideConfig,
    forget,
    outside_potential,
    registration,  # noqa: F401
)
from safetensors import safe_open
from torch import nn

import torchmdx
from torchmdx import Calculator, CapturedStep, Potential, System, TensorNetConfig, evaluate, register_model
from torchmdx.commands.info import describe
from torchmdx.models import registry
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.models.tensornet import TensorNet


@pytest.fixture
def registered():
    """registered(name, config, network, head): as register_model, undone after the test."""
    names = []

    def register(name, *model):
        register_model(name, *model)
        names.append(name)

    yield register
    for name in names:
        forget(name)


@pytest.fixture
def saved(tmp_path):
    potential = outside_potential(steepness=2.5)
    torchmdx.save(potential, tmp_path / "outside.safetensors")
    return potential, tmp_path / "outside.safetensors"


def test_a_checkpoint_holds_name_and_settings(saved, ethanol):
    potential, file = saved
    with safe_open(file, "pt") as opened:
        assert json.loads(opened.metadata()["config"]) == {"model": NAME, **asdict(potential.config)}
    again = torchmdx.load(file)
    assert again.config == potential.config
    wanted, got = (evaluate(one, System.from_ase(ethanol)) for one in (potential, again))
    assert torch.equal(got.energy, wanted.energy)
    assert torch.equal(got.forces, wanted.forces)
    assert float(wanted.forces.abs().max()) > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_is_the_networks(saved, tmp_path, dtype):
    potential = outside_potential().to(dtype)
    assert potential.dtype == dtype
    torchmdx.save(potential, tmp_path / "one.safetensors")
    assert torchmdx.load(tmp_path / "one.safetensors").dtype == dtype


def test_a_checkpoint_of_an_unregistered_model_names_it(saved):
    _, file = saved
    forget(NAME)
    try:
        with pytest.raises(ValueError, match="register_model") as refused:
            torchmdx.load(file)
    finally:
        register_model(NAME, OutsideConfig, Outside)
    text = str(refused.value)
    # Other tests of the same process may have registered models of theirs.
    assert re.search(
        r"outside\.safetensors': model must be one of tensornet, tensornet2(, [\w-]+)*, got 'outside'", text
    )
    assert "torchmdx.register_model('outside', its config, its network)" in text
    assert "Loading a file never imports code" in text


def test_what_a_file_calls_a_model_is_never_imported(saved, tmp_path, monkeypatch):
    """A module of the model's name lies ready to be imported, and is not."""
    from safetensors.torch import load_file, save_file

    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    _, file = saved
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    for name in ("trap", "trap.Network", "../trap"):
        metadata["config"] = json.dumps({"model": name, "cutoff": 4.0})
        save_file(load_file(file), tmp_path / "other.safetensors", metadata)
        with pytest.raises(ValueError, match=f"model must be one of .*got '{name}'"):
            torchmdx.load(tmp_path / "other.safetensors")


def test_settings_of_a_registered_model_are_checked():
    with pytest.raises(ValueError, match="the model outside has no settings colour"):
        registry.model_from_dict({"model": NAME, "colour": 2})


def test_steps_and_calculator_take_it(ethanol, crystal):
    potential = outside_potential().double()
    for atoms in (ethanol, crystal):
        wanted = evaluate(potential, System.from_ase(atoms), stress=True)
        step = CapturedStep(potential, System.from_ase(atoms), stress=True)
        result = step(atoms.positions)
        np.testing.assert_allclose(result.forces, wanted.forces, atol=1e-12)
        np.testing.assert_allclose(result.stress, wanted.stress, atol=1e-12)
        atoms.calc = Calculator(potential, dtype="float64", device="cpu")
        np.testing.assert_allclose(atoms.get_forces(), wanted.forces, atol=1e-12)
    single = CapturedStep(outside_potential(), System.from_ase(ethanol))
    assert single.report().engine.startswith("exact")


def test_priors_are_added(ethanol):
    plain, system = outside_potential().double(), System.from_ase(ethanol)
    both = Potential(plain.config, [ZBLConfig(cutoff=3.0)]).double()
    both.load_state_dict(plain.state_dict())
    bare = plain.with_priors([ZBLConfig(cutoff=3.0)])
    energy = [float(evaluate(one, system).energy[0]) for one in (plain, both, bare)]
    assert energy[1] == energy[2]
    assert energy[1] - energy[0] > 1e-3
    with pytest.raises(ValueError, match="needs a model that predicts charges: tensornet2, got outside"):
        Potential(OutsideConfig(), [CoulombConfig(cutoff=5.0)])


class OwnHead(nn.Module):
    """Without any weight."""

    def __init__(self, config):
        super().__init__()

    def forward(self, features):
        return features.sum(-1)


@dataclass(frozen=True)
class BareConfig:
    cutoff: float = 4.0
    max_z: int = 10
    num_layers: int = 1
    steepness: float = 1.0

    @property
    def num_channels(self):
        return 4


def test_a_head_of_its_own(registered, ethanol, tmp_path):
    registered("bare", BareConfig, Outside, OwnHead)
    potential = Potential(BareConfig()).double()
    system = System.from_ase(ethanol)
    result = evaluate(potential, system)
    assert potential.dtype == torch.float64
    assert float(result.forces.abs().max()) > 1e-3
    torchmdx.save(potential, tmp_path / "bare.safetensors")
    again = torchmdx.load(tmp_path / "bare.safetensors")
    assert again.dtype == torch.float64
    assert torch.equal(evaluate(again, system).forces, result.forces)


class HalvedTensorNet(TensorNet):
    """A TensorNet by inheritance, with other filters: neither its tables nor its kernels would be right."""

    def forward(self, edges, vectors, atomic_numbers, charge):
        return 0.5 * super().forward(edges, vectors * 1.01, atomic_numbers, charge)


@dataclass(frozen=True, kw_only=True)
class HalvedConfig(TensorNetConfig):
    pass


def test_a_model_derived_from_tensornet_takes_its_own_forward(registered):
    registered("halved", HalvedConfig, HalvedTensorNet)
    torch.manual_seed(0)
    potential = Potential(HalvedConfig(num_channels=8, num_radial=6, num_layers=1, max_z=9, cutoff=4.0)).eval()
    potential.requires_grad_(False)
    assert type(potential.network) is HalvedTensorNet
    atoms = molecule("CH3CH2OH")
    step = CapturedStep(potential, System.from_ase(atoms))
    wanted = evaluate(potential, System.from_ase(atoms))
    np.testing.assert_allclose(step(atoms.positions).forces, wanted.forces, atol=1e-6)
    assert step.report().engine == "exact"


def test_info_describes_it():
    text = describe(outside_potential())
    assert "outside: num_channels 6, num_layers 2, cutoff 4.0, max_z 10, steepness 1.5" in text


# -- what is refused ---------------------------------------------------------------------------------------------------


@dataclass
class NotFrozen:
    cutoff: float = 4.0
    max_z: int = 10
    num_channels: int = 4


@dataclass(frozen=True)
class TakenConfig:
    cutoff: float = 4.0
    max_z: int = 10
    num_channels: int = 4


@dataclass(frozen=True)
class NoCutoff:
    max_z: int = 10
    num_channels: int = 4


@pytest.mark.parametrize(
    ("name", "config", "error"),
    [
        ("tensornet", OutsideConfig, "the model name 'tensornet' must be new, got the name of TensorNetConfig"),
        ("outside", TakenConfig, "the model name 'outside' must be new, got the name of OutsideConfig"),
        ("again", OutsideConfig, "a config must belong to one model: OutsideConfig belongs to outside, got 'again'"),
        ("a/b", OutsideConfig, "a model's name must consist of letters, digits and _, got 'a/b'"),
        ("mutable", NotFrozen, "the config of mutable must be a frozen dataclass, got one that is not: NotFrozen"),
        (
            "blind",
            NoCutoff,
            "the config of blind is missing cutoff: it must have the settings cutoff, max_z",
        ),
        ("bare", BareConfig, "the config of bare is missing num_channels: it must have the settings cutoff, max_z"),
    ],
)
def test_what_cannot_be_registered(name, config, error):
    before = dict(registry.MODELS)
    with pytest.raises(ValueError, match=error):
        register_model(name, config, Outside)
    assert before == registry.MODELS


def test_a_config_must_be_a_dataclass():
    with pytest.raises(TypeError, match="the config of odd must be a dataclass, got <class 'dict'>"):
        register_model("odd", dict, Outside)


def test_a_class_that_is_defined_anew_replaces_itself(registered):
    def define():
        @dataclass(frozen=True)
        class CellConfig:
            cutoff: float = 4.0
            max_z: int = 10
            num_channels: int = 4
            num_layers: int = 1
            steepness: float = 1.0

        return CellConfig

    first, second = define(), define()
    registered("cell", first, Outside)
    register_model("cell", second, Outside)
    Potential(second())
    with pytest.raises(TypeError, match=r"config must be of a registered model \(.*\), got a CellConfig"):
        Potential(first())
