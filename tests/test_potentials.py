"""Potentials by name, and what is used where none is named: by every front door and command.

A stand-in with random weights takes the place of what the package ships, in a folder of its own.
"""

import json

import openmm
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from openmm import app, unit
from openmmml import MLPotential

import torchmdx
from torchmdx.checkpoints import potentials
from torchmdx.commands import cli
from torchmdx.models.model_card import Card
from torchmdx.openmm import add_potential, create_mixed_system

CARD = Card(
    name="organic-1", description="a stand-in", licence="MIT", elements=(1, 6, 8), charges=(0, 1), closed_shell=True
)


@pytest.fixture
def default(make_potential, tmp_path, monkeypatch):
    """A potential that is shipped as the default and one beside it; the working directory is empty."""
    folder = tmp_path / "potentials"
    folder.mkdir()
    monkeypatch.setattr(potentials, "FOLDER", folder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    other = make_potential(torch.float32, seed=5)
    torchmdx.save(other, folder / "other-2.safetensors")
    potential = make_potential(torch.float32, seed=4)
    potential.card = CARD
    torchmdx.save(potential, folder / "organic-1.safetensors")
    return potential


@pytest.fixture
def ethanol_file(ethanol, default):
    """Its path, below the working directory."""
    ethanol.info.clear()
    ethanol.write("ethanol.xyz")
    return "ethanol.xyz"


def energy_of(potential, atoms: Atoms) -> float:
    return float(torchmdx.evaluate(potential.double(), torchmdx.System.from_ase(atoms)).energy)


def test_the_default_is_named_once():
    assert potentials.DEFAULT_POTENTIAL == "organic-1"


def test_no_name_is_the_default(default, ethanol):
    expected = energy_of(default, ethanol)
    assert torchmdx.load().card == CARD
    for calculator in (torchmdx.Calculator(dtype="float64"), torchmdx.Calculator("organic-1", dtype="float64")):
        ethanol.calc = calculator
        assert ethanol.get_potential_energy() == pytest.approx(expected, abs=1e-9)
    ethanol.calc = torchmdx.Calculator("other-2", dtype="float64")
    assert abs(ethanol.get_potential_energy() - expected) > 1e-3


def test_a_file_comes_before_a_name_but_not_before_none(default, tmp_path):
    torchmdx.save(torchmdx.load("other-2"), tmp_path / "here" / "organic-1")
    assert not torchmdx.load("organic-1").card
    assert torchmdx.load().card == CARD


def test_the_hash_is_looked_at_for_names_too(default):
    with pytest.raises(ValueError, match="the SHA-256 of .* must be 0000"):
        torchmdx.load("organic-1", sha256="0" * 64)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("organic-2", ["no checkpoint at 'organic-2'", "comes with organic-1, other-2", "aceff-2.0", "'organic-1'?"]),
        ("aceff-3.0", ["did you mean 'aceff-2.0'?"]),
        ("nonsense", ["no checkpoint at 'nonsense', nor is that a name: torchmdx comes with organic-1"]),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(default, name, words):
    with pytest.raises(FileNotFoundError) as caught:
        torchmdx.load(name)
    for word in words:
        assert word in str(caught.value)
    assert ("did you mean" in str(caught.value)) == (name != "nonsense")


@pytest.mark.parametrize("path", ["organic-2.safetensors", "folder/of/organic-2", "model.ckpt"])
def test_a_missing_path_is_not_answered_with_names(default, path):
    with pytest.raises(FileNotFoundError, match=f"^no checkpoint at '{path}'$"):
        torchmdx.load(path)


def test_a_default_that_is_gone_is_said_to_be(default):
    (potentials.FOLDER / "organic-1.safetensors").unlink()
    for name in (None, "organic-1"):
        with pytest.raises(FileNotFoundError, match="of the potential 'organic-1', part of torchmdx, is missing"):
            torchmdx.load(name)


# Commands


def test_commands_use_the_default(default, ethanol, ethanol_file, capsys):
    assert cli.main(["energy", ethanol_file, "--json", "--device", "cpu"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["energy"] == pytest.approx(energy_of(default, ethanol), abs=1e-6)  # the file has eight digits
    assert cli.main(["energy", ethanol_file, "--json", "--device", "cpu", "--model", "other-2"]) == 0
    (other,) = json.loads(capsys.readouterr().out)
    assert abs(other["energy"] - row["energy"]) > 1e-3


@pytest.mark.nightly_for("command2-0")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["relax", "ethanol.xyz", "-o", "out.xyz", "--steps", "1"], 1),
        (["bench", "ethanol.xyz"], 0),
        (["profile", "ethanol.xyz"], 0),
        (["md", "ethanol.xyz", "-o", "run", "--steps", "3", "--device", "cpu"], 0),
    ],
)
def test_other_commands_use_the_default(ethanol_file, command, status, capsys, monkeypatch):
    monkeypatch.setattr("torchmdx.commands.bench.SECONDS_TO_MEASURE", 0.0)
    assert cli.main(command) == status, capsys.readouterr().err


def test_neighbors_takes_the_cutoff_of_the_potential(ethanol_file, capsys):
    assert cli.main(["neighbors", ethanol_file]) == 0
    assert "edges within 4 Å" in capsys.readouterr().out  # that of the stand-in
    assert cli.main(["neighbors", ethanol_file, "--cutoff", "2"]) == 0
    assert "edges within 2 Å" in capsys.readouterr().out
    assert cli.main(["neighbors", ethanol_file, "--cutoff", "2", "--model", "other-2"]) == 2
    assert "--cutoff and --model exclude each other, got --cutoff" in capsys.readouterr().err


def labelled(atoms: Atoms, path: str) -> Atoms:
    from ase.calculators.singlepoint import SinglePointCalculator

    atoms.calc = SinglePointCalculator(atoms, energy=1.0, forces=atoms.positions * 0)
    atoms.write(path, format="extxyz")
    return atoms


def test_evaluate_takes_data_alone_a_model_or_a_potential_first(default, ethanol, capsys):
    labelled(ethanol, "labelled.xyz")
    answers = []
    for command in (
        ["labelled.xyz"],
        ["organic-1", "labelled.xyz"],
        [str(potentials.FOLDER / "organic-1.safetensors"), "labelled.xyz"],
        ["labelled.xyz", "--model", "organic-1"],
        ["other-2", "labelled.xyz"],
    ):
        assert cli.main(["evaluate", *command, "--json", "--device", "cpu"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["sets"])
    assert answers[0] == answers[1] == answers[2] == answers[3] != answers[4]
    assert cli.main(["evaluate", "organic-1"]) == 2
    assert "evaluate needs labelled structures, got only the potential 'organic-1'" in capsys.readouterr().err


def test_evaluate_shows_errors_on_elements_that_were_not_trained(default, capsys):
    labelled(molecule("SiH4"), "silane.xyz")
    assert cli.main(["evaluate", "silane.xyz", "--device", "cpu"]) == 0
    assert "The potential was not trained on Si: its predictions for it mean nothing." in capsys.readouterr().out


@pytest.mark.filterwarnings("default::UserWarning")
def test_energy_refuses_what_was_not_trained_and_warns_of_charges(default, capsys):
    molecule("SiH4").write("silane.xyz")
    assert cli.main(["energy", "silane.xyz"]) == 2
    assert "organic-1 does not know Si (atom 0): it was trained on H, C, O" in capsys.readouterr().err
    molecule("H2O").write("water.xyz")
    assert cli.main(["energy", "water.xyz", "--charge", "1"]) == 0
    error = capsys.readouterr().err
    assert "torchmdx: warning: organic-1 was trained on closed shells, got 9 electrons" in error
    assert ".py" not in error


def test_info_lists_what_is_shipped_and_describes_it(default, capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert "ok  organic-1" in out
    assert "the default; a stand-in (H, C, O)" in out
    assert "aceff-2.0" in out
    assert cli.main(["info", "organic-1"]) == 0
    out = capsys.readouterr().out
    assert "organic-1: a stand-in\ntrained on H, C, O; charges 0, +1; closed shells\nlicence: MIT\nTensorNet" in out


def test_info_without_the_default_says_that_the_installation_is_incomplete(default, capsys):
    (potentials.FOLDER / "organic-1.safetensors").unlink()
    assert cli.main(["info"]) == 1
    out = capsys.readouterr().out
    assert "-- organic-1 missing: reinstall torchmdx" in " ".join(out.split())
    assert "the installation is incomplete" in out


def test_convert_writes_what_is_said_of_a_potential(default, capsys, tmp_path):
    target = str(tmp_path / "named.safetensors")
    options = ["--name", "mine", "--elements", "Cl", "H", "--charges", "-1", "0", "--licence", "CC0"]
    assert cli.main(["convert", "other-2", target, *options]) == 0
    assert torchmdx.load(target).card == Card(name="mine", elements=(1, 17), charges=(-1, 0), licence="CC0")
    again = str(tmp_path / "again.safetensors")
    assert cli.main(["convert", target, again, "--closed-shell"]) == 0
    assert torchmdx.load(again).card == Card(
        name="mine", elements=(1, 17), charges=(-1, 0), licence="CC0", closed_shell=True
    )
    assert cli.main(["convert", "other-2", target, "--elements", "Xx", "--overwrite"]) == 2
    assert "--elements must be symbols such as H and Cl, got 'Xx'" in capsys.readouterr().err


# OpenMM


@pytest.fixture
def dipeptide(data, default):
    """Of the elements H, C, O: nitrogen is replaced, because the stand-in does not know it."""
    pdb = app.PDBFile(str(data / "alanine_dipeptide.pdb"))
    system = openmm.System()
    for atom in pdb.topology.atoms():
        if atom.element.symbol == "N":
            atom.element = app.element.carbon
        system.addParticle(atom.element.mass)
    return pdb, system


def energy_in_openmm(system: openmm.System, positions) -> float:
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    return context.getState(energy=True).getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole)


EXACT = dict(precision="float64", transport="python", device="cpu")


def test_openmm_uses_the_default(dipeptide):
    pdb, system = dipeptide
    by_name, mixed, ml = (openmm.XmlSerializer.clone(system) for _ in range(3))
    add_potential(system, pdb.topology, **EXACT)
    add_potential(by_name, pdb.topology, "organic-1", **EXACT)
    mixed = create_mixed_system(mixed, pdb.topology, range(22), **EXACT)
    ml = MLPotential("torchmdx").createSystem(pdb.topology, **EXACT)
    energies = [energy_in_openmm(found, pdb.positions) for found in (system, by_name, mixed, ml)]
    assert energies == pytest.approx([energies[0]] * 4, rel=1e-9)
    assert abs(energies[0]) > 0.1
    with pytest.raises(FileNotFoundError, match="did you mean 'organic-1'"):
        MLPotential("torchmdx", modelPath="organic-3")


def test_a_saved_force_names_a_shipped_potential_and_not_where_it_was(dipeptide, tmp_path, monkeypatch):
    pdb, system = dipeptide
    force = add_potential(system, pdb.topology, **EXACT)
    text = openmm.XmlSerializer.serialize(system)
    assert force.evaluator.settings.checkpoint == "organic-1"
    expected = energy_in_openmm(system, pdb.positions)
    potentials.FOLDER.rename(tmp_path / "elsewhere")  # as on another machine
    monkeypatch.setattr(potentials, "FOLDER", tmp_path / "elsewhere")
    restored = openmm.XmlSerializer.deserialize(text)
    assert energy_in_openmm(restored, pdb.positions) == pytest.approx(expected, rel=1e-12)


def test_openmm_refuses_elements_and_warns_of_charges(dipeptide, data):
    pdb, system = dipeptide
    with pytest.warns(UserWarning, match="closed shells, got 75 electrons"):
        add_potential(openmm.XmlSerializer.clone(system), pdb.topology, charge=1, **EXACT)
    original = app.PDBFile(str(data / "alanine_dipeptide.pdb"))
    with pytest.raises(ValueError, match=r"organic-1 does not know N \(atom 6\): it was trained on H, C, O"):
        add_potential(system, original.topology, **EXACT)
