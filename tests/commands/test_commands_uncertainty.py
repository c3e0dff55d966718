"""`torchmdx uncertainty`: what it writes where, which frames it takes, and what it refuses."""

import os
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

import torchmdx
from torchmdx.ase import calculator
from torchmdx.checkpoints.save_load import load_one
from torchmdx.commands.cli import main
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.splits import split, write_split
from torchmdx.datasets.store import Store
from torchmdx.models.heads import MultiHead
from torchmdx.report.rigidity import add_uncertainty

RELEASED = Path(os.environ.get("RELEASED_POTENTIALS", "released")) / "TensorNet-MatPES-PBE-v2025.1-PES"


@pytest.fixture
def folder(tmp_path, monkeypatch, make_potential):
    """A folder with model.safetensors, and frames.xyz with 30 labelled molecules."""
    monkeypatch.chdir(tmp_path)
    torchmdx.save(make_potential(dtype=torch.float32, num_layers=0), "model.safetensors")
    random, frames = np.random.default_rng(0), []
    for number in range(30):
        atoms = molecule(("CH3OH", "H2O", "CH4")[number % 3])
        atoms.positions += 0.1 * random.normal(size=(len(atoms), 3))
        atoms.calc = SinglePointCalculator(atoms, energy=random.normal(), forces=np.zeros((len(atoms), 3)))
        frames.append(atoms)
    ase.io.write("frames.xyz", frames)
    return tmp_path


def run(*words) -> int:
    return main(["uncertainty", *map(str, words), "--device", "cpu"])


def test_a_file_gets_it_in_place(folder, capsys):
    before = torchmdx.load("model.safetensors")
    assert run("model.safetensors", "frames.xyz") == 0
    said, after = capsys.readouterr(), torchmdx.load("model.safetensors")
    assert (after.uncertainty.num_frames, after.uncertainty.num_calibration) == (20, 10)
    assert "covariance: last layer of" in said.out
    assert "90.0% of energies within" in said.out
    assert all(torch.equal(value, after.state_dict()[name]) for name, value in before.state_dict().items())
    assert run("model.safetensors", "frames.xyz", "--fraction", 0.5, "--seed", 3, "-o", "other.safetensors") == 0
    assert torchmdx.load("other.safetensors").uncertainty.num_calibration == 15
    assert torchmdx.load("model.safetensors").uncertainty.num_calibration == 10


@pytest.mark.nightly
def test_a_split_and_calibration_frames_are_taken(folder):
    convert(["frames.xyz"], "data.store", log=lambda line: None)
    store = Store.open("data.store")
    parts = split(store, validation=11, test=4)
    write_split("split.json", parts, store)
    assert run("model.safetensors", "data.store", "--split", "split.json") == 0
    found = torchmdx.load("model.safetensors").uncertainty
    expected = add_uncertainty(
        torchmdx.load("model.safetensors"), (store, parts["train"]), (store, parts["validation"])
    ).uncertainty
    torch.testing.assert_close(found.covariance, expected.covariance)
    assert (found.num_frames, found.num_calibration) == (15, 11)
    assert run("model.safetensors", "data.store", "--calibration", "frames.xyz") == 0
    found = torchmdx.load("model.safetensors").uncertainty
    assert (found.num_frames, found.num_calibration) == (30, 30)


@pytest.mark.nightly
def test_potentials_of_other_formats_and_names_need_an_output(folder, data):
    assert run("organic-1", "frames.xyz", "--fit-references", "-o", "organic.safetensors") == 0
    assert torchmdx.load("organic.safetensors").uncertainty.size == 65
    assert run(data / "tensornet.ckpt", "frames.xyz", "-o", "converted.safetensors") == 0
    found = torchmdx.load("converted.safetensors")
    assert found.uncertainty.num_frames == 20
    plain = torchmdx.load(data / "tensornet.ckpt")
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in plain.state_dict().items())


def test_one_head_of_several_gets_it(folder, make_potential):
    low, high = (make_potential(dtype=torch.float32, seed=seed, num_layers=0) for seed in (1, 2))
    high.network = low.network
    torchmdx.save(MultiHead({"low": low, "high": high}, "low"), "heads.safetensors")
    assert run("heads.safetensors", "frames.xyz", "--head", "high") == 0
    known = {name: load_one("heads.safetensors", head=name).uncertainty for name in ("low", "high")}
    assert known["low"] is None
    assert known["high"].num_calibration == 10


@pytest.mark.nightly
def test_labels_with_other_references_are_pointed_out(folder, capsys):
    frames = ase.io.read("frames.xyz", ":")
    for atoms in frames:
        energy = atoms.get_potential_energy() + 500.0 * len(atoms)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.get_forces())
    ase.io.write("shifted.xyz", frames)
    assert run("model.safetensors", "shifted.xyz", "--fraction", 0.5) == 0
    assert "leave these out with --fit-references" in capsys.readouterr().err
    assert run("model.safetensors", "shifted.xyz", "--fraction", 0.5, "--fit-references") == 0
    assert "--fit-references" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("organic-1", "frames.xyz"), "is stored in a .safetensors file: name it by -o, got 'organic-1' without"),
        (("model.safetensors", "frames.xyz", "-o", "x.ckpt"), "-o must be a .safetensors file, got 'x.ckpt'"),
        (("model.safetensors", "frames.xyz", "-o", "model.safetensors"), "model.safetensors"),
        (("model.safetensors", "frames.xyz", "--fraction", "1.5"), "--fraction must be between 0 and 1, got 1.5"),
        (
            ("model.safetensors", "frames.xyz", "--split", "a.json", "--calibration", "b.xyz"),
            "--calibration and --split both name frames for the scale",
        ),
        (("model.safetensors", "few.xyz"), "at least 11 labelled structures are needed, got 10"),
    ],
)
def test_what_cannot_be_done_is_refused(folder, capsys, words, text):
    ase.io.write("few.xyz", ase.io.read("frames.xyz", ":10"))
    content = (folder / "model.safetensors").read_bytes()
    assert run(*words) == 2
    assert text in capsys.readouterr().err
    assert (folder / "model.safetensors").read_bytes() == content


@pytest.mark.nightly
@pytest.mark.skipif(not RELEASED.is_dir(), reason="needs the released potentials, in the folder $RELEASED_POTENTIALS")
def test_a_released_potential_gets_it(folder):
    """A gated head, of a folder of matgl, on frames that it was not trained on."""
    words = ("--fit-references", "--force-atoms", 0, "-o", "released.safetensors")
    assert run(RELEASED, "frames.xyz", *words) == 0
    found = torchmdx.load("released.safetensors")
    assert found.uncertainty.size == found.config.num_channels + 1
    atoms = ase.io.read("frames.xyz", 0)
    atoms.calc = torchmdx.Calculator(found, device="cpu")
    atoms.get_potential_energy()
    assert 0 < atoms.calc.results["energies_uncertainty"].max() < 1e3


def test_energies_have_it_where_it_must_be_asked_for(folder, capsys, monkeypatch):
    """As on a GPU."""
    run("model.safetensors", "frames.xyz")
    monkeypatch.setattr(calculator, "wants_uncertainty", lambda potential, devices, asked, most=None: bool(asked))
    capsys.readouterr()
    words = ["--model", "model.safetensors", "--index", "0", "--device", "cpu", "--json"]
    assert main(["energy", "frames.xyz", *words]) == 0
    assert '"energy_uncertainty": ' in capsys.readouterr().out
