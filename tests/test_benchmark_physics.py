"""benchmarks/multiple_steps_physics and its report: what is run, and what differs from single steps."""

import json
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks import multiple_steps_physics, multiple_steps_runs
from benchmarks.multiple_steps_physics import settings_of, settle, share_of, work
from benchmarks.multiple_steps_report import REFERENCE, against_single, distillations, rows_of
from benchmarks.multiple_steps_runs import Setting

RANDOM = np.random.default_rng(3)
REPLICAS = 8


def arrays(energy=-4.0, hotter=1.0, diffusion=2.0):
    """Averages of replicas at 300 K, with a scatter of a thousandth."""

    def around(value):
        return value * RANDOM.normal(1.0, 1e-3, REPLICAS)

    squares = around(300 * 8.617333e-5 * hotter)
    counts = RANDOM.multinomial(10_000, [0.25, 0.5, 0.25], REPLICAS).astype(float)
    return {
        "energy": around(energy), "temperature": around(300.0), "temperature_h": around(300.0),
        "squares": squares, "laplacian": np.ones(REPLICAS), "squares_h": squares, "laplacian_h": np.ones(REPLICAS),
        "variance O-H": around(1e-3), "mean O-H": around(0.97), "counts O-H": counts, "diffusion": around(diffusion),
        "energy_time": np.array(0.5), "largest_difference": np.array(0.1), "over_limit": np.array(0.0),
        "seconds": np.array(1.0), "picoseconds": np.array(9.0), "frames": np.array(300),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["alanine_dipeptide", "water216"])
def test_every_setting_has_single_steps_to_compare_with(name):
    settings = settings_of(name)
    assert settings[0] == REFERENCE
    assert len(set(settings)) == len(settings)
    multiple = [one for one in settings if one.kind == "nvt" and one.inner > 1]
    assert {one.inner for one in multiple} >= {2, 3, 4, 6}
    for one in multiple:
        assert Setting(one.kind, one.hydrogen_mass, one.timestep, 1) in settings
    assert share_of(REFERENCE) == max(map(share_of, settings))
    assert any(one.kind == "npt" for one in settings) == name.startswith("water")


def test_what_differs_from_single_steps_is_named():
    single = arrays()
    assert against_single(arrays(), single)["beyond_single"] == ""
    found = against_single(arrays(hotter=1.1, diffusion=2.2), single)
    assert found["beyond_single"] == "configurational_k, configurational_h_k, diffusion"
    assert not found["agrees_with_single"]
    assert found["diffusion_percent_to_single"] == pytest.approx(10, abs=0.5)
    assert found["diffusion_percent_error_to_single"] == pytest.approx(0.055, abs=0.03)
    dense = {"density": RANDOM.normal(1.0, 1e-3, REPLICAS)}
    assert against_single({"density": 1.02 * dense["density"]}, dense)["beyond_single"] == "density"


def test_rows_have_errors_of_runs_and_comparisons(tmp_path):
    def written(setting, content):
        np.savez(tmp_path / f"water216.{setting.name}.npz", potential="aceff-1.1", **content)

    settings = [REFERENCE, Setting("nvt", 3.0, 2.0, 2), Setting("nvt", 3.0, 2.0, 3), Setting("npt", 3.0, 2.0, 2)]
    for setting in settings[:2]:
        written(setting, arrays())
    written(settings[2], dict(failed="FloatingPointError: 999 K after 24 fs", seconds=0.5))
    reference, multiple, failed = rows_of("water216", tmp_path, settings)
    assert "agrees_with_single" not in reference
    assert [multiple[name] for name in ("agrees", "agrees_with_single")] == [True, True]
    assert multiple["configurational_k"] == pytest.approx(300, rel=2e-3)
    assert (failed["error"], failed["outer_fs"]) == ("FloatingPointError: 999 K after 24 fs", 6)
    assert {row["potential"] for row in (reference, multiple, failed)} == {"aceff-1.1"}


def test_rows_tell_how_long_their_start_was_settled(tmp_path, monkeypatch):
    frames, cell = np.zeros((REPLICAS, 3, 3)), np.eye(3)
    np.savez(tmp_path / "water216.start.npz", numbers=[8, 1, 1], frames=frames, cell=cell)
    monkeypatch.setitem(multiple_steps_physics._POTENTIALS, "aceff-1.1.pt", None)
    monkeypatch.setattr(multiple_steps_runs, "equilibrated", lambda subject, stages, pressed: (frames + 1, cell))
    monkeypatch.setattr(multiple_steps_runs, "constant_temperature", lambda *given: arrays())

    def settled() -> float:
        told = work(tmp_path, "water216", "aceff-1.1.pt", None, REFERENCE, end=0.0, share=1.0, shorter=1.0)
        assert "300 frames" in told
        return rows_of("water216", tmp_path, [REFERENCE])[0]["settled_ps"]

    assert settled() == 0
    for picoseconds in (10.0, 6.0):
        settle(
            Namespace(folder=tmp_path, name="water216", potential="aceff-1.1.pt", kind="nvt", picoseconds=picoseconds)
        )
    assert settled() == 16
    with np.load(tmp_path / "water216.start.npz") as held:
        assert (held["frames"] == 1).all()
        np.testing.assert_array_equal(held["cell"], cell)


def test_rows_of_distillations_have_errors_of_tests_or_of_validation(tmp_path):
    def written(name, potential, chosen):
        folder = tmp_path / f"{name}.distillation"
        (folder / "training").mkdir(parents=True)
        content = {"asked": {"potential": {"name": potential}}, "chosen": chosen}
        (folder / "distillation.json").write_text(json.dumps(content))
        return folder / "training" / "epochs.csv"

    result = {"page": "p.html", "kind": "distillation", "name": "p", "force_rmse": 0.0139}
    written("alanine_dipeptide", "organic-1.safetensors", {"result": result})
    written("ethanol", "organic-1.safetensors", {})
    stopped = written("water216", "aceff-1.1.ckpt", {})
    stopped.write_text(
        "epoch,step,validation_loss,validation_forces_rmse\n31,310,0.3,47.0\n32,320,0.2,45.21\n33,330,,\n"
    )
    assert distillations(tmp_path) == [
        dict(kind="distillation", name="alanine_dipeptide", potential="organic-1", force_rmse=0.0139),
        dict(kind="distillation", name="water216", potential="aceff-1.1", epochs=33, validation_force_rmse=0.0452),
    ]
