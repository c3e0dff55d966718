"""The data of a run: files for each part, copies of files that have changed, isolated atoms, weights of frames."""

import os
import re

import ase.io
import made_up
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

import torchmdx
from torchmdx.commands.cli import main
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import fit_references, isolated_energies
from torchmdx.datasets.splits import read_split, remarks_on_copies
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.training.config import OptimizerSection
from torchmdx.training.config_file import make_config
from torchmdx.training.labelled import frame_weights, label
from torchmdx.training.loss_section import LossSection
from torchmdx.training.open_data import open_data
from torchmdx.training.step import VALUES, TrainStep


def write(path, count, seed=0, lone=None, **info):
    """An extended XYZ file of molecules; lone: energies of isolated atoms that come first."""
    found = []
    for number, energy in (lone or {}).items():
        atoms = Atoms([number])
        atoms.info["config_type"] = "IsolatedAtom"
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        found.append(atoms)
    for frame in made_up.frames(count, seed):
        atoms = Atoms(frame.atomic_numbers, frame.positions)
        atoms.info |= info
        atoms.calc = SinglePointCalculator(atoms, energy=frame.energy[0], forces=frame.forces)
        found.append(atoms)
    ase.io.write(path, found)
    return str(path)


def opened(directory, update=True, **data):
    return open_data(make_config({"data": data}).data, directory, update=update)


def origins(store, indices):
    return sorted({store.origin(int(k))[0] for k in indices})


def test_each_part_may_have_its_own_files(tmp_path):
    train = [write(tmp_path / "a.xyz", 9), write(tmp_path / "b.xyz", 6, seed=1)]
    validation, test = write(tmp_path / "v.xyz", 4, seed=2), write(tmp_path / "t.xyz", 3, seed=3)
    store, parts = opened(tmp_path / "run", train=train, validation=validation, test=[test])
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [15, 4, 3]
    assert [origins(store, parts[name]) for name in parts] == [train, [validation], [test]]
    store, parts = opened(tmp_path / "drawn", train=train, validation=0.2)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [12, 3, 0]
    store, parts = opened(tmp_path / "path", path=train, train=5, test=test)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [5, 2, 3]
    assert origins(store, parts["test"]) == [test]
    assert origins(store, [*parts["train"], *parts["validation"]]) == train


def test_training_frames_that_are_also_in_a_file_of_another_part_are_left_out(tmp_path):
    train = [write(tmp_path / "a.xyz", 9), write(tmp_path / "copy.xyz", 6, seed=2)]
    validation = write(tmp_path / "v.xyz", 4, seed=2)
    store, parts = opened(tmp_path / "run", train=train, validation=validation)
    assert [len(parts[name]) for name in ("train", "validation", "test")] == [11, 4, 0]
    assert not np.isin(store.copies[parts["train"]], store.copies[parts["validation"]]).any()
    assert remarks_on_copies(store, parts) == ["4 frames left out, with the same structure as frames of a part"]


@pytest.mark.nightly
def test_a_new_run_says_how_many_copies_there_are(tmp_path, capsys):
    data = write(tmp_path / "a.xyz", 12), write(tmp_path / "b.xyz", 12)
    config = tmp_path / "config.yaml"
    settings = {
        "data": {"path": list(data), "validation": 4, "test": 0},
        "model": {"num_channels": 4, "num_layers": 0, "num_radial": 4},
        "training": {"epochs": 1, "batch_size": 8, "device": "cpu"},
        "output": {"directory": str(tmp_path / "run")},
    }
    config.write_text(yaml.safe_dump(settings))
    assert main(["train", str(config)]) == 0
    assert "12 frames of 24 with the same structure as another frame" in capsys.readouterr().err


def test_files_of_parts_that_cannot_be_are_refused(tmp_path):
    file, other = write(tmp_path / "a.xyz", 9), write(tmp_path / "b.xyz", 5, lone={1: -13.0})
    with pytest.raises(ValueError, match="path must not be given if train names files, got path 'x'"):
        opened(tmp_path, path="x", train=file)
    with pytest.raises(ValueError, match="test must not name files if split names a recorded split"):
        opened(tmp_path, path=file, test=other, split="s.json")
    with pytest.raises(ValueError, match=r"in one part of the data, got '.*a.xyz' in train and test"):
        opened(tmp_path, train=file, test=file)
    only = write(tmp_path / "c.xyz", 0, lone={1: -13.0})
    with pytest.raises(ValueError, match=r"data.test must have at least one frame, got none in .*c.xyz"):
        opened(tmp_path, train=file, test=only)


def test_a_copy_of_files_that_have_changed_is_made_again(tmp_path, capsys):
    file = write(tmp_path / "a.xyz", 10)
    before = opened(tmp_path / "run", path=file)[0].digest
    written = (tmp_path / "run" / "data.store" / "energy.bin").stat().st_mtime_ns
    capsys.readouterr()
    assert opened(tmp_path / "run", path=file)[0].digest == before
    assert (tmp_path / "run" / "data.store" / "energy.bin").stat().st_mtime_ns == written
    write(file, 12, seed=4)
    assert len(opened(tmp_path / "run", update=False, path=file)[0]) == 10
    assert len(opened(tmp_path / "run", path=file)[0]) == 12
    assert re.search("out of date, because of .*a.xyz: the files are converted again", capsys.readouterr().err)
    scaled = opened(tmp_path / "run", path=file, energy_unit="meV")[0]
    assert "out of date, because of how files are read" in capsys.readouterr().err
    assert abs(scaled.gather([0]).energy[0]) < 20


@pytest.mark.nightly
def test_a_resumed_run_goes_on_with_its_frames_and_says_so(tmp_path, capsys):
    file = write(tmp_path / "a.xyz", 20)
    data = {"path": file, "validation": 4, "test": 0, "references": "isolated"}
    values = made_up.values(file, data=data, training={"epochs": 1})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]
    assert main(words) == 0
    os.utime(file, ns=(0, 0))
    write(file, 25)
    capsys.readouterr()
    assert main([*words, "--resume", "--training.epochs", "2"]) == 0
    assert "the files of the data have changed since" in capsys.readouterr().err
    assert len(Store.open(tmp_path / "run" / "data.store")) == 20


LONE = {1: -13.1, 6: -1028.0, 8: -2041.5}


def test_isolated_atoms_are_the_references_and_are_not_trained_on(tmp_path, capsys):
    file = write(tmp_path / "a.xyz", 20, lone=LONE)
    data = {"path": file, "validation": 4, "test": 0, "references": "isolated"}
    values = made_up.values(file, data=data, training={"epochs": 1})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]) == 0
    assert "reference energies: isolated atoms of H, C, O\n" in capsys.readouterr().err
    references = torchmdx.load(tmp_path / "run" / "best.safetensors").reference_energies
    assert {z: float(references[z]) for z in LONE} == pytest.approx(LONE)
    store = Store.open(tmp_path / "run" / "data.store")
    parts = read_split(tmp_path / "run" / "split.json", store)
    assert (len(store), len(parts["train"]), len(parts["validation"])) == (23, 16, 4)
    assert not store.isolated[np.concatenate([*parts.values()])].any()
    assert np.flatnonzero(store.isolated).tolist() == [0, 1, 2]


def test_isolated_atoms_get_a_constant_that_is_fitted(tmp_path, capsys):
    file = write(tmp_path / "a.xyz", 30, lone=LONE)
    made_up.config_file(tmp_path, file, data={"path": file}, training={"epochs": 1})
    assert main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    used = torchmdx.load(tmp_path / "run" / "best.safetensors").reference_energies.tolist()
    constants = [used[z] - LONE[z] for z in (1, 6, 8)]
    assert max(map(abs, constants)) > 0.05  # atoms are bound
    assert re.search(
        r"reference energies: isolated atoms of H, C, O, plus fitted constants of \S+ eV, \S+ eV, \S+ eV", said
    )
    store = Store.open(tmp_path / "run" / "data.store")
    train = read_split(tmp_path / "run" / "split.json", store)["train"]
    np.testing.assert_allclose([used[z] for z in (1, 6, 8)], fit_references(store, train, 8)[[1, 6, 8]], rtol=1e-9)


def test_constants_that_compositions_do_not_determine_stay_near_the_isolated_atoms(tmp_path):
    numbers, energy = np.array([8, 1, 1]), LONE[8] + 2 * LONE[1] - 9.0
    with StoreWriter(tmp_path / "water") as writer:
        for k in range(20):
            positions = np.array([[0, 0, 0], [0.95 + k / 100, 0, 0], [0, 0.95, 0]])
            writer.add(Frames.single(positions, numbers, energy=energy), "w.xyz", k)
    found = fit_references(Store.open(tmp_path / "water"), np.arange(20), 8, base={1: LONE[1], 8: LONE[8]})
    # The shortest vector with c8 + 2 c1 = -9.
    np.testing.assert_allclose(found[[8, 1]] - [LONE[8], LONE[1]], [-1.8, -3.6], atol=1e-9)


def test_elements_without_an_isolated_atom_are_fitted(tmp_path):
    store, parts = opened(tmp_path / "run", path=write(tmp_path / "a.xyz", 30, lone={8: LONE[8]}))
    known = isolated_energies(store)
    assert known == pytest.approx({8: LONE[8]})
    found = fit_references(store, parts["train"], 8, known)
    frames = store.gather(parts["train"])
    counts = np.array([[(n == z).sum() for z in (1, 6)] for n in np.split(frames.atomic_numbers, frames.offsets[1:-1])])
    oxygens = np.array([(n == 8).sum() for n in np.split(frames.atomic_numbers, frames.offsets[1:-1])])
    wanted = np.linalg.lstsq(counts, frames.energy - LONE[8] * oxygens, rcond=None)[0]
    np.testing.assert_allclose(found[[1, 6, 8]], [*wanted, LONE[8]], rtol=1e-9)


def test_isolated_atoms_that_disagree_or_are_molecules_are_refused(tmp_path):
    write(tmp_path / "a.xyz", 5, lone={1: -13.0})
    write(tmp_path / "b.xyz", 5, lone={1: -13.6})
    store, _ = opened(tmp_path / "run", path=[str(tmp_path / name) for name in ("a.xyz", "b.xyz")])
    with pytest.raises(ValueError, match=r"element 1 must have one energy, got -13.000000 eV \(frame 0 of .*a.xyz"):
        isolated_energies(store)
    with pytest.raises(ValueError, match="a frame of config_type IsolatedAtom must have one atom"):
        opened(tmp_path / "new", path=write(tmp_path / "c.xyz", 2, config_type="IsolatedAtom"))


def test_weights_of_frames_scale_their_losses_and_not_the_errors(tmp_path):
    """Compared with the loss of each frame by itself."""
    write(tmp_path / "a.xyz", 3, config_weight=2.0, config_type="hot")
    write(tmp_path / "b.xyz", 2, seed=5)
    store, _ = opened(
        tmp_path / "run", path=[str(tmp_path / name) for name in ("a.xyz", "b.xyz")], validation=0, test=0
    )
    frames = store.gather(np.arange(5))
    weights = frame_weights(frames, {"hot": 1.5, "Default": 0.5})
    assert weights.tolist() == [3.0, 3.0, 3.0, 0.5, 0.5]
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0, max_z=8)).double()
    step = TrainStep(potential, LossSection(), OptimizerSection())
    step.set_rates(0.0, (2.0, 1.0, 0.0))
    sizes = dict(num_atoms=frames.num_atoms + 9, num_systems=6, cutoff=4.0, dtype=torch.float64)
    labelled = label(frames, np.arange(5), frame_weight=weights, **sizes)
    found = dict(zip(VALUES, step.evaluate(labelled).tolist(), strict=True))
    results = [evaluate(potential, frames.system(k)) for k in range(5)]
    per_atom = np.array(
        [(float(r.energy[0]) - e) / n for r, e, n in zip(results, frames.energy, frames.counts, strict=True)]
    )
    off = np.concatenate([r.forces.numpy() for r in results]) - frames.forces
    assert found["energy_loss"] == pytest.approx((weights * per_atom**2).mean(), rel=1e-6)
    of_atoms = np.repeat(weights, frames.counts)[:, None]
    assert found["forces_loss"] == pytest.approx((of_atoms * off**2).mean(), rel=1e-6)
    assert found["energy"] == pytest.approx(np.abs(per_atom).mean(), rel=1e-6)
    assert found["forces"] == pytest.approx(np.abs(off).mean(), rel=1e-6)


@pytest.mark.nightly
def test_weights_of_types_reach_the_training_and_unknown_types_are_refused(tmp_path, capsys):
    file = write(tmp_path / "a.xyz", 16, config_type="hot")
    data = {"path": file, "validation": 4, "test": 0, "references": "isolated"}
    values = made_up.values(file, data=data, training={"epochs": 1})
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values))
    words = ["train", str(tmp_path / "c.yaml"), "--output.directory"]
    assert main([*words, str(tmp_path / "no"), "--loss.config_type_weights", "{cold: 2.0}"]) == 2
    assert "config_type_weights must name types of" in (said := capsys.readouterr().err)
    assert "data.store': hot, got 'cold'" in said
    rows = {}
    for weight in (1.0, 4.0):
        directory = tmp_path / str(weight)
        assert main([*words, str(directory), "--loss.config_type_weights", f"{{hot: {weight}}}"]) == 0
        rows[weight] = (directory / "steps.csv").read_text().splitlines()[1].split(",")
    names = (tmp_path / "1.0" / "steps.csv").read_text().splitlines()[0].split(",")
    first = {weight: dict(zip(names, map(float, row), strict=True)) for weight, row in rows.items()}
    assert first[4.0]["loss"] == pytest.approx(4 * first[1.0]["loss"], rel=1e-5)
    assert first[4.0]["energy_loss"] == pytest.approx(4 * first[1.0]["energy_loss"], rel=1e-5)


@pytest.mark.parametrize("weight", [-1.0, np.nan])
def test_impossible_weights_are_broken_frames(tmp_path, weight):
    with pytest.raises(ValueError, match="config_weight must be finite and >= 0"):
        opened(tmp_path / "run", path=write(tmp_path / "a.xyz", 3, config_weight=weight))
