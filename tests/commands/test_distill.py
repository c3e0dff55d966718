"""`torchmdx distill`: its options, and the structures that it starts from."""

import argparse
import shutil

import ase.io
import pytest
from ase import Atoms
from ase.build import molecule
from structures import DATA

import torchmdx
from torchmdx import Potential, TensorNetConfig
from torchmdx.checkpoints import potentials
from torchmdx.commands.cli import build_parser, main
from torchmdx.commands.distill import automatic, examples, request_of, shipped_for, structures_of
from torchmdx.models.model_card import Card
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.training.distillation import run as distillation
from torchmdx.training.distillation.settings import DistillSettings


def options_of(*words):
    return build_parser().parse_args(["distill", "organic-1", "-o", "fast.safetensors", *map(str, words)])


def test_options_are_the_settings_of_the_request():
    assert request_of(options_of()) == DistillSettings(start="organic-1-fast")
    assert request_of(options_of("--start", "none")) == DistillSettings()
    assert request_of(options_of("--cutoff", 4)) == DistillSettings(cutoff=4.0)
    given = options_of("--temperature", 350, "--batch-size", 4, "--layers", 0, "--inner", 0.5, "--name", "quick")
    assert request_of(given) == DistillSettings(temperature=350.0, batch_size=4, layers=0, inner=0.5, name="quick")
    with pytest.raises(ValueError, match="minutes must be > 0 and finite, got -1.0"):
        request_of(options_of("--minutes", -1))


def test_structures_are_all_of_the_files_with_their_charges(tmp_path):
    water, hydroxide = molecule("H2O"), molecule("OH")
    hydroxide.info["charge"] = -1
    ase.io.write(tmp_path / "two.xyz", [water, hydroxide])
    found = structures_of(options_of(tmp_path / "two.xyz", "--device", "cpu"))
    assert [system.charge for system in found.systems] == [0.0, -1.0]
    assert list(found.names) == ["two.xyz:0", "two.xyz:1"]


def test_examples_are_closed_shells_of_elements_that_the_potential_knows(capsys):
    found = structures_of(options_of("--device", "cpu"))
    elements = set(torchmdx.load("organic-1").card.elements)
    assert "alanine dipeptide" in found.names
    assert "CH3CH2OH" in found.names
    assert not {"SiH4", "CH3", "NO2"} & set(found.names)
    for system in found.systems:
        assert set(system.atomic_numbers.tolist()) <= elements
        assert int(system.atomic_numbers.sum()) % 2 == 0
    assert f"structures: {len(found.names)} examples, alanine dipeptide," in capsys.readouterr().out
    metal = Potential(TensorNetConfig(num_channels=4, num_layers=0))
    metal.card = Card(name="copper", elements=(29,))
    with pytest.raises(ValueError, match="distill needs structure files for copper, got none"):
        examples(metal)


def test_errors_of_the_command_name_what_was_given(tmp_path, capsys):
    assert main(["distill", "organic-1", "-o", str(tmp_path / "fast.pt")]) == 2
    assert "--output must end in .safetensors, got" in capsys.readouterr().err
    ase.io.write(tmp_path / "silane.xyz", molecule("SiH4"))
    assert main(["distill", "organic-1", str(tmp_path / "silane.xyz"), "-o", str(tmp_path / "f.safetensors")]) == 2
    assert "silane.xyz: organic-1 does not know Si (atom 0)" in capsys.readouterr().err
    assert not list(tmp_path.glob("f*"))


def test_the_fast_model_of_a_shipped_potential_is_found_by_its_content(tmp_path):
    shutil.copy(potentials.shipped()["organic-1"], tmp_path / "mine.safetensors")
    assert shipped_for(None) == shipped_for("organic-1") == shipped_for(str(tmp_path / "mine.safetensors"))
    assert shipped_for(None) == "organic-1-fast"
    assert shipped_for(["organic-1", "organic-1"]) is None
    assert shipped_for(str(DATA / "tensornet.safetensors")) is None


def test_a_run_distils_the_fast_model_that_is_missing_and_takes_one_that_is_there(tmp_path, monkeypatch, capsys):
    ase.io.write(tmp_path / "water.xyz", Atoms("OH2", molecule("H2O").positions, cell=[9, 9, 9], pbc=True))
    model = Potential(TensorNetConfig(num_channels=4, num_layers=0))
    torchmdx.save(model, tmp_path / "model.safetensors")
    options = argparse.Namespace(
        model=[str(tmp_path / "model.safetensors")], file=str(tmp_path / "water.xyz"), output=str(tmp_path / "run"),
        index="-1", charge=None, device="cpu", temperature=None, seed=None, vacuum=True,
        replicas=2, temperatures="300:350", restart=False,
    )  # fmt: skip
    asked: list = []

    def distill(structures, output, request, interrupts):
        asked.append((structures, request))
        fast = Potential(TensorNetConfig(num_channels=2, num_layers=0))
        fast.card = Card(description=f"of {structures.potential.origin.sha256}")
        torchmdx.save(fast, output)
        return {}

    monkeypatch.setattr(distillation, "distill", distill)
    expected = str(tmp_path / "run.fast.safetensors")
    assert automatic(options, Interrupts()) == expected
    assert automatic(options, Interrupts()) == expected
    assert len(asked) == 1
    structures, request = asked[0]
    assert not structures.systems[0].pbc.any()
    assert request == DistillSettings(temperature=350.0)
    torchmdx.save(model, expected)
    with pytest.raises(ValueError, match=r"run.fast.safetensors' must be distilled from model.safetensors"):
        automatic(options, Interrupts())
    monkeypatch.setattr(distillation, "distill", lambda *given: None)
    (tmp_path / "run.fast.safetensors").unlink()
    assert automatic(options, Interrupts()) is None
    assert "stopped; the same command continues in" in capsys.readouterr().err
    command = ["md", options.file, "-o", options.output, "--model", *options.model, "--fast", "auto"]
    assert main([*command, "--steps", "9", "--engine", "torchmdx"]) == 2
    assert "--steps must be a multiple of --inner 4, got 9" in capsys.readouterr().err


@pytest.mark.nightly
def test_md_takes_the_fast_model_of_its_potential(tmp_path, capsys):
    ase.io.write(tmp_path / "water.xyz", molecule("H2O"))
    steps = ["--steps", "8", "--inner", "2", "--save-every", "4", "--log-every", "4", "--device", "cpu", "--no-page"]
    files = [str(tmp_path / "water.xyz"), "-o", str(tmp_path / "run")]
    assert main(["md", *files, "--engine", "torchmdx", "--fast", "auto", *steps]) == 0
    said = capsys.readouterr().out
    assert "fast model: organic-1-fast, included in torchmdx" in said
    assert "fast potential organic-1-fast" in said


@pytest.mark.parametrize("engine", ["torchmdx", "openmm"])
def test_a_run_looks_for_its_outputs_before_it_distils(tmp_path, monkeypatch, capsys, engine):
    ase.io.write(tmp_path / "water.xyz", molecule("H2O"))
    torchmdx.save(Potential(TensorNetConfig(num_channels=4, num_layers=0)), tmp_path / "model.safetensors")
    monkeypatch.setattr(distillation, "distill", lambda *given: pytest.fail("distils"))
    command = ["md", str(tmp_path / "water.xyz"), "-o", str(tmp_path / "run"), "--steps", "8", "--engine", engine]
    command += ["--model", str(tmp_path / "model.safetensors"), "--fast", "auto", "--device", "cpu"]
    (tmp_path / "run.dcd").touch()
    assert main(command) == 2
    assert "output files must not exist, got" in capsys.readouterr().err
    assert main([*command, "--restart", "--overwrite"]) == 2
    assert "--restart continues a run, got it with --overwrite" in capsys.readouterr().err
    assert main([*command, "--restart"]) == 2
    assert "a restart continues" in capsys.readouterr().err
    for ending in (".json", ".log"):
        (tmp_path / f"run{ending}").touch()
    assert main([*command, "--restart"]) == 2
    assert "--restart continues with the fast model of the run, " in capsys.readouterr().err
    if engine == "torchmdx":
        assert main([*command, "--platform", "CPU"]) == 2
        assert "--platform needs --engine openmm" in capsys.readouterr().err
    assert not list(tmp_path.glob("run.fast*"))
