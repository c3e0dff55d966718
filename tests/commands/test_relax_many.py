import os
import re
import signal
import subprocess
import time
from pathlib import Path

import ase.build
import ase.io
import forked_programs
import numpy as np
import pytest
from ase import Atoms

import torchmdx
from torchmdx import Calculator
from torchmdx.commands import cli
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import GPA

NAMES = ("CH3CH2OH", "H2O", "NH3", "CH4", "C2H6", "H2CO")


def molecules(count: int = 6) -> list[Atoms]:
    found = []
    for k in range(count):
        atoms = ase.build.molecule(NAMES[k % len(NAMES)])
        atoms.rattle(0.03, seed=k)
        atoms.info["name"] = f"m{k}"
        found.append(atoms)
    return found


@pytest.fixture
def relax(make_potential, tmp_path, monkeypatch):
    """Runs the command on structures, in an empty folder, and returns its status; the output is out.xyz."""
    monkeypatch.chdir(tmp_path)
    torchmdx.save(make_potential(), "model.safetensors")

    def run(structures: list[Atoms] | None, *options: str) -> int:
        if structures is not None:
            ase.io.write("in.traj", structures)
        return cli.main([*command(), *options])

    return run


def command(index: str = ":") -> list[str]:
    model = ["--model", "model.safetensors", "--device", "cpu", "--dtype", "float64"]
    return ["relax", "in.traj", "-o", "out.xyz", *model, "--index", index, "--fmax", "0.2"]


def indices(path: str = "out.xyz") -> list[int]:
    return [frame.info["relax_index"] for frame in ase.io.read(path, ":")]


def test_all_structures_in_their_order_with_a_line_for_each(relax, capsys):
    assert relax(molecules()) == 0
    frames = ase.io.read("out.xyz", ":")
    assert indices() == list(range(6))
    out = capsys.readouterr().out
    assert "in.traj: 6 structures; 33 atoms to relax, float64" in out
    lines = re.findall(r"^ +(\d+)  (\w+) +energy (\S+) eV  fmax (\S+) eV/Å  (\d+) steps$", out, re.MULTILINE)
    assert len(lines) == 6
    for number, formula, energy, fmax, steps in lines:
        frame = frames[int(number)]
        assert formula == frame.get_chemical_formula()
        assert frame.info["name"] == f"m{number}"
        again = Atoms(frame.numbers, frame.positions, calculator=Calculator("model.safetensors", dtype="float64"))
        assert float(energy) == pytest.approx(again.get_potential_energy(), abs=1e-6)
        assert np.linalg.norm(again.get_forces(), axis=1).max() == pytest.approx(float(fmax), abs=1e-4)
        assert int(steps) == frame.info["relax_steps"]
    assert re.search(r"^6 of 6 structures converged, in out.xyz; [\d.]+ s$", out, re.MULTILINE)


def test_part_of_a_file(relax, capsys):
    ase.io.write("in.traj", molecules())
    assert cli.main(command("1:5:2")) == 0
    assert indices() == [1, 3]


def test_failures_have_a_file_and_a_status(relax, capsys):
    structures = molecules()
    structures[2].positions[1] = structures[2].positions[0]
    assert relax(structures, "--steps", "40") == 1
    assert indices() == [0, 1, 3, 4, 5]
    (failure,) = ase.io.read("out.failed.xyz", ":")
    assert failure.info["relax_index"] == 2
    assert "energy or forces are not finite" in failure.info["relax_failure"]
    out = capsys.readouterr().out
    assert re.search(r"^ +2  H3N +failed: energy or forces are not finite", out, re.MULTILINE)
    assert "5 of 6 structures converged, in out.xyz, 1 failed, in out.failed.xyz" in out


def test_a_resumed_run_skips_what_is_done(relax, capsys):
    assert relax(molecules()) == 0
    whole = Path("out.xyz").read_text()
    frames = ase.io.read("out.xyz", ":")
    lines = whole.splitlines(keepends=True)
    kept = len(frames[0]) + 2 + len(frames[1]) + 2
    Path("out.xyz").write_text("".join(lines[: kept + 3]))  # two frames, and the beginning of a third
    capsys.readouterr()
    assert relax(None, "--resume") == 0
    out = capsys.readouterr().out
    assert "6 structures, 2 already done; 21 atoms to relax" in out
    assert len(re.findall("^ +\\d+  ", out, re.MULTILINE)) == 4
    assert [len(frame) for frame in ase.io.read("out.xyz", ":")] == [len(frame) for frame in frames]
    for ours, theirs in zip(ase.io.read("out.xyz", ":"), frames, strict=True):
        np.testing.assert_allclose(ours.positions, theirs.positions, atol=1e-6)
    assert relax(None, "--resume") == 0
    assert "6 already done; 0 atoms to relax" in capsys.readouterr().out


@pytest.mark.nightly
def test_a_killed_run_loses_nothing_that_it_reported(relax, tmp_path):
    ase.io.write("in.traj", molecules(40))
    options = ["--batch-atoms", "12", "--fmax", "0.05"]
    process = subprocess.Popen(
        [*forked_programs.command(), *command(), *options],
        stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    reported = []
    for line in process.stdout:
        if re.match(r" +\d+  ", line):
            reported.append(int(line.split()[0]))
        if len(reported) == 5:
            break
    process.kill()
    process.wait()
    process.stdout.close()
    done = indices() + (indices("out.failed.xyz") if os.path.exists("out.failed.xyz") else [])
    assert set(reported) <= set(done)
    assert len(done) < 40
    status = cli.main([*command(), *options, "--resume"])
    failed = indices("out.failed.xyz") if os.path.exists("out.failed.xyz") else []
    assert status == (1 if failed else 0)
    assert sorted(indices() + failed) == list(range(40))
    assert indices() == sorted(indices())


def test_ctrl_c_keeps_what_is_done(relax, capsys, monkeypatch):
    from torchmdx.dynamics.relaxation.output import RelaxationOutput

    original = RelaxationOutput.add

    def add(self, *given) -> None:
        original(self, *given)
        if len(self.done) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    monkeypatch.setattr(RelaxationOutput, "add", add)
    assert relax(molecules(), "--batch-atoms", "9") == 128 + signal.SIGINT
    assert 2 <= len(indices()) < 6
    assert indices() == sorted(indices())
    shown = capsys.readouterr()
    assert f"stopped by SIGINT, {6 - len(indices())} are not done; --resume continues" in shown.err


def test_cells_and_pressure(make_potential, relax, capsys):
    potential = make_potential(priors=[ZBLConfig])
    potential.scale.fill_(0)
    torchmdx.save(potential, "model.safetensors")
    structures = [ase.build.bulk("C", "fcc", a=a) for a in (2.8, 3.0, 3.2)]
    assert relax(structures, "--cell", "--pressure", "60", "--fmax", "0.005") == 0
    frames = ase.io.read("out.xyz", ":")
    for frame in frames:
        np.testing.assert_allclose(frame.get_stress()[:3], -60 * GPA, rtol=0.02)
        assert frame.get_volume() == pytest.approx(frames[0].get_volume(), rel=0.01)
        assert f"volume {frame.get_volume():.3f} Å³" in capsys.readouterr().out or frame is not frames[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--trajectory", "t.traj"], "--trajectory needs one structure, got --index :"),
        (["--fix-symmetry", "--cell"], "--fix-symmetry needs one structure, got --index :"),
        (["--optimizer", "bfgs"], "--optimizer must be lbfgs or fire for several structures, got bfgs"),
        (["-o", "out.cif"], "--output must end in .xyz or .extxyz for several structures, got 'out.cif'"),
        (["-o", "no/out.xyz"], "--output must be in an existing directory, got 'no/out.xyz'"),
        (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
        (["--index", "9:"], "'in.traj' has no structure at index '9:'; it has 2"),
        (["--index", "0", "--resume"], "--resume needs several structures, such as --index :, got --index 0"),
        (["--batch-atoms", "0"], "batch_atoms must be >= 1, got 0"),
    ],
)
def test_options_that_do_not_fit(relax, capsys, monkeypatch, options, text):
    monkeypatch.delenv("TORCHMDX_TRACEBACK", raising=False)
    assert relax(molecules(2), *options) == 2
    assert text in capsys.readouterr().err


def test_existing_output_is_kept_unless_asked(relax, capsys, monkeypatch):
    monkeypatch.delenv("TORCHMDX_TRACEBACK", raising=False)
    Path("out.xyz").write_text("mine")
    assert relax(molecules(2)) == 2
    assert "out.xyz; --resume continues them, --overwrite replaces them" in capsys.readouterr().err
    assert Path("out.xyz").read_text() == "mine"
    assert relax(molecules(2), "--overwrite") == 0
    assert indices() == [0, 1]
    assert relax(molecules(2), "--resume", "--fmax", "0.1") == 2
    assert "must hold structures of this input" in capsys.readouterr().err
    assert indices() == [0, 1]


def test_the_structure_file_is_never_the_output(relax, capsys, monkeypatch):
    monkeypatch.delenv("TORCHMDX_TRACEBACK", raising=False)
    ase.io.write("in.xyz", molecules(2))
    before = Path("in.xyz").read_text()
    assert cli.main(["relax", "in.xyz", "-o", "in.xyz", "--index", ":", "--overwrite"]) == 2
    assert "--output must not be the structure file" in capsys.readouterr().err
    assert Path("in.xyz").read_text() == before


def test_a_signal_while_it_reads_leaves_an_output_to_resume(relax, capsys, monkeypatch):
    from torchmdx.commands import relax_many

    read = relax_many.structures_of

    def slow(options):
        signal.raise_signal(signal.SIGTERM)
        return read(options)

    monkeypatch.setattr(relax_many, "structures_of", slow)
    assert relax(molecules(2)) == 128 + signal.SIGTERM
    assert "stopped by SIGTERM, 2 are not done; --resume continues" in capsys.readouterr().err
    monkeypatch.setattr(relax_many, "structures_of", read)
    assert relax(None, "--resume") == 0
    assert indices() == [0, 1]
