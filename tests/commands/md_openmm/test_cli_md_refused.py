"""Invalid input of `torchmdx md`, and its error messages."""

import os
from pathlib import Path

import ase.io
import pytest
from ase.build import molecule
from ase.constraints import FixAtoms
from dcd import read_dcd
from md_runs import TINY, assert_refused, md

import torchmdx

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")


def test_existing_outputs_are_kept_without_overwrite(capsys, done, make_potential):
    before = Path("run.dcd").read_bytes()
    assert_refused(
        capsys,
        md(*done),
        "output files must not exist, got run.dcd, run.log, run.chk, run.xml, run.json, run.final.xyz",
        "--restart continues the run, --overwrite replaces them",
    )
    torchmdx.save(make_potential(**TINY, max_z=3), "small.safetensors")
    assert md(done[0], "small.safetensors", *done[2:], "--overwrite") == 2
    assert Path("run.dcd").read_bytes() == before
    assert md(*done[:-1], 4, "--overwrite") == 0
    assert len(read_dcd(Path("run.dcd"))["frames"]) == 2


def test_a_restart_with_other_settings_is_rejected(capsys, done, model, make_potential):
    before = Path("run.dcd").read_bytes()
    ase.io.write("water.xyz", molecule("H2O"), format="extxyz")
    fixed = ase.io.read("ethanol.xyz")
    fixed.set_constraint(FixAtoms([0, 1, 4]))
    ase.io.write("fixed.xyz", fixed, format="extxyz")
    torchmdx.save(make_potential(seed=1, **TINY), "other.safetensors")
    file, _, prefix, *options = done
    capsys.readouterr()
    more = [*options[:-1], 20, "--restart"]
    cases = [
        (file, model, ["--temperature", 310], "temperature in K 310.0, was 300.0"),
        (file, model, ["--friction", 2], "friction in 1/ps 2.0, was 1.0"),
        (file, model, ["--hydrogen-mass", 2], "hydrogen mass in amu 2.0, was None"),
        (file, model, ["--charge", 1], "charge in e 1.0, was 0.0"),
        (file, model, ["--seed", 6], "seed 6, was 5"),
        (file, model, ["--log-every", 2], "steps between log rows 2, was 3"),
        (file, "other.safetensors", [], "model (SHA-256) "),
        ("water.xyz", model, [], "formula H2O, was C2H6O"),
        (file, model, ["--overwrite"], "--restart continues a run, got it with --overwrite"),
        (file, model, ["--minimize"], "--restart continues a run, got it with --minimize"),
        (file, model, ["--velocities", "new"], "--restart continues a run, got it with --velocities"),
        ("fixed.xyz", model, [], "fixed atoms 0-1 4, was none"),
        (file, model, ["--steps", 8], "--restart needs more steps than the 8 completed, got 8"),
    ]
    for structure, checkpoint, changed, words in cases:
        assert_refused(capsys, md(structure, checkpoint, prefix, *more, *changed), words)
    assert Path("run.dcd").read_bytes() == before


def test_a_restart_without_its_files_is_rejected(capsys, done):
    more = [*done[:-1], 20, "--restart"]
    cases = [
        ("run.log", "x\n", "'run.log' must be a log whose first line is 'step,time_ps,"),
        ("run.log", None, "a restart continues 'run.log', which does not exist"),
        ("run.dcd", "x", "'run.dcd' must be a trajectory of 9 atoms"),
        ("run.dcd", None, "a restart continues 'run.dcd', which does not exist"),
        ("run.json", "[]", "'run.json' must hold the settings of a run"),
        ("run.json", '{"format": 7}', "'run.json' must have format 1 of --engine openmm, got 7"),
        ("run.json", None, "but 'run.json' does not exist"),
    ]
    for name, content, words in cases:
        kept = Path(name).read_bytes()
        os.remove(name)
        if content is not None:
            Path(name).write_text(content)
        assert_refused(capsys, md(*more), words)
        Path(name).write_bytes(kept)
    short = read_dcd(Path("run.dcd"))["frames"].shape[0]
    data = Path("run.dcd").read_bytes()
    Path("run.dcd").write_bytes(data[:-1])
    assert_refused(capsys, md(*more), f"must hold the {short} frames up to the checkpoint, got {short - 1}")
    Path("run.dcd").write_bytes(data)
    os.remove("run.chk")
    Path("run.xml").write_text("<nonsense")
    assert_refused(capsys, md(*more), "the state in the .xml file could not be restored")
    os.remove("run.xml")
    assert_refused(capsys, md(*more), "--restart needs a checkpoint, but 'run.chk' does not exist")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--timestep", 0], "--timestep must be finite and > 0 fs, got 0.0"),
        (["--timestep", "nan"], "--timestep must be finite and > 0 fs, got nan"),
        (["--temperature", 0], "--temperature must be finite and > 0 K, got 0.0"),
        (["--ensemble", "nve", "--temperature", -1], "--temperature must be finite and >= 0 K, got -1.0"),
        (["--friction", 0], "--friction must be finite and > 0 1/ps, got 0.0"),
        (["--skin", -1], "--skin must be finite and >= 0 Å, got -1.0"),
        (["--audit-every", -1], "--audit-every must be >= 0 evaluations, got -1"),
        (["--steps", 0], "--steps must be >= 1 step, got 0"),
        (["--save-every", 0], "--save-every must be >= 1 step, got 0"),
        (["--log-every", -2], "--log-every must be >= 1 step, got -2"),
        (["--checkpoint-every", 0], "--checkpoint-every must be >= 1 step, got 0"),
        (["--seed", -1], "--seed must be between 0 and 4294967295, got -1"),
        (["--ensemble", "nve", "--friction", 2], "--friction needs --ensemble nvt or npt, got --friction 2.0"),
        (["--pressure", 1], "--pressure needs --ensemble npt, got --pressure 1.0 with --ensemble nvt"),
        (["--barostat", "isotropic"], "--barostat needs --ensemble npt, got --barostat isotropic"),
        (["--ensemble", "npt"], "--ensemble npt needs a periodic structure, got 'ethanol.xyz' without a box"),
        (["--ensemble", "npt", "--pressure", "inf"], "--pressure must be a finite number of bar, got inf"),
        (["--platform", "Abacus"], "--platform must be an available OpenMM platform (Reference, "),
        (["--device", "gpu"], "device must be cpu or cuda, got 'gpu'"),
        (["--model", "nowhere.ckpt"], "no checkpoint at 'nowhere.ckpt'"),
        (["-o", "nowhere/run"], "the output must be in an existing directory, got 'nowhere/run': no nowhere"),
        (["-o", "."], "the output must be a prefix of file names, got the directory '.'"),
        (["--index", 4], "--index must be 0 or -1, for the one of 'ethanol.xyz', got 4"),
        (["--velocities", "file"], "--velocities file needs velocities in the file, got 'ethanol.xyz' without any"),
        (["--restart"], "a restart needs the run's settings, but 'run.json' does not exist"),
    ],
)
def test_bad_options_are_refused(capsys, model, ethanol_file, options, words):
    assert_refused(capsys, md(ethanol_file, model, "run", "--steps", 5, *options), words)
    assert sorted(os.listdir()) == ["ethanol.xyz", "model.safetensors"]


def test_time_sets_the_number_of_steps(capsys, model, ethanol_file, unplotted):
    assert md(ethanol_file, model, "run", "--time", 0.01, "--timestep", 1) == 0
    assert "; 10 steps, 0.01 ps;" in capsys.readouterr().out
    status = md(ethanol_file, model, "no", "--time", 0.0001)
    assert_refused(capsys, status, "--time must be at least one --timestep of 0.5 fs, got 0.0001 ps")
    for options in ([], ["--steps", 5, "--time", 1]):
        with pytest.raises(SystemExit):
            md(ethanol_file, model, "no", *options)


def test_without_openmm_the_error_has_the_install_command(capsys, monkeypatch, model, ethanol_file):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status = md(ethanol_file, model, "run", "--steps", 5)
    assert_refused(capsys, status, "OpenMM, which is not installed: pip install 'torchmdx[openmm]'")
