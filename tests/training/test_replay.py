"""Fine-tuning with replayed frames: their labels, their share of each batch, and what they preserve."""

import subprocess
from dataclasses import replace

import forked_programs
import made_up
import numpy as np
import pytest
import torch
import yaml
from ase.build import bulk
from ase.calculators.emt import EMT
from structures import DATA

import torchmdx
from torchmdx.checkpoints.save_load import save
from torchmdx.commands.cli import main
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.engines.plan import Network
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.report.history import read_table
from torchmdx.training.config_file import make_config
from torchmdx.training.run import train

SHIFT = {1: 0.5, 6: -2.0, 8: 3.0}


def other_theory(index, frame):
    """Doubled forces, and other energies of the elements."""
    energy = frame.energy + sum(SHIFT[int(z)] for z in frame.atomic_numbers)
    return replace(frame, energy=energy, forces=2 * frame.forces, config_type=np.array(["new"]))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a potential, a store of new frames at another level of theory, and one of old frames."""
    folder = tmp_path_factory.mktemp("world")
    torch.manual_seed(1)
    potential = Potential(TensorNetConfig(num_channels=8, num_layers=1, num_radial=8, cutoff=4.0, max_z=8))
    potential.card = Card(elements=(1, 6, 8))
    for z, energy in made_up.LONE.items():
        potential.reference_energies[z] = energy
    save(potential, folder / "base.safetensors")
    made_up.store(folder / "new", 24, seed=5, sizes=(3, 5), change=other_theory)
    made_up.store(folder / "old", 20, seed=6)
    return folder


@pytest.fixture
def run(tmp_path, world):
    def start(name, *words, **finetune):
        values = made_up.values(
            world / "new",
            data={"validation": 4, "test": 4},
            training={"epochs": 2, "batch_size": 4},
            finetune={"checkpoint": str(world / "base.safetensors"), "references": "shift"} | finetune,
        )
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(values))
        status = main(["train", str(tmp_path / f"{name}.yaml"), "--output.directory", str(tmp_path / name), *words])
        return status, tmp_path / name

    return start


@pytest.mark.nightly
def test_base_labels_are_the_predictions_of_the_shifted_base(run, world):
    status, place = run("run", "--optimizer.learning_rate", "1e-12", replay=str(world / "old"))
    assert status == 0
    mixed, new, old = (Store.open(path) for path in (place / "with_replay.store", world / "new", world / "old"))
    assert len(mixed) == len(new) + len(old)
    assert mixed.gather([3]).energy == new.gather([3]).energy
    base, tuned = torchmdx.load(world / "base.safetensors"), torchmdx.load(place / "last.safetensors")
    shift = (tuned.reference_energies - base.reference_energies).numpy()
    assert abs(shift[8]) > 1.0
    for index in (0, 7):
        frames = mixed.gather([len(new) + index])
        np.testing.assert_array_equal(frames.positions, old.gather([index]).positions)
        found = evaluate(base, frames.system(0))
        expected = float(found.energy[0]) + shift[frames.atomic_numbers].sum()
        assert frames.energy[0] == pytest.approx(expected, abs=1e-3)
        np.testing.assert_allclose(frames.forces, found.forces, atol=1e-4)
        assert not np.allclose(frames.forces, old.gather([index]).forces, atol=1e-2)
    epochs = read_table(place / "epochs.csv")
    assert epochs["epoch"].tolist() == [0, 1, 2]
    assert epochs["old_forces"][0] < 0.01 < 10 < epochs["validation_forces"][0]
    np.testing.assert_allclose(epochs["choice_loss"], (epochs["validation_loss"] + epochs["old_loss"]) / 2, rtol=1e-6)


def test_labels_of_files_move_with_the_fitted_references(run, world):
    status, place = run("run", replay=[str(world / "old")], replay_labels="file", replay_weight=3.0)
    assert status == 0
    mixed, new, old = (Store.open(path) for path in (place / "with_replay.store", world / "new", world / "old"))
    base, tuned = torchmdx.load(world / "base.safetensors"), torchmdx.load(place / "last.safetensors")
    shift = (tuned.reference_energies - base.reference_energies).numpy()
    frames, given = mixed.gather(np.arange(len(new), len(mixed))), old.gather(np.arange(len(old)))
    np.testing.assert_array_equal(frames.forces, given.forces)
    moved = np.bincount(given.frame_index, shift[given.atomic_numbers])
    np.testing.assert_allclose(frames.energy, given.energy + moved, atol=1e-6)
    assert (frames.weight == 3.0).all()
    assert (mixed.gather(np.arange(len(new))).weight == 1.0).all()


@pytest.mark.nightly
def test_what_is_replayed_is_forgotten_less(run, world, capsys):
    """The same training with and without replay: less drift of the forces on structures in neither."""
    words = ["--training.epochs", "12", "--optimizer.learning_rate", "0.01"]
    _, alone = run("alone", *words)
    said = capsys.readouterr().out
    assert "were not measured: finetune.replay trains and validates such structures too" in said
    _, kept = run("kept", *words, replay=str(world / "old"))
    said = capsys.readouterr().out
    assert "new frames (test)" in said
    assert "moved by" in said
    base = torchmdx.load(world / "base.safetensors")
    unseen = [frames.system(0) for frames in made_up.frames(10, seed=7)]
    wanted = torch.cat([evaluate(base, system).forces for system in unseen])
    drift = {}
    for name, place in (("alone", alone), ("kept", kept)):
        tuned = torchmdx.load(place / "best.safetensors")
        drift[name] = float((torch.cat([evaluate(tuned, s).forces for s in unseen]) - wanted).abs().mean())
        errors = read_table(place / "epochs.csv")["validation_forces"]
        assert errors[-1] < errors[0]
    assert drift["kept"] < 0.8 * drift["alone"]


@pytest.mark.nightly
def test_a_resumed_run_matches_an_uninterrupted_one(run, world):
    replay = {"replay": str(world / "old"), "replay_share": 0.25}
    _, whole = run("whole", "--training.epochs", "3", "--schedule.name", "constant", **replay)
    _, halves = run("halves", "--training.epochs", "1", "--schedule.name", "constant", **replay)
    made = (halves / "with_replay.store" / "store.json").stat().st_mtime_ns
    status, _ = run("halves", "--training.epochs", "3", "--schedule.name", "constant", "--resume", **replay)
    assert status == 0
    assert (halves / "with_replay.store" / "store.json").stat().st_mtime_ns == made
    assert (whole / "epochs.csv").read_text() == (halves / "epochs.csv").read_text()
    a, b = (torchmdx.load(place / "last.safetensors").state_dict() for place in (whole, halves))
    assert all(torch.equal(a[name], b[name]) for name in a)
    status, _ = run("halves", "--resume", **replay | {"replay_weight": 2.0})
    assert status == 2


@pytest.mark.nightly
def test_two_processes_match_one_and_members_have_stores_of_their_own(run, world, tmp_path):
    words, replay = ["--training.precision", "float64"], {"replay": str(world / "old")}
    _, one = run("one", *words, **replay)
    command = [*forked_programs.command(), "train", str(tmp_path / "one.yaml"), *words]
    for name, more in (("two", ["--devices", "2"]), ("both", ["--training.ensemble", "2"])):
        done = subprocess.run([*command, "--output.directory", str(tmp_path / name), *more], capture_output=True)
        assert done.returncode == 0, done.stderr
    first, second = (read_table(place / "epochs.csv") for place in (one, tmp_path / "two"))
    for name in ("validation_forces", "old_forces", "train_loss", "choice_loss"):
        np.testing.assert_allclose(first[name], second[name], rtol=1e-6)
    stores = [Store.open(tmp_path / "both" / f"member-{k}" / "with_replay.store") for k in (0, 1)]
    assert [len(store) for store in stores] == [44, 44]


@pytest.mark.nightly
def test_stress_of_crystals_is_replayed(run, world, tmp_path):
    generator = np.random.default_rng(0)
    with StoreWriter(tmp_path / "crystals") as writer:
        for index in range(12):
            frames = Frames.single(
                generator.uniform(0, 0.2, (2, 3)) + 1.5 * np.arange(2)[:, None],
                np.array([6, 8]),
                cell=3.0 * np.eye(3),
                pbc=[True] * 3,
                energy=-3070.0,
                forces=generator.normal(size=(2, 3)),
                stress=np.eye(3) * 0.01,
            )
            writer.add(frames, "crystals.xyz", index)
    words = ["--data.path", str(tmp_path / "crystals"), "--loss.stress.weight", "10"]
    status, place = run("run", *words, replay=[str(world / "old"), str(tmp_path / "crystals")])
    assert status == 0
    frames = Store.open(place / "with_replay.store").gather(np.arange(12, 44))
    assert frames.has("stress").tolist() == [False] * 20 + [True] * 12
    base = torchmdx.load(world / "base.safetensors")
    expected = evaluate(base, frames.take(np.array([25])).system(0), stress=True).stress[0]
    np.testing.assert_allclose(frames.stress[25], expected, atol=1e-5)
    assert "old_stress" in read_table(place / "epochs.csv")


@pytest.mark.nightly
@pytest.mark.parametrize("version", ["bessel-2", "so3"])
def test_a_potential_of_matgl_is_fine_tuned_with_stress(tmp_path, version):
    """By the pairwise network, the one that is captured on a GPU; its architecture and elements stay."""
    source = DATA / "matgl" / version
    generator = np.random.default_rng(0)
    with StoreWriter(tmp_path / "new") as new, StoreWriter(tmp_path / "old") as old:
        for index in range(12):
            atoms = bulk("Cu", cubic=True)
            atoms.positions += generator.normal(0, 0.15, (4, 3))
            atoms.calc = EMT()
            labels = dict(energy=atoms.get_potential_energy(), forces=atoms.get_forces())
            labels["stress"] = atoms.get_stress(voigt=False)
            cell = dict(cell=atoms.cell.array, pbc=[True] * 3)
            new.add(Frames.single(atoms.positions, atoms.numbers, **cell, **labels), "x.xyz", index)
            salt = Frames.single(atoms.positions, np.array([11, 17, 11, 17]), **cell)
            old.add(salt, "y.xyz", index)
    values = made_up.values(
        tmp_path / "new",
        data={"validation": 3, "test": 0},
        loss={"stress": {"weight": 10.0}},
        training={"epochs": 3, "batch_size": 6},
        optimizer={"learning_rate": 3e-3, "ema_decay": 0.5},
        schedule={"warmup_steps": 2},
        finetune={"checkpoint": str(source), "replay": str(tmp_path / "old"), "references": "shift"},
        output={"directory": str(tmp_path / "run")},
    )
    assert train(make_config(values)) == 0
    base, tuned = torchmdx.load(source), torchmdx.load(tmp_path / "run" / "best.safetensors")
    assert Network.of(base).has_pairs
    assert tuned.config == base.config
    assert tuned.card.elements == base.card.elements
    epochs = read_table(tmp_path / "run" / "epochs.csv")
    assert epochs["old_stress"][0] < 0.01 < epochs["validation_stress"][0]
    assert epochs["choice_loss"].min() < epochs["choice_loss"][0]


@pytest.mark.parametrize(
    ("finetune", "words", "message"),
    [
        ({"replay": "none.xyz"}, [], "no data at 'none.xyz'"),
        ({"replay": []}, [], "replay needs at least one file"),
        ({"replay": "OLD", "checkpoint": None}, [], "and a checkpoint to fine-tune, got replay"),
        ({"replay": "OLD"}, ["--training.batch_size", "1"], "batch_size must be >= 2 with finetune.replay"),
        ({"replay": "OLD", "replay_share": 1.0}, [], "replay_share must be less than 1, got 1.0"),
        ({"replay": "ODD"}, [], "elements that the checkpoint was trained on, H, C, O, got N"),
        ({"replay": "FEW"}, [], "must have at least 2 frames, of which one is held out, got 1"),
        ({"replay": "BARE", "replay_labels": "file"}, [], "it has no energy, forces or stress"),
    ],
)
def test_impossible_replays_are_refused(run, world, tmp_path, capsys, finetune, words, message):
    single = Frames.single(np.array([[0.0, 0, 0], [0, 0, 1.2]]), np.array([7, 7]), energy=1.0)
    with StoreWriter(tmp_path / "ODD") as writer:
        writer.add(single, "odd.xyz", 0)
    for name, labels in (("FEW", {"energy": -1030.0}), ("BARE", {})):
        with StoreWriter(tmp_path / name) as writer:
            for index in range(1 if name == "FEW" else 3):
                frames = Frames.single(np.array([[0.0, 0, 0], [0, 0, 1.2]]), np.array([6, 8]), **labels)
                writer.add(frames, "x.xyz", index)
    places = {"OLD": world / "old", **{name: tmp_path / name for name in ("ODD", "FEW", "BARE")}}
    if (name := finetune["replay"]) and name in places:
        finetune = finetune | {"replay": str(places[name])}
    status, place = run("run", *words, **finetune)
    assert status == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (place / "state.safetensors").exists()
    assert not list(place.glob(".*"))
