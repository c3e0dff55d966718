"""`torchmdx md` with an ensemble: stops if the members disagree, with complete files and the frame saved."""

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
from dcd import read_dcd
from md_runs import DYNAMICS, TINY, assert_refused, assert_same_run, md

import torchmdx
from torchmdx import Calculator, Ensemble
from torchmdx.dynamics.log import read_log

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

OPTIONS = ["--ensemble", "nve", *DYNAMICS, "--temperature", 300, "--checkpoint-every", 4]


@pytest.fixture
def members(make_potential, folder):
    """A potential of three seeds, with a longer cutoff than TINY, in one file and in three files."""
    made = [make_potential(seed=seed, **{**TINY, "num_layers": 1}) for seed in (1, 2, 3)]
    torchmdx.save(Ensemble(made), "all.safetensors")
    for k, member in enumerate(made):
        torchmdx.save(member, f"{k}.safetensors")
    return made


def spread_of(calculator, atoms, positions):
    atoms = atoms.copy()
    atoms.positions = positions
    calculator.calculate(atoms)
    return calculator.results["forces_spread"].max()


@pytest.mark.nightly
def test_a_run_stops_at_the_spread_limit_and_continues_with_another(capsys, members, ethanol, ethanol_file, unplotted):
    assert md(ethanol_file, "all.safetensors", "free", *OPTIONS, "--steps", 40) == 0
    frames = read_dcd(Path("free.dcd"))["frames"]
    calculator = Calculator(members, dtype="float64", device="cpu")
    spreads = [spread_of(calculator, ethanol, positions) for positions in frames]
    later = int(np.argmax(spreads))
    assert later > 1
    limit = 0.999 * spreads[later]
    limited = ["--max-force-spread", f"{limit:.9f}"]
    capsys.readouterr()
    assert md(ethanol_file, "all.safetensors", "run", *OPTIONS, *limited, "--steps", 40) != 0
    error = capsys.readouterr().err
    assert f"the force spread of the ensemble must be at most {limit:g} eV/Å, got " in error
    assert "its frame was appended to 'run.uncertain.xyz'" in error
    assert "the last valid state, of step" in error
    assert "Traceback" not in error
    kept = ase.io.read("run.uncertain.xyz")
    assert spread_of(calculator, ethanol, kept.positions) > limit
    assert kept.arrays["forces_spread"].max() == pytest.approx(spread_of(calculator, ethanol, kept.positions), rel=1e-6)
    written = read_dcd(Path("run.dcd"))["frames"]
    assert 1 < len(written) <= len(frames)
    np.testing.assert_array_equal(written, frames[: len(written)])
    assert all(spread <= limit for spread in spreads[: len(written)][:-1])
    assert md(ethanol_file, "all.safetensors", "run", *OPTIONS, "--steps", 40, "--restart") == 0
    assert_same_run("run", "free")
    assert_refused(
        capsys,
        md(ethanol_file, "all.safetensors", "run", *OPTIONS, "--steps", 40),
        "run.uncertain.xyz; --restart continues",
    )


def test_the_log_has_the_spread(members, ethanol, ethanol_file):
    assert md(ethanol_file, "all.safetensors", "run", *OPTIONS, "--steps", 8, "--log-every", 4) == 0
    log, frames = read_log(Path("run.log")), read_dcd(Path("run.dcd"))["frames"]
    assert list(log["step"]) == [0, 4, 8]
    assert len(frames) == 3
    calculator = Calculator(members, dtype="float64", device="cpu")
    for positions, energy, forces in zip(frames, log["energy_spread_eV"], log["force_spread_eV_per_A"], strict=True):
        assert forces == pytest.approx(spread_of(calculator, ethanol, positions), abs=2e-6, rel=1e-5)
        assert energy == pytest.approx(calculator.results["energy_spread"], abs=2e-6, rel=1e-5)
    assert len(set(log["force_spread_eV_per_A"])) == 3


def test_several_models_are_one_ensemble(capsys, members, ethanol_file, unplotted):
    more = ["--model", "1.safetensors", "--model", "2.safetensors", *OPTIONS, "--steps", 8]
    assert md(ethanol_file, "0.safetensors", "three", *more) == 0
    assert md(ethanol_file, "all.safetensors", "one", *OPTIONS, "--steps", 8) == 0
    assert_same_run("three", "one")
    assert len(json.loads(Path("three.json").read_text())["model (SHA-256)"].split()) == 3
    two = ["--model", "1.safetensors", *OPTIONS, "--steps", 12, "--restart"]
    assert_refused(capsys, md(ethanol_file, "0.safetensors", "three", *two), "model (SHA-256)")


def test_invalid_limits_are_rejected(capsys, model, ethanol_file):
    def refused(limit, words):
        assert_refused(
            capsys, md(ethanol_file, model, "run", *OPTIONS, "--steps", 8, "--max-force-spread", limit), words
        )

    refused(0.5, "max_force_spread needs an ensemble, got 0.5 eV/Å with a single potential")
    refused(0, "--max-force-spread must be finite and > 0 eV/Å, got 0.0")
    refused("nan", "--max-force-spread must be finite and > 0 eV/Å, got nan")
