"""Ensembles of a training: calibrated spreads that are stored and applied, and members on other frames."""

import argparse

import made_up
import numpy as np
import pytest
import torch

import torchmdx
from torchmdx.commands import md
from torchmdx.commands.cli import main
from torchmdx.datasets.splits import read_split
from torchmdx.dynamics.run.settings import RunSettings
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.ensemble import Ensemble
from torchmdx.step.captured_step import CapturedStep


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, and the folder of two members on resampled frames."""
    folder = tmp_path_factory.mktemp("ensemble")
    store = made_up.store(folder / "s", 50)
    training = {"epochs": 2, "ensemble": 2, "resample": True}
    data = {"path": str(store.path), "validation": 10, "test": 12}
    made_up.config_file(folder, store.path, training=training, data=data)
    assert main(["train", str(folder / "c.yaml"), "--output.directory", str(folder / "run")]) == 0
    return store, folder / "run"


@pytest.mark.nightly
def test_members_have_one_test_set_and_frames_of_their_own(made):
    store, run = made
    one, two = (read_split(run / f"member-{k}" / "split.json", store) for k in range(2))
    assert one["test"].tolist() == two["test"].tolist()
    assert one["validation"].tolist() != two["validation"].tolist()
    for parts in (one, two):
        assert [len(parts[name]) for name in ("train", "validation", "test")] == [28, 10, 12]


def test_calibrated_spreads_are_as_large_as_the_errors(made, tmp_path, capsys):
    store, run = made
    plain = Ensemble([torchmdx.load(run / f"member-{k}" / "best.safetensors") for k in range(2)])
    calibrated = torchmdx.load(run / "ensemble.safetensors")
    spreads, errors = [], []
    for k in read_split(run / "member-0" / "split.json", store)["test"]:
        frame = store.gather([k])
        found = evaluate(plain, frame.system(0))
        spreads.append((float(found.energy_spread[0]) / frame.counts[0], found.force_spread.numpy()))
        energy = abs(float(found.energy[0]) - frame.energy[0]) / frame.counts[0]
        errors.append((energy, np.linalg.norm(found.forces.numpy() - frame.forces, axis=1)))
        again = evaluate(calibrated, frame.system(0))
        factors = calibrated.spread_factors
        assert float(again.energy_spread[0]) == pytest.approx(factors[0] * float(found.energy_spread[0]), rel=1e-5)
    for k, factor in enumerate(calibrated.spread_factors):
        error, spread = (np.concatenate([np.atleast_1d(pair[k]) for pair in pairs]) for pairs in (errors, spreads))
        assert factor == pytest.approx(np.sqrt((error**2).mean() / (spread**2).mean()), rel=1e-3)
    folder = torchmdx.load(run)
    assert folder.spread_factors == calibrated.spread_factors
    assert folder.spread_factors != (1.0, 1.0)
    assert main(["convert", str(run), str(tmp_path / "c.safetensors")]) == 0
    assert torchmdx.load(tmp_path / "c.safetensors").spread_factors == calibrated.spread_factors
    assert main(["convert", str(run), str(tmp_path / "d.zip")]) == 2
    assert "a calibrated ensemble must end in .safetensors" in capsys.readouterr().err
    parser = argparse.ArgumentParser()
    md.add_parser(parser.add_subparsers())
    given = ["md", "a.xyz", "-o", "run", "--steps", "4", "--model", str(run)]
    assert RunSettings.from_options(parser.parse_args(given)).potential.models == (run / "ensemble.safetensors",)


def test_openmm_records_the_file_with_the_factors(made):
    pytest.importorskip("openmm")
    from torchmdx.openmm.add import checkpoint_of

    assert checkpoint_of(made[1]) == str(made[1] / "ensemble.safetensors")


def test_engines_apply_the_factors_and_means_stay(made, tmp_path):
    store, run = made
    members = [torchmdx.load(run / f"member-{k}" / "best.safetensors") for k in range(2)]
    system = store.gather([0]).system(0)
    plain, scaled = (CapturedStep(Ensemble(members, spread_factors=f), system) for f in ((1.0, 1.0), (2.0, 3.0)))
    one, two = (step(system.positions) for step in (plain, scaled))
    np.testing.assert_allclose(two.energy_spread, 2 * one.energy_spread, rtol=1e-6)
    np.testing.assert_allclose(two.force_spread, 3 * one.force_spread, rtol=1e-6)
    np.testing.assert_array_equal(one.forces, two.forces)
    torchmdx.save(Ensemble(members, spread_factors=(2.0, 3.0)), tmp_path / "e.safetensors")
    assert torchmdx.load(tmp_path / "e.safetensors", dtype=torch.float64).spread_factors == (2.0, 3.0)
    torchmdx.save(Ensemble(members), tmp_path / "f.safetensors")
    assert torchmdx.load(tmp_path / "f.safetensors").spread_factors == (1.0, 1.0)
    with pytest.raises(ValueError, match="spread_factors must be two finite numbers > 0"):
        Ensemble(members, spread_factors=(0.0, 1.0))
