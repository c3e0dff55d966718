"""`torchmdx evaluate`: any data, any units of errors, splits, and what is refused."""

import hashlib
import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from frame_sets import frames_of, molecules, write_store

from torchmdx.checkpoints import save_load
from torchmdx.commands.cli import main
from torchmdx.datasets.splits import write_split
from torchmdx.report.predictor import predict


@pytest.fixture(scope="module")
def potential_file(tmp_path_factory, other):
    path = tmp_path_factory.mktemp("potentials") / "other.safetensors"
    save_load.save(other, path)
    return str(path)


def write_xyz(path, structures, potential):
    """Extended XYZ with the labels of a potential."""
    frames = frames_of(structures, potential)
    labelled = []
    for index, atoms in enumerate(structures):
        one = frames.take(np.array([index]))
        copy = atoms.copy()
        copy.calc = SinglePointCalculator(copy, energy=float(one.energy[0]), forces=one.forces.astype(float))
        labelled.append(copy)
    ase.io.write(path, labelled, format="extxyz")
    return str(path)


def mae(other, store, indices):
    one = predict(other, store, indices, device="cpu", dtype=torch.float64)
    energy = np.abs(one.energy - one.frames.energy) / one.frames.counts
    return energy.mean(), np.abs(one.forces - one.frames.forces).mean()


def run_json(capsys, *arguments):
    assert main(["evaluate", *arguments, "--device", "cpu", "--dtype", "float64", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.nightly
def test_a_store_and_a_file_of_the_same_frames(capsys, tmp_path, potential_file, potential, other, store):
    file = write_xyz(tmp_path / "same.xyz", molecules(24), potential)
    found = run_json(capsys, potential_file, str(store.path), file)
    assert list(found["sets"]) == [store.path.name, "same.xyz"]
    energy, forces = mae(other, store, np.arange(24))
    for numbers in found["sets"].values():
        assert numbers["energy"]["mae"] == pytest.approx(1000 * energy, rel=1e-4)
        assert numbers["forces"]["mae"] == pytest.approx(1000 * forces, rel=1e-4)
        assert numbers["num_frames"] == 24
    assert found["sets"]["same.xyz"]["worst_forces"][0]["file"] == file


def test_the_table(capsys, potential_file, store, other):
    assert main(["evaluate", potential_file, str(store.path), "--units", "kcal", "--device", "cpu"]) == 0
    out, error = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert ["structures", "24"] in lines
    at = out.splitlines().index("Forces, by component / kcal/mol/Å")
    assert float(lines[at + 1][1]) == pytest.approx(23.060548 * mae(other, store, np.arange(24))[1], rel=5e-3)
    assert "100%  24/24" in error


@pytest.mark.nightly
def test_parts_of_a_split(capsys, tmp_path, potential_file, store, other):
    split = {"train": np.arange(0, 14), "validation": np.arange(14, 18), "test": np.arange(18, 24)}
    path = str(tmp_path / "split.npz")
    write_split(path, split, store)
    found = run_json(capsys, potential_file, str(store.path), "--split", path)
    assert {name: one["num_frames"] for name, one in found["sets"].items()} == {"train": 14, "validation": 4, "test": 6}
    found = run_json(capsys, potential_file, str(store.path), "--split", path, "--part", "test")
    assert list(found["sets"]) == ["test"]
    assert found["sets"]["test"]["forces"]["mae"] == pytest.approx(1000 * mae(other, store, split["test"])[1], rel=1e-6)
    empty = str(tmp_path / "empty.npz")
    write_split(empty, {**split, "test": np.zeros(0, np.int64)}, store)
    assert main(["evaluate", potential_file, str(store.path), "--split", empty, "--part", "test"]) == 2
    assert "the part test of" in capsys.readouterr().err


def test_a_report_is_written_and_not_replaced(capsys, tmp_path, potential_file, store):
    pytest.importorskip("matplotlib")
    arguments = ["evaluate", potential_file, str(store.path), "-o", str(tmp_path / "new" / "r"), "--device", "cpu"]
    assert main(arguments) == 0
    page = tmp_path / "new" / "r" / "index.html"
    assert f"report: {page}" in capsys.readouterr().err
    digest = hashlib.sha256(Path(potential_file).read_bytes()).hexdigest()[:12]
    assert f"<title>other.safetensors (SHA-256 {digest}) on molecules</title>" in page.read_text()
    numbers = json.loads((page.parent / "errors.json").read_text())
    assert numbers["sets"]["molecules"]["forces"]["unit"] == "meV/Å"
    assert numbers["environment"]["precision"] == "float32"
    written = page.read_bytes()
    assert main(arguments) == 2
    assert "already holds a report" in capsys.readouterr().err
    assert page.read_bytes() == written
    assert main([*arguments, "--overwrite", "--units", "kcal"]) == 0
    assert page.read_bytes() != written


def test_many_files_are_one_set(capsys, tmp_path, potential_file, potential, store):
    files = [write_xyz(tmp_path / f"{k}.xyz", molecules(2, seed=k), potential) for k in range(7)]
    found = run_json(capsys, potential_file, *files, str(store.path))
    assert {name: one["num_frames"] for name, one in found["sets"].items()} == {"molecules": 24, "7 files": 14}
    (tmp_path / "deep").mkdir()
    namesake = write_xyz(tmp_path / "deep" / "0.xyz", molecules(3), potential)
    found = run_json(capsys, potential_file, files[0], namesake)
    assert list(found["sets"]) == [files[0], namesake]


def test_what_is_plain_from_the_numbers_is_said(capsys, tmp_path, potential_file, potential):
    frames = frames_of(molecules(12), potential)
    frames.forces[:] *= -1
    store = write_store(tmp_path / "s", frames)
    assert main(["evaluate", potential_file, str(store.path), "--device", "cpu"]) == 0
    assert "gradients of the energy, which have the opposite sign" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.xyz"], "no data at 'nowhere.xyz'"),
        (["{store}", "--part", "test"], "--part test needs --split FILE"),
        (["{store}", "--split", "nowhere.npz"], "no split at 'nowhere.npz'"),
        (["{store}", "{store}", "--split", "nowhere.npz"], "a split belongs to one store, or to files that make one"),
        (["{store}", "--device", "tpu"], "device must be cpu or cuda, got 'tpu'"),
    ],
)
def test_what_cannot_be_done_is_said(capsys, potential_file, store, arguments, message):
    assert main(["evaluate", potential_file, *(one.replace("{store}", str(store.path)) for one in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_an_element_beyond_the_potential_is_named(capsys, tmp_path, potential_file):
    structures = molecules(2)
    structures[1].numbers[0] = 53
    store = write_store(tmp_path / "s", frames_of(structures))
    assert main(["evaluate", potential_file, str(store.path), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert "this potential knows atomic numbers up to 35, got 53 in frame 1 of 'data/first.xyz'" in error


def test_without_matplotlib_nothing_is_evaluated_for_nothing(capsys, tmp_path, potential_file, store, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert main(["evaluate", potential_file, str(store.path), "-o", str(tmp_path / "r"), "--device", "cpu"]) == 2
    out, error = capsys.readouterr()
    assert "pip install 'torchmdx[train]'" in error
    assert out == ""
    assert main(["evaluate", potential_file, str(store.path), "--device", "cpu"]) == 0


def test_units_and_names_of_files_are_declared(capsys, tmp_path, potential_file, potential, other, store):
    """An NPZ in hartree and bohr under names of its own."""
    frames = store.gather(np.arange(0, 24, 4))
    hartree, bohr = 27.211386245981, 0.529177210544
    arrays = dict(
        where=frames.positions.reshape(6, 9, 3) / bohr,
        z=frames.atomic_numbers[:9],
        value=frames.energy / hartree,
        force=frames.forces.reshape(6, 9, 3) / hartree * bohr,
    )
    np.savez(tmp_path / "odd.npz", **arrays)
    named = ["--positions-key", "where", "--atomic-numbers-key", "z", "--energy-key", "value", "--forces-key", "force"]
    units = ["--energy-unit", "hartree", "--length-unit", "bohr"]
    found = run_json(capsys, potential_file, str(tmp_path / "odd.npz"), *named, *units)
    energy, forces = mae(other, store, np.arange(0, 24, 4))
    assert found["sets"]["odd.npz"]["energy"]["mae"] == pytest.approx(1000 * energy, rel=1e-4)
    assert found["sets"]["odd.npz"]["forces"]["mae"] == pytest.approx(1000 * forces, rel=1e-4)
    assert main(["evaluate", potential_file, str(store.path), *units]) == 2
    assert "--energy-unit applies to files, but all inputs are stores" in capsys.readouterr().err


def test_broken_frames_are_refused_or_left_out(capsys, tmp_path, potential_file, potential):
    structures = molecules(5)
    file = write_xyz(tmp_path / "b.xyz", structures, potential)
    lines = (tmp_path / "b.xyz").read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.split()[:1] == ["O"])
    first = lines[at].split()
    lines[at] = " ".join([first[0], "nan", *first[2:]])
    (tmp_path / "b.xyz").write_text("\n".join(lines) + "\n")
    assert main(["evaluate", potential_file, file, "--device", "cpu"]) == 2
    assert "positions must be finite" in capsys.readouterr().err
    assert main(["evaluate", potential_file, file, "--device", "cpu", "--broken", "skip", "--json"]) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["sets"]["b.xyz"]["num_frames"] == 4
    assert f"warning: 1 broken frame of {file} was left out" in error


@pytest.mark.nightly
def test_ensembles_in_every_form(capsys, tmp_path, potential, other, store):
    """A folder of a training, a file of several potentials, and repeated options have the same errors."""
    folder = tmp_path / "run"
    store = write_store(tmp_path / "molecules", store.gather(np.arange(8)))
    for number, member in enumerate((potential, other)):
        (folder / f"member-{number}").mkdir(parents=True)
        save_load.save(member, folder / f"member-{number}" / "best.safetensors")
    files = [str(folder / f"member-{number}" / "best.safetensors") for number in (0, 1)]
    save_load.save(save_load.load(folder), tmp_path / "both.safetensors")
    data = str(store.path)
    found = [
        run_json(capsys, *given)
        for given in (
            [str(folder), data],
            [str(tmp_path / "both.safetensors"), data],
            ["--model", files[0], "--model", files[1], data],
        )
    ]
    assert all(one["sets"] == found[0]["sets"] for one in found)
    numbers = found[0]["sets"][store.path.name]
    # The labels are those of the first member, so the mean is off by half of what the second one is.
    assert numbers["forces"]["mae"] == pytest.approx(500 * mae(other, store, np.arange(8))[1], rel=1e-6)
    assert numbers["forces_spread"]["error_over_spread"] == pytest.approx(2**-0.5, rel=1e-3)
    assert numbers["forces_spread"]["rank_correlation"] == pytest.approx(1.0, abs=1e-3)
    assert main(["evaluate", str(folder), data, "--device", "cpu", "-o", str(tmp_path / "r")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("Spread of the ensemble, force on an atom / meV/Å")
    assert [line.split()[0] for line in lines[at + 1 : at + 5]] == ["RMS", "RMS", "correlation", "rank"]
    assert lines[at + 3].split()[1] == "1.00"
    page = (tmp_path / "r" / "index.html").read_text()
    assert "<h2>Spread and error</h2>" in page
    assert '<td class="word">members</td><td class="word">2</td>' in page
    pictures = {path.name for path in (tmp_path / "r").glob("spread_*.png")}
    assert pictures == {"spread_energy_molecules.png", "spread_forces_molecules.png"}
