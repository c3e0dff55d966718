"""The commands that count and measure: neighbors, bench, profile."""

import json
from types import SimpleNamespace

import pytest
import torch
from ase.build import bulk, molecule
from ase.io import write

from torchmdx.commands import profile
from torchmdx.commands.cli import main
from torchmdx.runtime import gpu_energy

WATER_PDB = """\
MODEL        1
ATOM      1  O   HOH     1       0.000   0.000   0.119  1.00  0.00           O
ATOM      2  H1  HOH     1       0.000   0.763  -0.477  1.00  0.00           H
ATOM      3  H2  HOH     1       0.000  -0.763  -0.477  1.00  0.00           H
ENDMDL
END
"""


@pytest.fixture
def checkpoint(data) -> str:
    return str(data / "tensornet.safetensors")


def test_neighbors_counts_a_crystal(tmp_path, capsys):
    write(tmp_path / "salt.cif", bulk("NaCl", "rocksalt", a=5.64))
    assert main(["neighbors", str(tmp_path / "salt.cif"), "--cutoff", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("2 atoms, 12 edges within 3 Å")
    assert "6.0 on average, minimum 6, maximum 6" in lines[2]
    assert lines[3].split()[:2] == ["6", "2"]
    assert "capacity: 128 edges" in lines[-1]


def test_neighbors_shows_a_histogram_of_all_atoms(tmp_path, capsys):
    write(tmp_path / "c60.xyz", molecule("C60") + molecule("H2O"))
    assert main(["neighbors", str(tmp_path / "c60.xyz"), "--cutoff", "4", "--skin", "0.5"]) == 0
    out = capsys.readouterr().out
    assert "within 4.5 Å" in out
    bars = [line.split() for line in out.splitlines() if line.startswith("  ")]
    assert sum(int(words[1]) for words in bars) == 63


def test_neighbors_reports_invalid_input(tmp_path, capsys):
    write(tmp_path / "water.xyz", molecule("H2O"))
    assert main(["neighbors", str(tmp_path / "water.xyz"), "--cutoff", "-1"]) == 2
    assert "cutoff must be > 0 Å and finite, got -1.0" in capsys.readouterr().err
    assert main(["neighbors", str(tmp_path / "water.xyz"), "--cutoff", "3", "--backend", "magic"]) == 2
    assert "backend must be auto or one of" in capsys.readouterr().err


def test_a_pdb_file_that_ends_its_model_has_a_last_structure(tmp_path, capsys):
    (tmp_path / "water.pdb").write_text(WATER_PDB)
    assert main(["neighbors", str(tmp_path / "water.pdb"), "--cutoff", "2"]) == 0
    assert "H2O: 3 atoms, 6 edges" in capsys.readouterr().out


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


@pytest.mark.nightly
def test_profile_writes_a_trace_and_prints_the_most_expensive_kernels(tmp_path, capsys, checkpoint):
    write(tmp_path / "ethanol.xyz", molecule("CH3CH2OH"))
    trace = tmp_path / "trace.json"
    command = ["profile", str(tmp_path / "ethanol.xyz"), "--model", checkpoint, "--device", "cpu", "-o", str(trace)]
    assert main(command) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].split()[1] == "100%"
    shares = [float(line.split()[1].rstrip("%")) for line in lines[-11:-1]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    assert main(command) == 2
    assert f"must not exist, got {trace}; --overwrite replaces them" in capsys.readouterr().err


def test_a_gpu_idles_between_kernels():
    assert profile.idle_share([]) == 0
    assert profile.idle_share([(10, 20)]) == 0
    assert profile.idle_share([(10, 20), (30, 40)]) == pytest.approx(1 / 3)
    # Out of order, overlapping, and one within another.
    assert profile.idle_share([(6, 8), (0, 4), (1, 2), (3, 5), (9, 10)]) == pytest.approx(0.2)


def test_profile_prints_how_a_gpu_is_used(monkeypatch, capsys):
    class Meter:
        def __init__(self, device):
            self.device = device

        def measure(self, run):
            run()
            return gpu_energy.Consumption(joules=10.0, seconds=2.0, runs=1000)

    kernel, host = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
    spans = [(kernel, 0, 4), (host, 0, 9), (kernel, 6, 8)]
    events = [SimpleNamespace(device_type=kind, time_range=SimpleNamespace(start=a, end=b)) for kind, a, b in spans]
    found, ran = SimpleNamespace(events=lambda: events), []
    profile._print_use_of_gpu(found, lambda: ran.append(1), torch.device("cpu"))
    assert capsys.readouterr().out.splitlines() == [
        "the GPU idles for 25.0% of the time, under the profiler",
        "energy was not measured: energy is measured of GPUs only, got device 'cpu'",
    ]
    monkeypatch.setattr(gpu_energy, "EnergyMeter", Meter)
    profile._print_use_of_gpu(found, lambda: ran.append(1), torch.device("cuda"))
    assert ran == [1]
    assert capsys.readouterr().out.splitlines()[1] == "10 mJ per step, 5 W; 10000 J/ns with a time step of 1 fs"
