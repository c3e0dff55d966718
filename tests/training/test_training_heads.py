"""Several heads: constants and errors of each, one head as an ordinary potential, replay, resume, ensembles."""

from dataclasses import replace

import ase
import made_up
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import torchmdx
from torchmdx.checkpoints.locate import head_names
from torchmdx.commands.cli import main
from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.heads import MultiHead
from torchmdx.models.model_card import Card
from torchmdx.report.history import read_table
from torchmdx.training.config_file import make_config
from torchmdx.training.heads import base_of, beginnings, heads_of
from torchmdx.training.new_elements import embeddings
from torchmdx.training.open_data import open_data
from torchmdx.training.prepare import make_potential
from torchmdx.training.replay import _state
from torchmdx.training.resuming import resumed

SHIFT = {1: 0.5, 6: -2.0, 8: 3.0}


def other_theory(index, frame):
    """Doubled forces, and other energies of the elements."""
    energy = frame.energy + sum(SHIFT[int(z)] for z in frame.atomic_numbers)
    return replace(frame, energy=energy, forces=2 * frame.forces)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with stores of two levels of theory, of which ten structures are the same; a training of both."""
    folder = tmp_path_factory.mktemp("world")
    made_up.store(folder / "low", 24, seed=5, sizes=(3, 5))
    made_up.store(folder / "high", 10, seed=5, sizes=(3, 5), change=other_theory)
    made_up.store(folder / "more", 12, seed=8, sizes=(3, 5), change=other_theory)
    values = made_up.values(
        "",
        data={
            "heads": {"low": str(folder / "low"), "high": [str(folder / "high"), str(folder / "more")]},
            "validation": 4,
            "test": 3,
        },
        loss={"head_weights": {"high": 2.0}},
        training={"epochs": 2, "batch_size": 4},
        output={"report": True},
    )
    (folder / "two.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    assert main(["train", str(folder / "two.yaml"), "--output.directory", str(folder / "two")]) == 0
    return folder


def values_of(world):
    return yaml.safe_load((world / "two.yaml").read_text())


def test_each_head_has_its_frames_references_scale_and_errors(world):
    config = make_config(values_of(world))
    store, parts = open_data(config.data, world / "two")
    heads = heads_of(config, store)
    assert heads.names == ("low", "high")
    assert [len(heads.parts(parts[part])["high"]) for part in ("validation", "test")] == [4, 3]
    for part in parts.values():  # copies are in one part, whatever their head
        assert not np.isin(store.copies[part], store.copies[np.setdiff1d(np.arange(len(store)), part)]).any()
    assert head_names(world / "two" / "best.safetensors") == ("low", "high")
    low, high = (torchmdx.load(world / "two" / "best.safetensors", head=head) for head in ("low", "high"))
    assert float(high.scale / low.scale) == pytest.approx(2.0, rel=0.2)
    for z, energy in SHIFT.items():
        assert float(high.reference_energies[z] - low.reference_energies[z]) == pytest.approx(energy, abs=0.4)
    columns = read_table(world / "two" / "epochs.csv")
    # Errors of the saved potentials, computed anew.
    for head, potential in (("low", low), ("high", high)):
        frames = store.gather(heads.parts(parts["validation"])[head])
        off = []
        for index in range(len(frames)):
            found = evaluate(potential, frames.system(index)).forces.numpy()
            off.append(found - frames.forces[frames.offsets[index] : frames.offsets[index + 1]])
        off = 1e3 * np.concatenate(off)
        assert columns[f"validation_{head}_forces"][-1] == pytest.approx(np.abs(off).mean(), rel=1e-4)
        assert columns[f"validation_{head}_forces_rmse"][-1] == pytest.approx((off**2).mean() ** 0.5, rel=1e-4)
        assert (world / "two" / "report" / head / "index.html").is_file()


def test_one_head_is_an_ordinary_potential_everywhere(world, tmp_path, capsys, caplog):
    file, frame = world / "two" / "best.safetensors", made_up.frames(1, seed=9)[0]
    default, high = torchmdx.load(file), torchmdx.load(f"{file}:high")
    torchmdx.load(file)
    said = f"{file} has the heads low, high: low is taken; head= or --head chooses one"
    assert [record.message for record in caplog.records] == [said]  # once
    with pytest.raises(ValueError, match="a head must be chosen once, got 'low' and .*best.safetensors:high"):
        torchmdx.load(f"{file}:high", head="low")
    assert type(high) is torchmdx.Potential
    energies = {name: float(evaluate(one, frame.system(0)).energy) for name, one in (("low", default), ("high", high))}
    assert energies["low"] != energies["high"]
    assert default.origin.name == "best.safetensors:low"
    assert high.origin.sha256 != default.origin.sha256
    assert main(["convert", str(file), str(tmp_path / "high.safetensors"), "--head", "high"]) == 0
    alone = torchmdx.load(tmp_path / "high.safetensors")
    assert float(evaluate(alone, frame.system(0)).energy) == energies["high"]
    atoms = ase.Atoms(frame.atomic_numbers, frame.positions)
    atoms.calc = torchmdx.Calculator(file, head="high", dtype="float64", device="cpu")
    assert atoms.get_potential_energy() == pytest.approx(energies["high"], abs=1e-4)
    capsys.readouterr()
    assert main(["evaluate", str(file), str(world / "high"), "--head", "high", "--json", "--device", "cpu"]) == 0
    assert '"potential": "best.safetensors:high"' in capsys.readouterr().out
    assert main(["convert", str(file), str(tmp_path / "no.safetensors")]) == 2
    assert "has the heads low, high: choose one with --head NAME" in capsys.readouterr().err
    with pytest.raises(ValueError, match="has the heads low, high, got 'pbe'"):
        torchmdx.load(file, head="pbe")
    with pytest.raises(ValueError, match="has a single head without a name, got the head 'high'"):
        torchmdx.load(tmp_path / "high.safetensors", head="high")


@pytest.mark.nightly
def test_a_stopped_training_of_heads_is_resumed_to_the_bit(world, tmp_path):
    words = ["train", str(world / "two.yaml"), "--output.report", "false", "--schedule.name", "constant"]
    assert main([*words, "--output.directory", str(tmp_path / "whole")]) == 0
    assert main([*words, "--output.directory", str(tmp_path / "parts"), "--training.epochs", "1"]) == 0
    assert main([*words, "--output.directory", str(tmp_path / "parts"), "--resume"]) == 0
    whole, parts = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert {"heads.1.scale", "heads.0.head.network.0.weight", "network.readout.weight"} <= whole.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.nightly
def test_fine_tuning_replays_one_head_and_begins_from_heads_of_the_checkpoint(world, tmp_path, capsys):
    values = values_of(world)
    values["data"]["heads"] = {"new": str(world / "high")}
    values |= {"loss": {}, "output": values["output"] | {"report": False, "directory": str(tmp_path / "run")}}
    values["finetune"] = {
        "checkpoint": str(world / "two" / "best.safetensors"), "head": "high", "lora": 2,
        "replay": str(world / "low"), "replay_head": "low",
    }  # fmt: skip
    values["training"] |= {"ensemble": 2}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    assert main(["train", str(tmp_path / "c.yaml"), "--optimizer.learning_rate", "1e-12"]) == 0
    said = capsys.readouterr()
    assert "spreads of the head new times" in said.out
    heads = "has the heads low, high; new begins with high; high will not be in the result"
    assert said.err.count(heads) == 1
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "no.safetensors")]) == 2
    assert "has the heads new, low: choose one with --head NAME" in capsys.readouterr().err
    mixed = Store.open(tmp_path / "run" / "member-0" / "with_replay.store")
    replayed = mixed.gather([len(mixed) - 1])  # labelled by the head low, not by the default of the run
    before = torchmdx.load(world / "two" / "best.safetensors:low")
    assert float(evaluate(before, replayed.system(0)).energy) == pytest.approx(float(replayed.energy[0]), abs=1e-4)
    ensemble = torchmdx.load(tmp_path / "run", head="low")
    assert [member.origin.name for member in ensemble] == ["best.safetensors:low"] * 2
    assert torch.equal(ensemble[0].scale, before.scale)
    assert torch.equal(ensemble[0].reference_energies, before.reference_energies)
    # The references of a head that the checkpoint does not have are fitted, so its energies are close at once.
    new = torchmdx.load(tmp_path / "run" / "member-0" / "best.safetensors", head="new")
    high = torchmdx.load(world / "two" / "best.safetensors:high")
    assert torch.equal(new.head.network[0].weight, high.head.network[0].weight)
    assert not torch.equal(new.reference_energies, high.reference_energies)
    together = torchmdx.load(tmp_path / "run" / "ensemble.safetensors", head="low")
    assert torch.equal(together[1].scale, before.scale)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("data", "path", "x.xyz", "heads need no path"),
        ("data", "validation", ["v.xyz"], "heads need .* parts that are drawn"),
        ("data", "heads", {"a b": "x.xyz"}, "the name of a head must consist of letters.*got 'a b'"),
        ("data", "heads", {"..": "x.xyz"}, "the name of a head must consist of letters.*got '..'"),
        ("loss", "head_weights", {"pbe": 1.0}, "loss.head_weights must name heads of data.heads, low, got 'pbe'"),
        ("finetune", "replay_head", "low", "finetune.replay_head must be given with finetune.replay and data.heads"),
    ],
)
def test_settings_that_do_not_fit_are_refused(section, key, value, message):
    values = {"data": {"heads": {"low": "x.xyz"}}}
    values[section] = values.get(section, {}) | {key: value}
    with pytest.raises(ValueError, match=message):
        make_config(values)


def test_a_checkpoint_may_name_its_head(world):
    values = values_of(world)
    values["data"]["heads"] = {"low": "x.xyz", "new": "y.xyz"}
    file = world / "two" / "best.safetensors"
    values["finetune"] = {"checkpoint": f"{file}:high"}
    values["loss"] = {}
    config = make_config(values)
    assert beginnings(config) == {"low": f"{file}:low", "new": f"{file}:high"}
    assert base_of(config) == f"{file}:high"
    values["finetune"]["head"] = "low"
    with pytest.raises(ValueError, match="finetune.head must be the head of finetune.checkpoint, high, got low"):
        base_of(make_config(values))


def test_files_of_two_heads_must_differ(world):
    values = values_of(world)
    values["data"]["heads"] = {"low": str(world / "low"), "high": str(world / "low")}
    with pytest.raises(ValueError, match="a file must be of one head, got .* in two"):
        open_data(make_config(values).data, world / "none")


def test_replayed_labels_are_those_of_one_head(world):
    """A run that replays another head computes them anew, even where both have the same reference energies."""
    values, states = values_of(world), []
    values |= {"data": values["data"] | {"heads": {"new": str(world / "more")}}, "loss": {}}
    file, store = world / "two" / "best.safetensors", Store.open(world / "more")
    for head in ("low", "high"):
        values["finetune"] = {"checkpoint": str(file), "replay": str(world / "low"), "replay_head": head}
        states.append(_state(make_config(values), torchmdx.load(file, head="low"), store))
    assert states[0] != states[1]


def test_elements_that_one_head_knows_keep_their_embeddings(world, tmp_path):
    file = world / "two" / "best.safetensors"
    parts = {head: torchmdx.load(file, head=head) for head in ("low", "high")}
    parts["low"].card = Card(elements=(1, 6))
    parts["low"].reference_energies[8] = 0.0
    torchmdx.save(MultiHead(parts, "low"), tmp_path / "m.safetensors")
    values = values_of(world)
    values |= {"data": values["data"] | {"heads": {"low": str(world / "low"), "high": str(world / "high")}}}
    values["finetune"] = {"checkpoint": str(tmp_path / "m.safetensors")}
    store, frames = open_data(make_config(values).data, tmp_path)
    tuned = make_potential(make_config(values), store, frames["train"], torch.float32)
    for name, table in embeddings(tuned).items():
        assert torch.equal(table, embeddings(parts["low"])[name])
    low, high = (tuned.one(head).reference_energies for head in ("low", "high"))
    assert float(low[8]) == pytest.approx(made_up.LONE[8], abs=2.0)
    assert torch.equal(high, parts["high"].reference_energies)
    assert torch.equal(low[:8], parts["low"].reference_energies[:8])


def test_a_run_goes_on_with_its_heads_in_their_order_and_weights_that_are_declared(world):
    values = values_of(world)
    values["output"] |= {"directory": str(world / "two")}
    run = make_config(values)
    assert resumed(run, True, ["loss.head_weights={low: 3.0}"]).loss.head_weights["low"] == 3.0
    declared = resumed(run, True, ["loss.config_type_weights={bulk: 2.0}"])
    assert declared.loss.config_type_weights == {"bulk": 2.0}
    values["data"]["heads"] = dict(reversed(values["data"]["heads"].items()))
    with pytest.raises(ValueError, match="same settings: data.heads was {'low': .*got {'high'"):
        resumed(make_config(values), True, [])
