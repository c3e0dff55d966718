"""Priors from outside: registered, evaluated, saved, loaded, trained, and refused by name without registration."""

import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import forked_programs
import numpy as np
import pytest
import torch
from outside_prior import Bump, BumpConfig, bump_potential, register
from safetensors import safe_open
from torch import nn

import torchmdx
from torchmdx import Batch, CapturedStep, Potential, System, TensorNet2Config, evaluate, register_prior
from torchmdx.commands.info import describe
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.evaluation.conformance import check
from torchmdx.models import registry
from torchmdx.models.priors.base import Prior, PriorConfig
from torchmdx.models.priors.coulomb import Coulomb, CoulombConfig
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.training.config_file import make_config

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def registrations():
    """`bump` registered; whatever a test registers is undone after it."""
    before = dict(registry.PRIORS)
    register()
    yield
    registry.PRIORS.clear()
    registry.PRIORS.update(before)


@pytest.fixture
def saved(tmp_path):
    potential = bump_potential(BumpConfig(strength=0.75), ZBLConfig(cutoff=2.5))
    torchmdx.save(potential, tmp_path / "bump.safetensors")
    return potential, tmp_path / "bump.safetensors"


def by_hand(atoms, config):
    energy = 0.0
    for i, one in enumerate(atoms.numbers):
        for j, other in enumerate(atoms.numbers[:i]):
            r = np.linalg.norm(atoms.positions[i] - atoms.positions[j])
            energy += (1 + 0.01 * one) * (1 + 0.01 * other) * max(0, 1 - (r / config.cutoff) ** 2) ** 3
    return config.strength * energy


def test_its_energy_is_added(ethanol):
    config, system = BumpConfig(strength=0.25, cutoff=3.5), System.from_ase(ethanol)
    potential = bump_potential(config).double()
    with_it, without = (evaluate(one, system).energy[0] for one in (potential, potential.with_priors([])))
    assert float(with_it - without) == pytest.approx(by_hand(ethanol, config), abs=1e-10)
    scaled = potential.with_priors([config.scaled(3.0)])
    assert float(evaluate(scaled, system).energy[0] - without) == pytest.approx(3 * by_hand(ethanol, config), abs=1e-10)


def test_the_search_reaches_its_cutoff(ethanol):
    potential = bump_potential(BumpConfig(cutoff=6.0))
    assert potential.cutoff == potential.search_cutoff(Batch.of(System.from_ase(ethanol))) == 6.0
    assert potential.max_z == 20
    with pytest.raises(ValueError, match="the prior bump knows atomic numbers up to 20, got 29 for atom 1"):
        potential.require_elements(torch.tensor([1, 29]))


def test_steps_and_training_take_it(ethanol, crystal):
    potential = bump_potential(BumpConfig(cutoff=5.0)).double()
    for atoms in (ethanol, crystal):
        system = System.from_ase(atoms)
        reference = evaluate(potential, system, stress=True)
        result = CapturedStep(potential, system, stress=True)(atoms.positions)
        np.testing.assert_allclose(result.forces, reference.forces, atol=1e-6)
        batch = Batch.of(system).to("cpu", torch.float64)
        search = EdgeSearch(potential.search_cutoff(batch), reverse=True)
        edges = search.allocate(batch)
        assert search.reverse is not None
        pairwise = differentiate_pairwise(potential, batch, edges, search.reverse, stress=True)
        np.testing.assert_allclose(pairwise.forces.detach(), reference.forces, atol=1e-12)
        np.testing.assert_allclose(pairwise.energy.detach(), reference.energy, atol=1e-11)


def test_it_conforms():
    check(bump_potential(), device="cpu", verbose=False).require()


class Averaged(Bump):
    """Divided by the number of atoms of the whole batch."""

    def forward(self, geometry):
        return super().forward(geometry) / geometry.batch.num_atoms


@pytest.mark.nightly
def test_conformance_finds_mistakes_of_a_prior():
    @dataclass(frozen=True, kw_only=True)
    class AveragedConfig(BumpConfig):
        name: ClassVar[str] = "averaged"

    register_prior(AveragedConfig, Averaged)
    found = check(bump_potential(AveragedConfig(strength=5.0)), device="cpu", verbose=False)
    assert {"batch", "supercell"} <= set(found.failed)


def test_a_checkpoint_holds_name_and_settings(saved, ethanol):
    potential, file = saved
    with safe_open(file, "pt") as opened:
        priors = json.loads(opened.metadata()["priors"])
        assert not any(name.startswith("priors") for name in opened.keys())  # noqa: SIM118
    assert priors[0] == {"prior": "bump", **asdict(BumpConfig(strength=0.75))}
    again = torchmdx.load(file)
    assert again.prior_configs == potential.prior_configs
    assert type(again.priors[0]) is Bump
    before, after = (evaluate(one, System.from_ase(ethanol)) for one in (potential, again))
    assert torch.equal(after.energy, before.energy)
    assert torch.equal(after.forces, before.forces)


def run(code, *arguments):
    """Another process, which knows of no prior but torchmdx's own."""
    path = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n"
    return subprocess.run(
        [*forked_programs.python(), "-c", path + code, *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.nightly
def test_another_process_must_register_it_first(saved, ethanol):
    potential, file = saved
    refused = run("import torchmdx; torchmdx.load(sys.argv[1])", str(file))
    assert refused.returncode == 1
    said = refused.stderr.strip().splitlines()[-1]
    assert said.startswith("ValueError: ")
    known = ", ".join(registry.BUILT_IN_PRIORS)
    assert said.endswith(
        f"bump.safetensors': prior must be one of {known}, got 'bump'. If bump is a prior of your own "
        "or of another package, register it first: torchmdx.register_prior(its config, its module). Loading a file "
        "never imports code"
    )
    code = """
import outside_prior, torchmdx
from ase.build import molecule
outside_prior.register()
energy = torchmdx.evaluate(torchmdx.load(sys.argv[1]), torchmdx.System.from_ase(molecule("CH3CH2OH"))).energy
print(float(energy[0]).hex())
"""
    from ase.build import molecule

    answered = run(code, str(file))
    expected = evaluate(potential, System.from_ase(molecule("CH3CH2OH"))).energy
    assert answered.stdout.strip() == float(expected[0]).hex(), answered.stderr


def test_a_module_of_the_priors_name_is_never_imported(saved, tmp_path, monkeypatch):
    from safetensors.torch import load_file, save_file

    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    _, file = saved
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    for name in ("trap", "trap.Prior", "../trap"):
        metadata["priors"] = json.dumps([{"prior": name, "cutoff": 4.0}])
        save_file(load_file(file), tmp_path / "other.safetensors", metadata)
        with pytest.raises(ValueError, match=f"prior must be one of .*got '{name}'"):
            torchmdx.load(tmp_path / "other.safetensors")


def test_settings_in_a_file_are_checked():
    with pytest.raises(ValueError, match="the prior bump has no settings colour"):
        registry.prior_from_dict({"prior": "bump", "colour": 2})
    with pytest.raises(ValueError, match=r"cutoff of the prior bump must be > 0 Å and finite, got -1.0"):
        registry.prior_from_dict({"prior": "bump", "cutoff": -1.0})


def test_a_training_names_it():
    config = make_config(
        {
            "model": {"name": "tensornet", "priors": [{"prior": "bump", "cutoff": 2.0}]},
            "data": {"path": "a"},
            "output": {"directory": "b"},
        }
    )
    assert config.model.prior_configs() == [BumpConfig(cutoff=2.0)]


def test_info_describes_it():
    assert "prior bump: cutoff 3, strength 0.5" in describe(bump_potential())


class TwiceCoulomb(Coulomb):
    """Derived from a built-in prior with its own energy: kernels of the built-in one would be wrong."""

    def forward(self, geometry):
        return 2 * super().forward(geometry)


def test_a_prior_derived_from_a_built_in_one_computes_its_own_energy(ethanol):
    @dataclass(frozen=True, kw_only=True)
    class TwiceConfig(CoulombConfig):
        name: ClassVar[str] = "twice"
        charges: str = "given"

    register_prior(TwiceConfig, TwiceCoulomb)
    ethanol.set_initial_charges(np.linspace(-0.4, 0.4, len(ethanol)))
    system = System.from_ase(ethanol)
    twice = bump_potential(TwiceConfig()).double()
    once, bare = (twice.with_priors(priors) for priors in ([CoulombConfig(charges="given")], []))
    energy = [float(evaluate(one, system).energy[0]) for one in (twice, once, bare)]
    assert energy[0] - energy[2] == pytest.approx(2 * (energy[1] - energy[2]), abs=1e-10)
    assert abs(energy[1] - energy[2]) > 1e-3
    np.testing.assert_allclose(
        CapturedStep(twice, system)(ethanol.positions).forces, evaluate(twice, system).forces, atol=1e-6
    )


def test_charges_reach_it(ethanol):
    """A prior may use the charges that a network predicts, in all their channels."""

    @dataclass(frozen=True, kw_only=True)
    class ChargedConfig(BumpConfig):
        name: ClassVar[str] = "charged"

    class Charged(Bump):
        def forward(self, geometry):
            return geometry.charges[:, -1] ** 2

    register_prior(ChargedConfig, Charged)
    config = TensorNet2Config(num_channels=8, num_radial=6, num_layers=1, max_z=9, cutoff=4.0, num_charges=2)
    potential = Potential(config, [ChargedConfig()]).double().requires_grad_(False)
    system = System.from_ase(ethanol)
    forces = [evaluate(one, system).forces for one in (potential, potential.with_priors([]))]
    assert float((forces[0] - forces[1]).abs().max()) > 1e-12


# -- what is refused ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class OtherConfig(PriorConfig):
    name: ClassVar[str] = "bump"


@dataclass(frozen=True, kw_only=True)
class BadNameConfig(PriorConfig):
    name: ClassVar[str] = "a/b"


class UndecoratedConfig(PriorConfig):
    name: ClassVar[str] = "undecorated"


@dataclass(frozen=True, kw_only=True)
class NamelessConfig(PriorConfig):
    pass


@pytest.mark.parametrize(
    ("config", "kind", "error"),
    [
        (ZBLConfig, ValueError, "the prior name 'zbl' must be new, got the name of ZBLConfig"),
        (OtherConfig, ValueError, "the prior name 'bump' must be new, got the name of BumpConfig"),
        (BadNameConfig, ValueError, "a prior's name must consist of letters, digits and _, got 'a/b'"),
        (NamelessConfig, ValueError, "a prior's name must consist of letters, digits and _, got None"),
        (UndecoratedConfig, TypeError, "the config of undecorated must be a dataclass, got .* without the decorator"),
        (dict, TypeError, "the config of a prior must be a class derived from PriorConfig, got <class 'dict'>"),
    ],
)
def test_what_cannot_be_registered(config, kind, error):
    before = dict(registry.PRIORS)
    with pytest.raises(kind, match=error):
        register_prior(config, Bump)
    assert before == registry.PRIORS


def test_a_prior_that_is_not_registered_is_refused():
    with pytest.raises(TypeError, match=r"a prior must be one of zbl, .*, got a OtherConfig: register it first"):
        bump_potential(OtherConfig())


def test_weights_are_refused():
    """Checkpoints keep the settings of a prior alone."""

    class Weighted(Bump):
        def __init__(self, config):
            super().__init__(config)
            self.weight = nn.Parameter(torch.ones(()))
            self.register_buffer("table", torch.ones(3))

    register_prior(BumpConfig, Weighted)
    with pytest.raises(ValueError, match="the prior bump must have no weights, .*, got weight, table in"):
        bump_potential()


def test_what_is_made_must_be_a_prior():
    register_prior(BumpConfig, lambda config: nn.Identity())
    with pytest.raises(TypeError, match="the prior bump must be made as a Prior, got a Identity"):
        bump_potential()


def test_a_class_that_is_defined_twice_replaces_itself():
    def define():
        @dataclass(frozen=True, kw_only=True)
        class CellConfig(BumpConfig):
            name: ClassVar[str] = "cell"

        return CellConfig

    first, second = define(), define()
    register_prior(first, Bump)
    register_prior(second, Bump)
    assert isinstance(bump_potential(second()).priors[0], Prior)
    with pytest.raises(TypeError, match="got a CellConfig: register it first"):
        bump_potential(first())


def test_what_a_prior_must_define_is_named(ethanol):
    class NoEnergy(Prior):
        def __init__(self, config):
            super().__init__()
            self.config = config

    register_prior(BumpConfig, NoEnergy)
    with pytest.raises(TypeError, match="abstract class NoEnergy .*forward"):
        bump_potential()
    with pytest.raises(NotImplementedError, match=r"the prior bump must define scaled\(factor\)"):
        PriorConfig.scaled(BumpConfig(), 2.0)
