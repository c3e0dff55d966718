"""benchmarks/released.py: what a run that is killed, fails or is resumed leaves in its record."""

import json
import sys

import numpy as np
import pytest
import torch
from documents.blocks import ROOT

sys.path.append(str(ROOT))

from benchmarks import energy, in_turn, long_runs, record, released, released_systems
from torchmdx.runtime import gpu_energy


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder of records, an empty one; the commit is "new"."""
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setenv("BENCHMARK_COMMIT", "new")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["released", *arguments])
    released.main()
    return record.read("released")


@pytest.mark.nightly
def test_a_row_has_what_the_tables_show(results, monkeypatch):
    (row,) = run(monkeypatch, "--rows", "organic-1/toluene")["rows"]
    head = {"potential": "organic-1", "system": "toluene", "atoms": 15, "kind": "molecule", "by": "torchmdx"}
    assert head.items() <= row.items()
    assert row["ns_day"] == pytest.approx(86.4 / row["ms"], rel=0.01, abs=0.05)
    assert row["force_error"] < 1e-5
    assert row["step_memory_GB"] is not None
    assert run(monkeypatch, "--rows", "organic-1/toluene", "--resume")["rows"] == [row]


def test_a_row_that_takes_too_long_is_an_error(results, monkeypatch, capsys):
    (row,) = run(monkeypatch, "--rows", "organic-1/toluene", "--seconds", "0.01")["rows"]
    assert (row["by"], row["atoms"], row["error"]) == ("torchmdx", 15, "did not end in 0.01 s")
    assert "organic-1, toluene: did not end in 0.01 s, after 0 rows" in capsys.readouterr().out
    assert record.current("released") == []


def test_a_potential_that_is_not_there_is_named(results, monkeypatch, capsys):
    run(monkeypatch, str(results), "--rows", "aceff-2.0")
    assert f"aceff-2.0: not in {results}" in capsys.readouterr().out


def test_files_and_folders_are_found_within_folders(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "net").mkdir(parents=True)
    (tmp_path / "a" / "one.ckpt").touch()
    (tmp_path / "b" / "net" / "model.json").touch()
    assert released_systems.find(tmp_path, "one") == tmp_path / "a" / "one.ckpt"
    assert released_systems.find(tmp_path, "net") == tmp_path / "b" / "net"
    assert released_systems.find(tmp_path, "on") is None
    assert released_systems.find(None, "organic-1") == "organic-1"


class Nvml:
    """A GPU that takes 2 J between two readings."""

    joules = 0

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, counter):
        self.joules += 2
        counter._obj.value = 1000 * self.joules
        return 0


def test_the_energy_of_a_nanosecond(monkeypatch, capsys):
    assert energy.per_ns(lambda: None) == {} or torch.cuda.is_available()
    runs, clock = [], iter(range(100))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu_energy, "uuid_of", lambda device: "GPU-1")
    monkeypatch.setattr(gpu_energy.time, "perf_counter", lambda: next(clock))
    # The clock moves by a second at each look: it is looked at once before and once after each of two bursts.
    found = energy.per_ns(lambda: runs.append(1), seconds=2.0, library=Nvml())
    assert found == {"J_per_ns": 2 / len(runs[energy.TOGETHER :]) * 1e6, "watts": 1}
    nothing = Nvml()
    nothing.nvmlInit_v2 = lambda: 12
    assert energy.per_ns(lambda: None, library=nothing) == {}
    assert "energy is not measured: nvmlInit_v2" in capsys.readouterr().out


def test_less_energy_than_the_peer_is_a_saving(results):
    rows = [{"by": "torchmdx", "mode": "graph", "ms": 1.0, "J_per_ns": 50.0}]
    rows += [{"by": "torchmd-net", "mode": "eager", "ms": 4.0, "J_per_ns": 300.0}]
    rows += [{"by": "torchmd-net", "mode": "graph", "ms": 8.0, "J_per_ns": 200.0}]
    case = released.Case("aceff-1.1", "a.ckpt", "toluene", ["eager", "graph"])
    printed = "Warp 1.19\n" + "\n".join(json.dumps(row) for row in rows)
    (first, *_) = released.beside(released.rows_from(case, in_turn.Ended(printed, "", "")))
    assert (first["speedup"], first["saving"], first["kind"]) == (4.0, 4.0, "molecule")


def test_a_run_without_the_peer_keeps_its_rows_of_this_device(results, monkeypatch):
    head = {"potential": "organic-1", "system": "toluene"}
    peers = [{**head, "by": "torchmd-net", "mode": mode, "ms": ms} for mode, ms in (("graph", 1e4), ("compile", 4e3))]
    peers.append({**head, "by": "torchmd-net", "mode": "eager", "ms": 1.0, "device": "another"})
    record.write("released", [{**head, "by": "torchmdx", "mode": "graph", "ms": 2.0, "speedup": 2e3}, *peers])
    monkeypatch.setenv("BENCHMARK_COMMIT", "newer")
    ours, *kept = run(monkeypatch, "--rows", "organic-1/toluene")["rows"]
    assert kept == [{**row, "commit": "new"} for row in peers[:2]]
    assert ours["speedup"] == pytest.approx(4e3 / ours["ms"], rel=0.01)
    assert "commit" not in ours


def test_the_mode_that_a_process_did_not_end_is_a_row_with_an_error():
    case = released.Case("aceff-1.1", "a.ckpt", "toluene", ["eager", "graph"])
    ended = in_turn.Ended('{"by": "torchmdx", "ms": 1.0}\n', "", "did not end in 5 s")
    (_, row) = released.rows_from(case, ended)
    assert (row["by"], row["mode"], row["error"]) == ("torchmd-net", "eager", "did not end in 5 s")


def test_no_factor_to_a_peer_of_which_a_mode_did_not_end(results):
    rows = [{"by": "torchmdx", "mode": "graph", "ms": 1.0}, {"by": "torchmd-net", "mode": "graph", "ms": 4.0}]
    case = released.Case("aceff-1.1", "a.ckpt", "toluene", ["graph", "compile"])
    printed = "\n".join(json.dumps(row) for row in rows)
    for why, factor in (("did not end in 5 s", None), ("exit status -11", 4.0)):
        (first, *_) = released.beside(released.rows_from(case, in_turn.Ended(printed, "", why)))
        assert first.get("speedup") == factor


@pytest.mark.parametrize(
    ("name", "atoms", "kind"),
    [("toluene", 15, "molecule"), ("chignolin", 166, "protein"), ("Fe 54", 54, "crystal"), ("Cu 4", 4, "crystal")],
)
def test_structures(name, atoms, kind):
    assert (len(released_systems.structure(name)), released_systems.kind(name)) == (atoms, kind)


def test_the_peptide_is_in_the_middle_of_whole_molecules_of_water():
    atoms = released_systems.structure("peptide_in_water")
    peptide, water = atoms[:22], atoms[22:]
    assert atoms.pbc.all()
    assert list(water.symbols) == ["O", "H", "H"] * (len(water) // 3)
    assert abs(peptide.positions.mean(0) - atoms.cell.array.sum(0) / 2).max() < 1e-6
    distances = [atoms.get_distances(k, range(22, len(atoms)), mic=True).min() for k in range(22)]
    assert 2.4 <= min(distances) < 3


def test_the_box_of_water_has_whole_molecules_at_its_density():
    atoms = long_runs.structure(long_runs.LIQUID)
    assert list(atoms.symbols) == ["O", "H", "H"] * 216
    assert atoms.pbc.all()
    assert atoms.get_masses().sum() * long_runs.GRAMS / atoms.get_volume() == pytest.approx(0.997, abs=1e-3)
    apart = atoms.get_all_distances(mic=True) + np.kron(np.eye(216), np.full((3, 3), 100.0))
    assert apart.min() > 1.4  # hydrogen bonds
    bonds = [atoms.get_distance(3 * k, 3 * k + j, mic=True) for k in range(216) for j in (1, 2)]
    assert max(bonds) < 1.01


def test_a_program_that_fails_is_a_row_with_its_last_words():
    pytest.importorskip("openmm")
    from benchmarks import released_dynamics

    head = {"program": "openmm-ml"}
    assert released_dynamics.row_of(head, in_turn.Ended('{"step_ms": 1.0}', "", "")) == head | {"step_ms": 1.0}
    failed = released_dynamics.row_of(head, in_turn.Ended("", "Traceback\nValueError: no\n", "exit status 1"))
    assert failed["error"] == "exit status 1: Traceback\nValueError: no"


def test_dynamics_are_compared_with_openmm_ml():
    pytest.importorskip("openmm")
    from benchmarks import released_dynamics

    rows = [{"program": "Dynamics", "step_ms": 0.1}, {"program": "openmm-ml", "step_ms": 2.5, "J_per_ns": 3.0}]
    assert released_dynamics.compared(rows)[0] == {"program": "Dynamics", "step_ms": 0.1, "speedup": 25.0}


def test_dynamics_are_compared_with_openmm_ml_in_its_best_mode():
    pytest.importorskip("openmm")
    from benchmarks import released_dynamics

    rows = [
        {"program": "OpenMM", "step_ms": 0.5},
        {"program": "openmm-ml", "error": "did not end in 60 s"},
        {"program": released_dynamics.EAGER, "step_ms": 10.0},
    ]
    assert [row.get("speedup") for row in released_dynamics.compared(rows)] == [None, None, None]
    assert released_dynamics.compared([*rows, {"program": "openmm-ml", "step_ms": 5.0}])[0]["speedup"] == 10.0
    assert released_dynamics.compared([*rows, {"program": "openmm-ml", "step_ms": 15.0}])[0]["speedup"] == 20.0


def test_openmm_ml_comes_last_and_takes_no_time_of_others(results, monkeypatch, tmp_path):
    pytest.importorskip("openmm")
    from benchmarks import released_dynamics

    (tmp_path / "aceff-1.1.ckpt").touch()
    groups = []

    def ended(commands, seconds, at_once):
        programs = [json.loads(command[-1])[2] for command in commands]
        groups.append((programs, seconds, at_once))
        for program in programs:
            late = program == released_dynamics.PEER
            yield in_turn.Ended("" if late else '{"step_ms": 1.0}', "", f"did not end in {seconds:g} s" if late else "")

    monkeypatch.setattr(in_turn, "run", ended)
    limits = ["--seconds", "9", "--compile-seconds", "5", "--at-once", "3"]
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path), "--rows", "aceff-1.1/dhfr,aceff-1.1/chignolin", *limits])
    released_dynamics.main()
    ours, eager, compiled = groups
    assert ours == (["Dynamics", "OpenMM"] * 2, 9.0, 3)
    assert eager == ([released_dynamics.EAGER] * 2, 9.0, 3)
    assert compiled == ([released_dynamics.PEER] * 2, 5.0, 1)
    rows = record.read("released_dynamics")["rows"]
    assert [row["step_ms"] for row in rows if row["program"] == "OpenMM"] == [1.0, 1.0]
    assert not any("speedup" in row for row in rows)
    assert [row["error"] for row in rows if row["program"] == "openmm-ml"] == ["did not end in 5 s: "] * 2


def test_a_later_run_of_openmm_ml_is_compared_with_rows_of_the_same_commit(results, monkeypatch, tmp_path):
    pytest.importorskip("openmm")
    from benchmarks import released_dynamics

    (tmp_path / "aceff-1.1.ckpt").touch()
    head = {"potential": "aceff-1.1", "system": "dhfr"}
    old = {**head, "program": "Dynamics", "step_ms": 0.1, "commit": "old"}
    record.write("released_dynamics", [old, {**head, "program": "OpenMM", "step_ms": 0.2}])
    monkeypatch.setattr(
        in_turn, "run", lambda commands, *_: [in_turn.Ended('{"step_ms": 1.0}', "", "")] * len(commands)
    )
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path), "--rows", "aceff-1.1/dhfr", "--programs", "openmm-ml"])
    released_dynamics.main()
    rows = {row["program"]: row.get("speedup") for row in record.read("released_dynamics")["rows"]}
    assert rows == {"Dynamics": None, "OpenMM": 5.0, "openmm-ml": None}


def test_a_long_run_tells_what_it_has_covered(monkeypatch):
    """Rows before the end, of all frames so far; the time of the last frame, not what was asked for."""
    from dataclasses import replace

    run = replace(long_runs.RUNS["dipeptide-nve-2.0"], settling=0.0, hydrogens=None)
    clock = iter(range(0, 10_000, 10))

    def frames(*_):
        for k in range(40):
            yield long_runs.Frame(0.1 * k, 1e-6 * k, 300.0, 1000.0, np.zeros((3, 3)), np.eye(3), 0)

    monkeypatch.setattr(long_runs, "by_dynamics", frames)
    monkeypatch.setattr(long_runs, "start_of", lambda *_: released_systems.toluene())
    monkeypatch.setattr(long_runs.time, "perf_counter", lambda: float(next(clock)))
    rows = list(long_runs.measure("x", run, "organic-1", 100.0, 350.0))
    assert [row["picoseconds"] for row in rows] == [1.9, 2.2, 2.5, 2.8, 3.1, 3.4, 3.6]
    assert rows[-1]["drift_ev_atom_ps"] == pytest.approx(1e-5)
    assert (rows[-1]["temperature"], rows[-1]["hydrogens_amu"]) == (300.0, None)


def test_a_density_is_shown_for_each_tenth_of_a_run():
    """Whether it has settled."""
    atoms = long_runs.structure(long_runs.LIQUID)
    volumes = atoms.get_volume() * np.linspace(1.0, 0.9, 40)
    frames = [long_runs.Frame(float(k), 0.0, 300.0, v, None, None, 0) for k, v in enumerate(volumes)]
    row = long_runs.results(long_runs.RUNS["water-npt"], atoms, frames)
    assert len(row["density_tenths"]) == 10
    assert np.mean(row["density_tenths"]) == pytest.approx(row["density_g_cm3"], abs=1e-4)
    assert row["density_tenths"][0] < 1.01 < 1.09 < row["density_tenths"][-1]


@pytest.mark.parametrize("covered", [0, 1, 19])
def test_a_long_run_of_few_frames_has_no_result(results, monkeypatch, capsys, covered):
    row = dict(run="dipeptide-nve", drift_ev_atom_ps=1e-6)
    record.update("long_runs", [row], ("run",))

    def frames(*_):
        for k in range(covered):
            yield long_runs.Frame(0.1 * k, 1e-6 * k, 300.0, 1000.0, np.zeros((3, 3)), np.eye(3), 0)

    monkeypatch.setattr(long_runs, "by_dynamics", frames)
    monkeypatch.setattr(long_runs, "start_of", lambda *_: released_systems.toluene())
    monkeypatch.setattr(released_systems, "find", lambda *_: "organic-1")
    monkeypatch.setattr("sys.argv", ["long_runs", "--rows", "dipeptide-nve,copper-npt"])
    long_runs.main()
    told = f"'error': 'no result: errors need at least 20 frames, got {covered}; run longer'}}"
    assert capsys.readouterr().out.count(told) == 2
    assert record.read("long_runs")["rows"] == [row]


def test_rows_of_earlier_runs_stay_with_their_commit(results):
    keys, rows = ("system",), [{"system": name, "ms": 1.0} for name in "abc"]
    record.update("one", rows, keys)
    here = record.environment()
    path = results / "one.json"
    path.write_text(path.read_text().replace('"commit": "new"', '"commit": "old"'))
    assert record.current("one") == []
    record.update("one", [{"system": "b", "ms": 2.0}], keys)
    found = record.read("one")
    assert found["environment"] == here
    assert [(row["system"], row["ms"], row.get("commit")) for row in found["rows"]] == [
        ("a", 1.0, "old"),
        ("b", 2.0, None),
        ("c", 1.0, "old"),
    ]
    assert record.current("one") == [{"system": "b", "ms": 2.0}]
    record.update("one", [{"system": "d", "ms": 3.0}], keys)
    assert [row.get("commit") for row in record.read("one")["rows"]] == ["old", None, "old", None]


def test_rows_are_measured_in_the_order_that_is_given(results, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(released, "measure", lambda cases, *_: seen.extend(cases) or [])
    run(monkeypatch, "--rows", "organic-1/dhfr,organic-1/toluene")
    assert [case.system for case in seen] == ["dhfr", "toluene"]
    seen.clear()
    run(monkeypatch, "--rows", "organic-1")
    assert [case.system for case in seen] == list(released_systems.STRUCTURES)
