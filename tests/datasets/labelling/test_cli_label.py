"""`torchmdx label` as a user runs it: whole runs, kills, resumptions, refusals."""

import csv
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import ase.io
import forked_programs
import numpy as np
import pytest
import toys
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from torchmdx.commands import cli
from torchmdx.datasets.labelling.journal import MARK

pytestmark = pytest.mark.usefixtures("quick_workers")
SPRINGS = ("--calculator", "toys:Springs")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def label(*arguments) -> int:
    return cli.main(["label", *(str(argument) for argument in arguments)])


def option(**options) -> list[str]:
    return [word for key, value in options.items() for word in ("--calculator-option", f"{key}={value}")]


def refused(capsys, *arguments) -> str:
    assert label(*arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def start(*arguments, program=()) -> subprocess.Popen:
    """The command in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [*(program or forked_programs.command()), "label", *(str(argument) for argument in arguments)]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def evaluated() -> Counter:
    path = Path("evaluations")
    return Counter(int(line.split()[0]) for line in path.read_text().splitlines()) if path.exists() else Counter()


def wait_for_evaluations(count, process):
    while sum(evaluated().values()) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


@pytest.mark.nightly
def test_a_whole_run_with_order_stress_charge_and_origin(capsys):
    crystal = bulk("Cu", cubic=True)
    crystal.rattle(0.05, seed=3)
    ase.io.write("a.xyz", [crystal, molecule("N2"), crystal * (2, 1, 1)])
    Path("b").mkdir()
    ase.io.write("b/last.traj", [molecule("H2O")])
    assert label("a.xyz", "b/*.traj", "-o", "out.xyz", "--calculator", "emt", "--workers", 2) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("4 of 4 frames labelled; ")
    assert "wrote out.xyz" in printed.out
    assert "100%  4/4 frames labelled" in printed.err
    found = ase.io.read("out.xyz", ":")
    assert [atoms.info["origin"] for atoms in found] == ["a.xyz:0", "a.xyz:1", "a.xyz:2", "b/last.traj:0"]
    assert [atoms.info["charge"] for atoms in found] == [0] * 4
    for atoms, wanted in zip(found, [crystal, molecule("N2"), crystal * (2, 1, 1), molecule("H2O")], strict=True):
        wanted.calc = EMT()
        assert str(atoms.symbols) == str(wanted.symbols)
        np.testing.assert_array_equal(atoms.pbc, wanted.pbc)
        np.testing.assert_allclose(atoms.cell, wanted.cell, atol=1e-7)
        assert atoms.get_potential_energy() == pytest.approx(wanted.get_potential_energy(), abs=1e-5)
        np.testing.assert_allclose(atoms.get_forces(), wanted.get_forces(), atol=1e-6)
        if atoms.pbc.all():
            np.testing.assert_allclose(atoms.get_stress(), wanted.get_stress(), atol=1e-7)
    assert sorted(os.listdir()) == ["a.xyz", "b", "out.xyz"]


@pytest.mark.nightly
def test_failures_are_told_noted_and_tried_again(capsys):
    wanted = toys.write_frames("a.xyz", 6)
    Path("once").mkdir()
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, *option(fail=[1], crash=[4], once="once", log="evaluations")]
    command += ["--workers", 1]
    assert label(*command) == 1  # the crash does not happen again in another worker, the failure stays
    printed = capsys.readouterr().out
    assert "5 of 6 frames labelled, 1 failed" in printed
    assert "  a.xyz:1: RuntimeError: SCF not converged" in printed
    toys.assert_labelled("out.xyz", wanted[:1] + wanted[2:])
    with open("out.xyz.failed.csv", newline="") as file:
        assert list(csv.reader(file)) == [["origin", "reason"], ["a.xyz:1", "RuntimeError: SCF not converged"]]
    assert label(*command) == 1
    assert evaluated()[1] == 1
    assert label(*command, "--retry-failed") == 0
    assert evaluated() == Counter({0: 1, 1: 2, 2: 1, 3: 1, 4: 2, 5: 1})
    toys.assert_labelled("out.xyz", wanted)
    assert sorted(os.listdir()) == ["a.xyz", "evaluations", "once", "out.xyz"]


@pytest.mark.nightly
def test_no_output_where_all_fail(capsys):
    toys.write_frames("a.xyz", 2)
    assert label("a.xyz", "-o", "out.xyz", *SPRINGS, *option(fail=[0, 1]), "--workers", 1) == 1
    assert "0 of 2 frames labelled, 2 failed" in capsys.readouterr().out
    assert not Path("out.xyz").exists()


@pytest.mark.nightly
@pytest.mark.slow
def test_kill_after_kill_loses_and_doubles_nothing():
    wanted = toys.write_frames("a.xyz", 40)
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, *option(delay=0.03, log="evaluations"), "--workers", 2]
    random.seed(4)
    for _ in range(2):
        before = sum(evaluated().values())
        process = start(*command)
        wait_for_evaluations(before + random.randint(6, 12), process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert not Path("out.xyz").exists()
    with open("out.xyz.journal", "ab") as file:
        file.write(MARK + b"\x99\x00\x00\x00 torn")
    process = start(*command)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "note: 13 bytes of out.xyz.journal were incomplete or damaged" in out
    toys.assert_labelled("out.xyz", wanted)
    # What was under way at a kill, one frame in each of two workers, is done again; nothing else is.
    assert set(evaluated()) == set(range(40))
    assert sum(evaluated().values()) <= 40 + 2 * 2
    assert max(evaluated().values()) <= 3


@pytest.mark.nightly
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_stops_cleanly_and_says_how_to_go_on(number):
    wanted = toys.write_frames("a.xyz", 8)
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, "--workers", 1]
    process = start(*command, *option(delay=0.2, log="evaluations"))
    wait_for_evaluations(3, process)
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == 128 + number
    assert f"torchmdx: stopped by {number.name}; the same command continues from out.xyz.journal" in err
    assert "Traceback" not in err
    done = int(out.split(" of 8 frames labelled")[0].split()[-1])
    assert 2 <= done < 8
    assert not Path("out.xyz").exists()
    if number == signal.SIGINT:
        assert label(*command, *option(delay=0.2, log="evaluations")) == 0
        toys.assert_labelled("out.xyz", wanted)


def test_a_signal_while_it_reads_is_answered_before_the_last_frame(capsys, monkeypatch):
    from torchmdx.datasets.labelling.geometry import UnlabelledStructure

    wanted, make, read = toys.write_frames("a.xyz", 8), UnlabelledStructure.from_ase, []

    def slow(*given):
        read.append(1)
        if len(read) == 3:
            signal.raise_signal(signal.SIGTERM)
        return make(*given)

    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, "--workers", 1]
    with monkeypatch.context() as patch:
        patch.setattr(UnlabelledStructure, "from_ase", slow)
        assert label(*command) == 128 + signal.SIGTERM
    assert len(read) == 3
    out, err = capsys.readouterr()
    assert "torchmdx: stopped by SIGTERM while it read; the same command starts again" in err
    assert "frames labelled" not in out
    assert sorted(os.listdir()) == ["a.xyz"]
    assert label(*command) == 0
    toys.assert_labelled("out.xyz", wanted)


@pytest.mark.nightly
def test_a_second_run_of_the_same_output_is_refused(capsys):
    wanted = toys.write_frames("a.xyz", 8)
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, "--workers", 1]
    program = (sys.executable, "-m", "torchmdx.commands.cli")
    process = start(*command, *option(delay=0.2, log="evaluations"), program=program)
    wait_for_evaluations(1, process)
    for further in ([], ["--overwrite"]):
        error = refused(capsys, *command, *option(delay=0.2, log="evaluations"), *further)
        assert f"only one run at a time may write an output, and process {process.pid} on " in error
    process.communicate()
    assert process.returncode == 0
    toys.assert_labelled("out.xyz", wanted)
    assert not Path("out.xyz.lock").exists()


@pytest.mark.nightly
def test_going_on_with_something_else_is_refused(capsys):
    toys.write_frames("a.xyz", 4)
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS, "--workers", 1]
    assert label(*command, *option(fail=[1])) == 1
    kept = Path("out.xyz.journal").read_bytes()
    error = refused(capsys, *command, *option(fail=[2]))
    assert "got options of the calculator {'fail': [2]}, was {'fail': [1]}; --overwrite starts again" in error
    assert "calculator lj, was toys:Springs" in refused(capsys, "a.xyz", "-o", "out.xyz", "--calculator", "lj")
    assert "SHA-256 of structures" in refused(capsys, *command, *option(fail=[1]), "--charge", 1)
    toys.write_frames("a.xyz", 5)
    assert "got structures 5, was 4; SHA-256 of structures" in refused(capsys, *command, *option(fail=[1]))
    assert Path("out.xyz.journal").read_bytes() == kept
    assert label(*command, "--charge", 1, "--overwrite") == 0
    assert [atoms.info["charge"] for atoms in ase.io.read("out.xyz", ":")] == [1] * 5


@pytest.mark.nightly
def test_an_output_is_not_replaced_unasked(capsys):
    wanted = toys.write_frames("a.xyz", 1)
    Path("out.xyz").write_text("precious")
    command = ["a.xyz", "-o", "out.xyz", *SPRINGS]
    assert "--output must be new, got 'out.xyz'; --overwrite replaces it" in refused(capsys, *command)
    assert "could not be made" in refused(capsys, *command, "--overwrite", *option(wrong=1))
    assert Path("out.xyz").read_text() == "precious"
    assert sorted(os.listdir()) == ["a.xyz", "out.xyz"]
    assert label(*command, "--overwrite") == 0
    toys.assert_labelled("out.xyz", wanted)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "out.xyz"], "label needs structure files or --smiles, got neither"),
        (["none.xyz", "-o", "out.xyz"], "no structure file at 'none.xyz'"),
        (["a.xyz", "-o", "out.traj"], "must end in .xyz or .extxyz (extended XYZ), got 'out.traj'"),
        (["a.xyz", "-o", "no/out.xyz"], "must be in an existing folder, got 'no/out.xyz'"),
        (["a.xyz", "-o", "out.xyz", "--workers", 0], "--workers must be at least 1, got 0"),
        (["a.xyz", "-o", "out.xyz", "--timeout", 0], "--timeout must be > 0 s, got 0.0"),
        (["a.xyz", "-o", "out.xyz", "--index", "9"], "'a.xyz' has no structure at index '9'"),
        (
            ["a.xyz", "-o", "out.xyz", "--count", 3],
            "--count applies to --sample conformers or normal-modes or md or rattle",
        ),
        (
            ["a.xyz", "-o", "out.xyz", "--sample", "rattle", "--temperature", 9],
            "--temperature applies to --sample normal-mod",
        ),
        (["a.xyz", "-o", "out.xyz", "--sample", "rattle", "--rattle", -1], "--rattle must be > 0, got -1.0"),
        (["a.xyz", "-o", "out.xyz", "--sample", "md", "--spacing", 0], "--spacing must be at least 1, got 0"),
        (
            ["a.xyz", "-o", "out.xyz", "--sample", "conformers"],
            "conformers needs SMILES, got the structure file 'a.xyz'",
        ),
        (
            ["a.xyz", "-o", "out.xyz", "--sample", "md", "--conformers", 2],
            "--conformers applies to SMILES, got structure files on",
        ),
        (["--smiles", "CCO", "-o", "out.xyz"], "SMILES need --sample, which generates geometries, got 'CCO'"),
        (["--smiles", "C(", "-o", "out.xyz", "--sample", "md"], "must be a SMILES that RDKit understands, got 'C('"),
        (
            ["--smiles", "C", "-o", "out.xyz", "--sample", "md", "--charge", 1],
            "a SMILES defines its charge; got --charge 1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, arguments, words):
    toys.write_frames("a.xyz", 2)
    assert words in refused(capsys, *arguments, *SPRINGS)
    assert os.listdir() == ["a.xyz"]
