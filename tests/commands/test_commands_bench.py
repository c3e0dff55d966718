import json

import pytest
from ase.build import molecule
from ase.io import write

from torchmdx.commands.cli import main


@pytest.fixture
def checkpoint(data) -> str:
    return str(data / "tensornet.safetensors")


def test_bench_prints_a_table_and_the_report(tmp_path, capsys, checkpoint, monkeypatch):
    monkeypatch.setattr("torchmdx.commands.bench.SECONDS_TO_MEASURE", 0.05)
    write(tmp_path / "water.xyz", molecule("H2O"))
    assert main(["bench", str(tmp_path / "water.xyz"), "--model", checkpoint, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("H2O: 3 atoms, charge 0 (the default); float32 on CPU")
    assert lines[1].split("  ")[-1].strip() == "force error"
    mode, milliseconds, microseconds_an_atom, _, memory, error = lines[2].split()
    assert (mode, memory) == ("eager", "-")
    assert 0 < float(error) < 1e-5
    assert float(microseconds_an_atom) == pytest.approx(float(milliseconds) * 1e3 / 3, rel=1e-2)
    assert any(line.split()[:2] == ["engine", "compiled"] for line in lines)


def test_bench_writes_what_it_prints(tmp_path, capsys, checkpoint, monkeypatch):
    monkeypatch.setattr("torchmdx.commands.bench.SECONDS_TO_MEASURE", 0.05)
    write(tmp_path / "water.xyz", molecule("H2O"))
    command = ["bench", str(tmp_path / "water.xyz"), "--model", checkpoint, "--device", "cpu"]
    command += ["--json", str(tmp_path / "rows.json")]
    assert main(command) == 0
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    printed = capsys.readouterr().out.splitlines()[2].split()
    assert (row["mode"], f"{row['ms']:.4f}") == tuple(printed[:2])
    assert (row["atoms"], row["dtype"]) == (3, "float32")
    assert f"{row['force_error']:.1e}" == printed[-1]
    assert row["engine"].startswith("compiled")
    assert main(command) == 2
    assert "output files must not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "got"), [([], "neither"), (["water.xyz", "--all"], "both")])
def test_bench_takes_a_file_or_all(capsys, words, got):
    assert main(["bench", *words]) == 2
    assert f"bench needs a structure file or --all, got {got}" in capsys.readouterr().err


def test_bench_requires_one_structure_with_atoms(tmp_path, capsys, checkpoint):
    write(tmp_path / "two.xyz", [molecule("H2O"), molecule("H2O")])
    assert main(["bench", str(tmp_path / "two.xyz"), "--model", checkpoint, "--index", ":"]) == 2
    assert "--index must select one structure, got ':', which selects 2" in capsys.readouterr().err
