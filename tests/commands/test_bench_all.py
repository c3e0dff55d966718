"""`torchmdx bench --all`: structures that fail, and the test of cards for blocks that wait for each other."""

import argparse
import json
from types import SimpleNamespace

import pytest
import torch
from ase.build import molecule

from torchmdx.commands import bench_all
from torchmdx.commands.cli import main
from torchmdx.commands.options import add_model_options
from torchmdx.runtime import card_records


@pytest.mark.nightly
def test_bench_of_all_goes_on_after_a_structure_that_fails(tmp_path, capsys, monkeypatch):
    """In processes of their own: the potential of the first lacks an element, the second is killed."""
    given = [("salt", molecule("NaCl"), 60), ("water", molecule("H2O"), 60), ("endless", molecule("H2O"), 0.01)]
    monkeypatch.setattr(bench_all, "structures", lambda on_gpu: [(name, atoms) for name, atoms, _ in given])
    seconds = {name: limit for name, _, limit in given}
    measured = bench_all.measured

    def within(name, atoms, options, folder):
        return measured(name, atoms, SimpleNamespace(**vars(options) | {"seconds": seconds[name]}), folder)

    monkeypatch.setattr(bench_all, "measured", within)
    command = ["bench", "--all", "--device", "cpu", "--json", str(tmp_path / "all.json")]
    assert main(command) == 1
    record = json.loads((tmp_path / "all.json").read_text())
    salt, water, endless = record["rows"]
    assert "Na" in salt["failed"]
    assert (water["structure"], water["atoms"], water["mode"]) == ("water", 3, "eager")
    assert water["ms"] > 0
    assert endless["failed"] == "not finished after 0.01 s"
    assert record["environment"]["device"].startswith("CPU")
    printed = capsys.readouterr().out
    assert "not finished after 0.01 s" in printed
    assert f"{water['ms']:.4f}" in printed


def test_all_options_of_the_potential_reach_the_processes(tmp_path, monkeypatch):
    parser = argparse.ArgumentParser()
    add_model_options(parser)
    others = ("help", "head")  # the name of a model has its head
    given = [action.option_strings[-1] for action in parser._actions if action.dest not in others]
    options = SimpleNamespace(seconds=1, skin=0.5, model=["a.safetensors"])
    vars(options).update({name.removeprefix("--").replace("-", "_"): "x" for name in given if name != "--model"})
    commands = []

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=1, stderr="")

    monkeypatch.setattr("subprocess.run", run)
    bench_all.measured("water", molecule("H2O"), options, tmp_path)
    assert {*given, "--skin"} <= set(commands[0])


H20 = SimpleNamespace(name="NVIDIA H20", multiprocessors=78, is_hopper=True, clusters=())
RIGHT = {"structure": "C6H6", "engine": "kernels, float32, one launch", "force_error": 2e-7}


@pytest.mark.parametrize(("row", "kept", "said"), [
    (RIGHT, 9, "9 clusters of 8 blocks, noted in "),
    (RIGHT | {"failed": "not finished after 3 s"}, 0, "not used: C6H6: not finished after 3 s"),
    (RIGHT | {"force_error": 1e-2}, 0, "not used: C6H6: the force error must be at most 1e-05, got 0.01"),
    (RIGHT | {"force_error": float("nan")}, 0, "not used: C6H6: the force error must be at most 1e-05, got nan"),
    (RIGHT | {"force_error": None}, 0, "not used: C6H6: the force error must be at most 1e-05, got None"),
    (RIGHT | {"engine": "kernels, float32"}, 0, "not used: C6H6 took kernels, float32"),
], ids=["right", "endless", "wrong", "nan", "unknown", "other"])  # fmt: skip
def test_a_card_is_used_for_blocks_that_wait_after_a_test(monkeypatch, tmp_path, capsys, row, kept, said):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    monkeypatch.setattr("torchmdx.engines.plan.machine.Machine.of", lambda device: H20)
    monkeypatch.setattr(bench_all, "_clusters_that_fit", lambda device: 9)
    asked = []

    def measured(name, atoms, options, folder, variables):
        asked.append((name, options.model, variables))
        return [row]

    monkeypatch.setattr(bench_all, "measured", measured)
    found = bench_all._trial(SimpleNamespace(seconds=3), torch.device("cuda"), tmp_path)
    assert found.startswith(said)
    assert said in capsys.readouterr().out
    assert card_records.clusters_of("NVIDIA H20", 78) == kept
    assert asked[0] == ("CH3CH2OH", None, {card_records.ON_TRIAL: "9"})
    assert len(asked) == (6 if kept else 1)
