"""Runs on data that cannot be right: refused, warned about, or not looked at."""

import made_up
import numpy as np
import pytest
from test_stress_weight import periodic

from torchmdx.commands.cli import main
from torchmdx.datasets.splits import split
from torchmdx.training import make_config
from torchmdx.training.begin import doubt_about_damping, require_plausible
from torchmdx.training.config_file import read_config
from torchmdx.training.state import read_state


def zeroed(index, frame):
    if index == 11:
        frame.energy[:] = 0.0
    return frame


@pytest.fixture
def bad(tmp_path):
    return made_up.store(tmp_path / "bad", 60, change=zeroed)


def run(tmp_path, store, *changes):
    made_up.config_file(tmp_path, store.path, training={"epochs": 1}, data={"checks": "refuse"})  # the default
    return main(["train", str(tmp_path / "c.yaml"), "--output.directory", str(tmp_path / "run"), *changes])


def test_a_failed_frame_is_refused_with_its_number(tmp_path, bad, capsys):
    assert run(tmp_path, bad) == 2
    said = capsys.readouterr().err
    assert "the data must be plausible, got energies of 1 frame: the energy is 0 eV/atom" in said
    assert "made.xyz, frame 11" in said
    assert "data.checks: warn" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_it_is_trained_on_request_and_a_resumed_run_is_not_checked(tmp_path, bad, capsys):
    assert run(tmp_path, bad, "--data.checks", "warn") == 0
    assert "extreme  energies" in capsys.readouterr().err
    assert run(tmp_path, bad, "--resume", "--training.epochs", "2") == 0
    assert "extreme" not in capsys.readouterr().err


def test_modes(bad, capsys):
    parts = split(bad, validation=0.1)
    require_plausible("off", bad, parts)
    assert capsys.readouterr().err == ""
    require_plausible("warn", bad, parts)
    assert "made.xyz, frame 11" in capsys.readouterr().err
    with pytest.raises(ValueError, match="the data must be plausible"):
        require_plausible("refuse", bad, parts, loud=False)
    assert capsys.readouterr().err == ""


@pytest.mark.nightly
def test_stress_is_trained_by_default_and_old_runs_are_resumed_without(tmp_path, capsys):
    store = made_up.store(tmp_path / "s", 40, change=periodic(0.01))
    assert run(tmp_path, store) == 0
    assert "loss.stress.weight: " in capsys.readouterr().err
    weight = read_config(tmp_path / "run" / "config.yaml").loss.stress.weight
    assert weight > 100
    assert run(tmp_path, store, "--resume", "--training.epochs", "2") == 0
    state = tmp_path / "run" / "state.safetensors"
    assert read_state(state)[1]["config"]["loss"]["stress"]["weight"] == weight
    assert run(tmp_path, store, "--resume", "--training.epochs", "3", "--loss.stress.weight", "0") == 2
    assert f"loss.stress.weight was {weight}, got 0.0" in capsys.readouterr().err


def test_plain_data_have_no_stress_term(tmp_path):
    store = made_up.store(tmp_path / "s", 40)
    assert run(tmp_path, store) == 0
    assert read_config(tmp_path / "run" / "config.yaml").loss.stress.weight == 0.0
    assert np.isnan(store.gather([0]).stress).all()


@pytest.mark.parametrize(("damping", "doubted"), [({"damping": 4.0}, False), ({}, True), ({"switch": [2, 4.2]}, True)])
def test_a_coulomb_energy_that_is_damped_beyond_the_network_is_doubted(damping, doubted):
    model = {"name": "tensornet2", "cutoff": 4.0, "priors": [{"prior": "coulomb", "periodic": "ewald", **damping}]}
    said = doubt_about_damping(make_config({"data": {"path": "a.xyz"}, "model": model}))
    assert (said is not None) == doubted
    assert not doubted or "the cutoff of the network is 4 Å" in said
