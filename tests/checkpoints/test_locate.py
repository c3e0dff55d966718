"""A potential is a file, a folder or a name, for every command and record."""

import hashlib
import json
import shutil
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from matgl_folders import DATA

import torchmdx
from torchmdx.checkpoints.locate import (
    MATERIALS,
    MOLECULES,
    files_at,
    is_potential,
    known_names,
    like,
    locate,
    origin_at,
)
from torchmdx.commands import cli
from torchmdx.models.digest import digest_of, origin_of
from torchmdx.openmm.settings import file_hash


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """One of matgl's, and a crystal of its elements."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DATA / "gauss", "crystal-1")
    atoms = bulk("Si", cubic=True) * (2, 2, 2)
    atoms.rattle(0.02, seed=1)
    numbers = torchmdx.load("crystal-1").card.elements
    atoms.numbers[:] = numbers[0]
    ase.io.write("crystal.xyz", atoms)
    return Path("crystal-1")


def hash_of_all(folder: Path) -> str:
    lines = [
        f"{name} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n" for name in ("model.json", "state.pt")
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_hash_of_a_folder_covers_all_its_files(folder):
    before = origin_at(folder)
    assert (before.name, before.sha256) == ("crystal-1", hash_of_all(folder))
    (folder / "README.md").write_text("not read")
    assert origin_at(folder) == before
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    assert origin_at(folder).sha256 != before.sha256


def test_a_name_is_recorded_as_a_name():
    origin = origin_at()
    assert origin.name == "organic-1" == origin_at("organic-1").name
    assert origin == origin_of(torchmdx.load())


def test_loaded_potentials_know_their_file_until_they_are_trained(folder):
    potential = torchmdx.load(folder)
    assert origin_of(potential) == origin_at(folder)
    assert origin_of(torchmdx.Calculator(potential, dtype="float32").potential) == origin_at(folder)
    potential.train()
    assert origin_of(potential).sha256 == digest_of(potential)


def test_files_of_several_are_one_origin(make_potential, tmp_path):
    path = tmp_path / "all.safetensors"
    torchmdx.save(torchmdx.Ensemble([make_potential(seed=k) for k in (1, 2)]), path)
    origin = origin_of(torchmdx.load(path))
    assert (origin.name, origin.sha256) == ("all.safetensors", hashlib.sha256(path.read_bytes()).hexdigest())


def test_what_is_a_potential(folder):
    assert all(map(is_potential, (folder, "organic-1", "aceff-1.0", "anything.ckpt", "run.safetensors")))
    assert not any(map(is_potential, (".", "crystal.xyz", "data", "nothing")))


def test_the_folder_of_a_training_is_its_best_potential(make_potential, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(FileNotFoundError, match="a folder must hold best.safetensors, or member-0"):
        torchmdx.load(run)
    torchmdx.save(make_potential(), run / "best.safetensors")
    assert is_potential(run)
    assert locate(run) == run / "best.safetensors"
    assert origin_of(torchmdx.load(run)) == origin_at(run)
    assert origin_at(run).name == "run"
    assert origin_at(run).sha256 == origin_at(run / "best.safetensors").sha256


def test_openmm_records_all_files_of_a_folder(folder):
    pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
    assert file_hash(folder) == hash_of_all(folder)
    # Files written before have the hash of the weights.
    weights = hashlib.sha256((folder / "state.pt").read_bytes()).hexdigest()
    for known in (weights, hash_of_all(folder)):
        torchmdx.load(folder, sha256=known)
    with pytest.raises(ValueError, match="the SHA-256 of .*state.pt"):
        torchmdx.load(folder, sha256="0" * 64)


@pytest.mark.parametrize("engine", ["torchmdx", "openmm"])
def test_md_takes_a_folder(folder, engine, capsys):
    if engine == "openmm":
        pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
    options = ["--model", "crystal-1", "--engine", engine, "--no-page", "--device", "cpu", "--timestep", "0.1"]
    run = ["md", "crystal.xyz", "-o", "run", "--temperature", "10", "--seed", "1", *options]
    assert cli.main([*run, "--steps", "2"]) == 0
    assert cli.main([*run, "--steps", "4", "--restart"]) == 0
    assert f"potential crystal-1 (SHA-256 {hash_of_all(folder)[:12]})" in capsys.readouterr().out
    assert hash_of_all(folder) in Path("run.json").read_text()
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 3}))
    assert cli.main([*run, "--steps", "6", "--restart"]) == 2
    assert "model (SHA-256)" in capsys.readouterr().err


def test_evaluate_takes_a_folder_as_first_argument(folder, capsys):
    atoms = ase.io.read("crystal.xyz")
    atoms.calc = torchmdx.Calculator(folder, dtype="float64")
    atoms.get_stress(), atoms.get_forces()
    ase.io.write("labelled.xyz", atoms)
    assert cli.main(["evaluate", "crystal-1", "labelled.xyz", "--predictions", "out.xyz", "--json"]) == 0
    assert ase.io.read("out.xyz").info["potential"] == "crystal-1"
    assert json.loads(capsys.readouterr().out)["potential_sha256"] == hash_of_all(folder)


def test_frames_and_rows_name_the_potential(folder, capsys):
    from ase.db import connect

    assert cli.main(["energy", "crystal.xyz", "--model", "crystal-1", "-o", "energy.xyz"]) == 0
    command = ["relax", "crystal.xyz", "--model", "crystal-1"]
    assert cli.main([*command, "-o", "one.xyz", "--steps", "1", "--no-page"]) in (0, 1)
    assert cli.main([*command, "-o", "all.xyz", "--index", ":", "--fmax", "1000"]) == 0
    for name in ("energy", "one", "all"):
        info = ase.io.read(f"{name}.xyz").info
        assert (info["potential"], info["potential_sha256"]) == ("crystal-1", hash_of_all(folder)), name
    atoms = molecule("H2O")
    atoms.calc = torchmdx.Calculator()
    atoms.get_potential_energy()
    (relaxed,) = torchmdx.relax([molecule("H2O")], fmax=0.5)
    database = connect("rows.db")
    for one in (atoms, relaxed.atoms):
        row = database.get(database.write(one))
        assert row.calculator == "torchmdx"
        assert row.calculator_parameters["potential"] == "organic-1"
        assert row.calculator_parameters["potential_sha256"] == origin_at().sha256
    assert np.isclose(relaxed.atoms.get_potential_energy(force_consistent=True), relaxed.atoms.get_potential_energy())


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("mace-mp-0", MATERIALS),
        ("MACE_MP_0", MATERIALS),
        ("M3GNet-MP-2021.2.8-PES", MATERIALS),
        ("CHGNet", MATERIALS),
        ("mace-off23-medium", MOLECULES),
        ("ani2x", MOLECULES),
        ("AIMNet2", MOLECULES),
        ("aceff-3", "aceff-2.0"),
    ],
)
def test_names_of_other_packages_get_a_potential_for_the_same_structures(name, ours):
    assert ours in known_names()
    assert repr(ours) in like(name)
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at .*did you mean {ours!r}, for "):
        torchmdx.load(name)


def test_spelling_comes_first_and_unknown_families_get_none():
    with pytest.raises(FileNotFoundError, match="did you mean 'organic-1'\\?"):
        torchmdx.load("organic1")
    with pytest.raises(FileNotFoundError, match="did you mean 'aceff-2.0'\\?"):
        torchmdx.load("AceFF2.0")
    assert like("something") is None


def test_the_files_of_a_potential_are_those_of_the_folder_of_a_training(tmp_path):
    assert files_at() == (locate(),)
    run, together = tmp_path / "run", tmp_path / "run" / "ensemble.safetensors"
    members = tuple(run / f"member-{k}" / "best.safetensors" for k in range(2))
    for member in members:
        member.parent.mkdir(parents=True)
        member.touch()
    assert files_at(members[1]) == members[1:]
    assert files_at(run) == members
    assert files_at(f"{run}:pbe") == tuple(member.with_name("best.safetensors:pbe") for member in members)
    together.touch()
    assert files_at(str(run)) == (together,)
    members[0].unlink()
    together.unlink()
    with pytest.raises(FileNotFoundError, match="every member of the ensemble"):
        files_at(run)
