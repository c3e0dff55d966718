"""`torchmdx data` from the command line."""

import json

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.commands.cli import main
from torchmdx.datasets.splits import read_split
from torchmdx.datasets.store import Store


@pytest.fixture
def store(tmp_path):
    """Ten each of water, methane and ammonia, converted by the command."""
    generator = np.random.default_rng(8)
    structures = []
    for name in ("H2O", "CH4", "NH3"):
        for _ in range(10):
            atoms = molecule(name)
            atoms.positions += generator.normal(scale=0.02, size=atoms.positions.shape)
            atoms.calc = SinglePointCalculator(atoms, energy=-4.0 * len(atoms), forces=atoms.positions * 0)
            structures.append(atoms)
    ase.io.write(tmp_path / "m.xyz", structures)
    assert main(["data", "convert", str(tmp_path / "m.xyz"), "-o", str(tmp_path / "store")]) == 0
    return tmp_path / "store"


def run(capsys, *words) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["data", *map(str, words)])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_convert_says_what_it_did(tmp_path, capsys):
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 0.74]], info={"mine": -1.0, "q": 1})
    ase.io.write(tmp_path / "h.xyz", [atoms, atoms])
    options = ("--energy-key", "mine", "--charge-key", "q", "--energy-unit", "hartree", "-o", tmp_path / "s")
    status, out, err = run(capsys, "convert", tmp_path / "h.xyz", *options)
    assert (status, err) == (0, "")
    assert out.splitlines() == [f"{tmp_path / 'h.xyz'}: ase, 2 frames", f"wrote {tmp_path / 's'}: 2 frames, 4 atoms"]
    frames = Store.open(tmp_path / "s").gather([0])
    assert frames.energy[0] == pytest.approx(-27.211386245981)
    assert frames.charge[0] == 1.0


def test_convert_refuses_what_is_there_and_overwrites_when_told(tmp_path, store, capsys):
    again = ("convert", tmp_path / "m.xyz", "-o", store)
    status, _, err = run(capsys, *again)
    assert status == 2
    assert "there is a store at" in err
    assert "--overwrite replaces it" in err
    assert run(capsys, *again, "--overwrite")[0] == 0


def test_stats(store, capsys):
    status, out, _ = run(capsys, "stats", store)
    assert status == 0
    assert "30 frames, 120 atoms, 3 formulas" in out
    status, out, _ = run(capsys, "stats", store, "--json", "--outliers", 0)
    assert json.loads(out)["sizes"] == {"3": 10, "4": 10, "5": 10}
    assert run(capsys, "stats", store, "--outliers", -1)[0] == 2


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ([], (27, 3, 0)),
        (["--train", "20", "--validation", "0.1", "--test", "5"], (20, 3, 5)),
        (["--by", "formula", "--validation", "10", "--test", "0.1"], (10, 10, 10)),
        (["--by", "formula", "--validation", "11"], (10, 20, 0)),
    ],
)
def test_split_is_drawn(tmp_path, store, capsys, words, sizes):
    status, out, err = run(capsys, "split", store, "-o", tmp_path / "s.json", "--seed", 4, *words)
    assert (status, err) == (0, "")
    assert out == f"wrote {tmp_path / 's.json'}: train {sizes[0]}, validation {sizes[1]}, test {sizes[2]}\n"
    parts = read_split(tmp_path / "s.json", Store.open(store))
    assert tuple(len(parts[name]) for name in ("train", "validation", "test")) == sizes
    if "formula" in words:
        of = [{int(k) // 10 for k in part} for part in parts.values()]
        assert sum(map(len, of)) == 3


def test_split_keeps_an_existing_file(tmp_path, store, capsys):
    output = tmp_path / "s.json"
    output.write_text("precious")
    status, out, err = run(capsys, "split", store, "-o", output)
    assert (status, out) == (2, "")
    assert f"must not exist, got {output}; --overwrite replaces them" in err
    assert output.read_text() == "precious"
    assert run(capsys, "split", store, "-o", output, "--overwrite")[0] == 0
    assert len(read_split(output, Store.open(store))["train"]) == 27


@pytest.mark.parametrize("kind", ["txt", "npy", "npz"])
def test_split_from_files_of_indices(tmp_path, store, capsys, kind):
    train, validation = np.array([5, 1, 9]), np.array([0, 29])
    if kind == "npz":
        np.savez(tmp_path / "s.npz", idx_train=train, idx_val=validation, idx_test=np.zeros(0))
        words = ["--from", tmp_path / "s.npz"]
    else:
        for name, indices in (("t", train), ("v", validation)):
            if kind == "npy":
                np.save(tmp_path / f"{name}.npy", indices)
            else:
                (tmp_path / f"{name}.txt").write_text("\n".join(map(str, indices)))
        words = ["--train-indices", tmp_path / f"t.{kind}", "--validation-indices", tmp_path / f"v.{kind}"]
    assert run(capsys, "split", store, "-o", tmp_path / "s.json", *words)[0] == 0
    parts = read_split(tmp_path / "s.json", Store.open(store))
    assert [parts[name].tolist() for name in ("train", "validation", "test")] == [[1, 5, 9], [0, 29], []]


@pytest.mark.parametrize(
    ("files", "words", "said"),
    [
        ({"t": "1 2 30"}, [], "train must be of frames 0 to 29 of the store, got 30"),
        ({"t": "1, 2, 2"}, [], "frame 2 must be in one part and once, got it in train and train"),
        ({"t": "1 2", "v": "7 2"}, [], "frame 2 must be in one part and once, got it in train and validation"),
        ({"t": "1 two"}, [], "must hold the numbers of frames"),
        ({"t": "1 2.5"}, [], "indices must be whole numbers"),
        ({"v": "1 2"}, [], "train must have at least one frame, got none"),
        ({"t": "1"}, ["--test", "3"], "got indices and random sizes"),
        ({}, ["--validation", "31"], "the parts at most the 30 frames"),
        ({}, ["--validation", "1.5"], "validation must be a whole number, or a fraction below 1, got 1.5"),
        ({}, ["--from", "nowhere.npz"], "no split at 'nowhere.npz'"),
    ],
)
def test_splits_that_cannot_be(tmp_path, store, capsys, files, words, said):
    words = list(words)
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        words += [{"t": "--train-indices", "v": "--validation-indices"}[name], tmp_path / name]
    status, _, err = run(capsys, "split", store, "-o", tmp_path / "s.json", *words)
    assert status == 2
    assert said in err
    assert not (tmp_path / "s.json").exists()


def test_the_command_offers_every_format_and_key():
    import argparse

    from torchmdx.commands.reading_options import add_reading_options, reading_of
    from torchmdx.datasets.blocks import KEY_NAMES
    from torchmdx.datasets.readers import FORMATS

    parser = argparse.ArgumentParser()
    add_reading_options(parser)
    for name in FORMATS:
        assert reading_of(parser.parse_args(["--format", name]))["format"] == name
    given = [word for name in KEY_NAMES for word in (f"--{name.replace('_', '-')}-key", f"my_{name}")]
    assert reading_of(parser.parse_args(given))["keys"] == {name: f"my_{name}" for name in KEY_NAMES}
