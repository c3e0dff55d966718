import hashlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import ase.build
import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.constraints import FixAtoms

import torchmdx
import torchmdx.checkpoints.save_load
from torchmdx import Calculator
from torchmdx.commands import cli, info
from torchmdx.runtime.compile_cache import CompileError
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.structures.units import GPA, HARTREE


@pytest.fixture
def model(make_potential, tmp_path) -> str:
    path = tmp_path / "model.safetensors"
    torchmdx.save(make_potential(), path)
    return str(path)


@pytest.fixture
def molecule_file(ethanol, tmp_path) -> str:
    path = tmp_path / "ethanol.xyz"
    ase.io.write(path, ethanol, format="extxyz")
    return str(path)


@pytest.fixture
def crystal_file(crystal, tmp_path) -> str:
    path = tmp_path / "crystal.xyz"
    ase.io.write(path, crystal, format="extxyz")
    return str(path)


def expected(model: str, path: str) -> Atoms:
    atoms = ase.io.read(path)
    atoms.calc = Calculator(model, dtype="float64", device="cpu")
    return atoms


def assert_refused(capsys, arguments, *words):
    """The command ends with status 2 and one line that holds the words, not with a traceback."""
    assert cli.main([str(argument) for argument in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("torchmdx: error: ")
    assert "Traceback" not in error
    for word in words:
        assert word in error, error


def test_energy_prints_a_table(capsys, model, molecule_file, crystal_file, tmp_path):
    assert cli.main(["energy", molecule_file, "--model", model, "--device", "cpu"]) == 0
    read, head, row = capsys.readouterr().out.splitlines()
    digest = hashlib.sha256(Path(model).read_bytes()).hexdigest()[:12]
    assert read == f"{molecule_file}: 1 structure, charge 0 (the default); {Path(model).name} (SHA-256 {digest})"
    assert " ".join(head.split()) == "# formula energy / eV max force / eV/Å pressure / GPa"
    atoms = expected(model, molecule_file)
    number, formula, energy, force, pressure = row.split()
    assert (number, formula, pressure) == ("0", "C2H6O", "-")
    assert float(energy) == pytest.approx(atoms.get_potential_energy(), abs=1e-7)
    assert float(force) == pytest.approx(np.linalg.norm(atoms.get_forces(), axis=1).max(), abs=1e-5)
    assert cli.main(["energy", crystal_file, "--model", model, "--device", "cpu"]) == 0
    crystal = expected(model, crystal_file)
    pressure = float(capsys.readouterr().out.split()[-1])
    assert pressure == pytest.approx(-crystal.get_stress()[:3].mean() / GPA, abs=1e-3)


def test_energy_prints_forces(capsys, model, molecule_file):
    assert cli.main(["energy", molecule_file, "--model", model, "--forces"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    atoms = expected(model, molecule_file)
    assert [row[0] for row in rows] == list(atoms.symbols)
    np.testing.assert_allclose(np.array([row[1:] for row in rows], float), atoms.get_forces(), atol=1e-7)


def test_energy_prints_json_of_every_structure(capsys, model, ethanol, crystal, tmp_path):
    path = tmp_path / "both.xyz"
    ase.io.write(path, [ethanol, crystal], format="extxyz")
    assert cli.main(["energy", str(path), "--model", model, "--json"]) == 0
    molecule, solid = json.loads(capsys.readouterr().out)
    assert (molecule["formula"], molecule["num_atoms"]) == ("C2H6O", 9)
    assert "stress" not in molecule
    calculator = Calculator(model, dtype="float64")
    assert solid["energy"] == pytest.approx(calculator.get_potential_energy(crystal), abs=1e-6)
    np.testing.assert_allclose(solid["forces"], calculator.get_forces(crystal), atol=1e-6)
    crystal.calc = calculator
    np.testing.assert_allclose(solid["stress"], crystal.get_stress(voigt=False), atol=1e-6)
    assert cli.main(["energy", str(path), "--model", model, "--json", "--index", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1


def test_energy_takes_charge_and_dtype(capsys, model, ethanol, molecule_file):
    def energy(*options):
        assert cli.main(["energy", molecule_file, "--model", model, "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)[0]["energy"]

    atoms = ase.io.read(molecule_file)
    charged = Calculator(model, dtype="float64", charge=-2)
    assert energy("--charge", "-2") == charged.get_potential_energy(atoms)
    assert energy("--dtype", "float32") == Calculator(model, dtype="float32").get_potential_energy(atoms)
    assert energy("--dtype", "float32") != energy()


def test_energy_and_relax_take_every_record_with_its_charge(capsys, model, tmp_path):
    record = (
        "\n     made        3D\n\n  1  0  0  0  0  0  0  0  0  0999 V2000\n    0.0 0.0 0.0 O   0  0\nM  END\n$$$$\n"
    )
    record = record.replace("    0.0 0.0 0.0 ", "    0.0000    0.0000    0.0000 ")
    path = tmp_path / "ions.sdf"
    path.write_text(record + record.replace("M  END", "M  CHG  1   1  -2\nM  END") * 2)
    command = ["energy", str(path), "--model", model, "--device", "cpu"]
    assert cli.main(command) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{path}: 3 structures, charge 0 (the default), charge -2 (sum of formal charges); ")
    assert len(rows) == 3
    assert cli.main([*command, "--json", "--index", "1:"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["charge"], row["charge_from"]) for row in found] == [(-2, "sum of formal charges")] * 2
    charged = Calculator(model, dtype="float64", charge=-2, device="cpu").get_potential_energy(Atoms("O"))
    assert found[0]["energy"] == pytest.approx(charged, abs=1e-9)
    assert cli.main(["relax", *command[1:], "--index", "1", "-o", str(tmp_path / "o.xyz")]) == 0
    printed = capsys.readouterr().out
    assert f"{path}: frame 2 of 3 (index 1)" in printed
    assert "O, 1 atoms, charge -2 (sum of formal charges)" in printed
    assert ase.io.read(tmp_path / "o.xyz").info["charge"] == -2


def test_energy_shows_the_forces_on_fixed_atoms(capsys, model, ethanol, tmp_path):
    path = tmp_path / "fixed.traj"
    ethanol.set_constraint(FixAtoms(range(9)))
    ase.io.write(path, ethanol)
    assert cli.main(["energy", str(path), "--model", model, "--device", "cpu", "--json"]) == 0
    forces = json.loads(capsys.readouterr().out)[0]["forces"]
    ethanol.set_constraint()
    wanted = Calculator(model, dtype="float64", device="cpu").get_forces(ethanol)
    np.testing.assert_allclose(forces, wanted, atol=1e-9)


def test_relax_writes_a_minimum(capsys, model, molecule_file, tmp_path):
    output, steps = tmp_path / "relaxed.xyz", tmp_path / "steps.traj"
    command = ["relax", molecule_file, "-o", str(output), "--model", model, "--fmax", "0.05"]
    assert cli.main([*command, "--trajectory", str(steps)]) == 0
    assert "BFGS" in capsys.readouterr().out
    before, after = expected(model, molecule_file), expected(model, str(output))
    assert after.get_potential_energy() < before.get_potential_energy() - 0.01
    assert np.linalg.norm(after.get_forces(), axis=1).max() < 0.06
    assert len(ase.io.read(steps, ":")) > 2


@pytest.mark.nightly
def test_relax_moves_the_cell_only_on_request(model, crystal_file, tmp_path):
    fixed, free = tmp_path / "fixed.xyz", tmp_path / "free.xyz"
    command = ["relax", crystal_file, "--model", model, "--fmax", "0.05"]
    assert cli.main([*command, "-o", str(fixed)]) == 0
    assert cli.main([*command, "-o", str(free), "--cell"]) == 0
    start, fixed, free = ase.io.read(crystal_file), ase.io.read(fixed), ase.io.read(free)
    np.testing.assert_allclose(fixed.cell, start.cell, atol=1e-7)
    assert np.abs(free.cell - start.cell).max() > 0.01
    assert free.get_potential_energy() < fixed.get_potential_energy()


def test_relax_that_does_not_converge_writes_its_result_and_exits_1(capsys, model, molecule_file, tmp_path):
    output = tmp_path / "relaxed.xyz"
    command = ["relax", molecule_file, "-o", str(output), "--model", model]
    assert cli.main([*command, "--steps", "1", "--fmax", "1e-9"]) == 1
    assert "not converged to 1e-09 eV/Å in 1 steps; raise --steps or --fmax" in capsys.readouterr().err
    assert len(ase.io.read(output)) == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fmax", "0"], "--fmax must be > 0 eV/Å, got 0.0"),
        (["--steps", "0"], "--steps must be >= 1, got 0"),
        (["--cell"], "--cell needs a periodic structure"),
        (["--device", "gpu"], "device must be cpu or cuda, got 'gpu'"),
        (["--index", "5"], "--index must be 0 or -1, for the one of"),
    ],
)
def test_relax_refuses_bad_options(capsys, model, molecule_file, tmp_path, options, words):
    output = tmp_path / "relaxed.xyz"
    assert_refused(capsys, ["relax", molecule_file, "-o", output, "--model", model, *options], words)
    assert not output.exists()


def test_relax_of_a_cell_without_volume_is_refused(capsys, model, bare_slab, tmp_path):
    path = tmp_path / "slab.traj"
    ase.io.write(path, bare_slab)
    command = ["relax", path, "-o", tmp_path / "o.xyz", "--model", model, "--cell"]
    assert_refused(capsys, command, "needs a cell with three lattice vectors, got one of rank 2")


@pytest.mark.parametrize(
    ("output", "words"),
    [("relaxed.nonsense", "relaxed.nonsense"), ("nowhere/relaxed.xyz", "must be in an existing directory")],
)
def test_relax_refuses_an_output_it_cannot_write_before_the_work(capsys, model, molecule_file, tmp_path, output, words):
    assert_refused(capsys, ["relax", molecule_file, "-o", tmp_path / output, "--model", model], words)
    assert "BFGS" not in capsys.readouterr().out


def test_an_unreadable_structure_is_named(capsys, model, tmp_path):
    path = tmp_path / "structure.xyz"
    path.write_text("this is no structure\n")
    for command in (["energy", path], ["relax", path, "-o", tmp_path / "o.xyz"]):
        assert_refused(capsys, [*command, "--model", model], "ASE can't read", "structure.xyz")
        assert_refused(capsys, [command[0], "nowhere.xyz", *command[2:], "--model", model], "no structure file at")


def test_a_bad_structure_is_refused(capsys, model, tmp_path):
    path = tmp_path / "touching.xyz"
    ase.io.write(path, Atoms("H2", [[0, 0, 0], [0, 0, 0]]), format="extxyz")
    assert_refused(capsys, ["energy", path, "--model", model], "atoms must not coincide, got atoms 0 and 1")


def test_a_bad_checkpoint_is_refused(capsys, molecule_file, data, tmp_path):
    unsupported = tmp_path / "edited.ckpt"
    held = torch.load(data / "tensornet2.ckpt", weights_only=True)
    held["hyper_parameters"]["prior_model"] = "D4"
    torch.save(held, unsupported)
    cases = [
        (tmp_path / "nowhere.ckpt", "no checkpoint at"),
        (molecule_file, "is not a readable checkpoint"),
        (unsupported, "edited.ckpt': prior_model D4 is not supported"),
    ]
    for path, words in cases:
        assert_refused(capsys, ["energy", molecule_file, "--model", path], words)
        assert_refused(capsys, ["info", path], words)
        assert_refused(capsys, ["convert", path, tmp_path / "out.safetensors"], words)
    assert not (tmp_path / "out.safetensors").exists()


def test_the_traceback_is_there_on_request(monkeypatch):
    monkeypatch.setenv("TORCHMDX_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        cli.main(["info", "nowhere.safetensors"])


@pytest.mark.parametrize(("unit", "factor"), [("eV", 1.0), ("hartree", HARTREE)])
def test_a_converted_checkpoint_gives_the_same_energies(capsys, data, molecule_file, tmp_path, unit, factor):
    source, target = data / "tensornet.ckpt", tmp_path / "converted.safetensors"
    assert cli.main(["convert", str(source), str(target), "--energy-unit", unit]) == 0
    out = capsys.readouterr().out
    assert f"wrote {target}" in out
    assert "TensorNet, 2 layers, 16 channels" in out
    atoms = ase.io.read(molecule_file)
    before, after = (Calculator(path, dtype="float64") for path in (source, target))
    assert after.get_potential_energy(atoms) == pytest.approx(factor * before.get_potential_energy(atoms), rel=1e-13)
    np.testing.assert_allclose(after.get_forces(atoms), factor * before.get_forces(atoms), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["tensornet2-cut", "tensornet-zbl", "tensornet2-repulsion", "tensornet-d2"])
def test_a_converted_checkpoint_has_priors_in_its_unit(capsys, data, tmp_path, name):
    source, target = data / f"{name}.ckpt", tmp_path / "converted.safetensors"
    assert cli.main(["convert", str(source), str(target), "--energy-unit", "hartree"]) == 0
    out = capsys.readouterr().out
    assert "energies in hartree to eV: constants and priors times 27.21" in out
    assert "prior " in out
    for atoms in (ase.build.molecule("CH3CH2OH"), Atoms("NaCl", [[0, 0, 0], [0, 0, 1.9]])):
        before, after = (Calculator(path, dtype="float64") for path in (source, target))
        assert after.get_potential_energy(atoms) == pytest.approx(
            HARTREE * before.get_potential_energy(atoms), rel=1e-12
        )


def test_a_conversion_leaves_a_report_beside_the_file(capsys, data, tmp_path):
    source, target = data / "tensornet2-coulomb.ckpt", tmp_path / "model.safetensors"
    assert cli.main(["convert", str(source), str(target), "--coulomb-cutoff", "8.5"]) == 0
    out, report = capsys.readouterr().out, (tmp_path / "model.report.txt").read_text()
    assert f"wrote {target} and {tmp_path / 'model.report.txt'}" in out
    assert report in out
    for words in (
        f"source: {source}",
        f"sha256: {hashlib.sha256(source.read_bytes()).hexdigest()}",
        "read:",
        "remapped:",
        "ignored:",
        "cutoff of the Coulomb energy: 8.5 Å, from --coulomb-cutoff",
        "TensorNet2, 2 layers, 16 channels, 4 charges a layer",
        "prior coulomb: cutoff 8.5, cut_in_vacuum False, damping 4.6",
    ):
        assert words in report
    (config,) = torchmdx.load(target).prior_configs
    assert config.cutoff == 8.5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.report.txt", "model.safetensors"]


def test_convert_adds_reference_energies_that_were_removed(capsys, data, tmp_path):
    source = tmp_path / "delta.ckpt"
    held = torch.load(data / "tensornet-zbl.ckpt", weights_only=True)
    held["hyper_parameters"]["remove_ref_energy"] = True
    held["hyper_parameters"]["prior_args"][0]["enable"] = False
    torch.save(held, source)
    for extra, there in (([], False), (["--total-energy"], True)):
        target = tmp_path / "model.safetensors"
        assert cli.main(["convert", str(source), str(target), "--overwrite", *extra]) == 0
        assert bool(torchmdx.load(target).reference_energies.any()) == there
    assert "reference energies, enabled on request" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["zip", "list"])
def test_an_ensemble_is_converted_to_a_zip(capsys, data, molecule_file, tmp_path, how):
    sources = [data / "tensornet.ckpt", data / "tensornet-charged.ckpt"]
    if how == "zip":
        with zipfile.ZipFile(tmp_path / "members.zip", "w") as archive:
            for path in reversed(sources):
                archive.write(path, path.name)
        given = [tmp_path / "members.zip"]
        sources = sources[::-1]  # sorted by name, "-" before "."
    else:
        given = sources
    target = tmp_path / "ensemble.zip"
    assert cli.main(["convert", *map(str, given), str(target)]) == 0
    assert capsys.readouterr().out.count("TensorNet, 2 layers") == 2
    for path, potential in zip(sources, torchmdx.checkpoints.save_load.load_ensemble(target), strict=True):
        wanted = torchmdx.load(path)
        assert all(torch.equal(value, potential.state_dict()[name]) for name, value in wanted.state_dict().items())
    assert cli.main(["info", str(target), "--atoms", "22", "--card", "H100"]) == 0
    said = capsys.readouterr().out
    assert said.count("TensorNet, 2 layers") == 2
    assert "2 members: fused kernels" in said
    assert "side by side" in said
    assert "other work may run at the same time" in said  # so that they do not take one launch
    assert_refused(
        capsys, ["convert", *given, tmp_path / "one.ckpt"], "of an ensemble must end in .safetensors or .zip"
    )


def test_what_convert_is_asked_must_fit(capsys, data, tmp_path):
    target = tmp_path / "model.safetensors"
    plain = ["convert", data / "tensornet.ckpt", target]
    assert_refused(
        capsys,
        [*plain, "--coulomb-cutoff", "9"],
        "coulomb_cutoff needs a potential with a Coulomb energy, got 9.0 Å for this potential, which has none",
    )
    assert_refused(capsys, [*plain, "--sha256", "0" * 64], f"must be {'0' * 64}, got")
    coulomb = ["convert", data / "tensornet2-coulomb.ckpt", target, "--coulomb-cutoff", "-1"]
    assert_refused(capsys, coulomb, "cutoff of the prior coulomb must be > 0 Å and finite, got -1.0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["model.safetensors", "model.report.txt"])
def test_convert_keeps_existing_files(capsys, data, tmp_path, there):
    (tmp_path / there).write_text("precious")
    command = ["convert", str(data / "tensornet.ckpt"), str(tmp_path / "model.safetensors")]
    assert_refused(capsys, command, f"must not exist, got {tmp_path / there}; --overwrite replaces them")
    assert [path.name for path in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "precious"
    assert cli.main([*command, "--overwrite"]) == 0
    assert torchmdx.load(tmp_path / "model.safetensors").cutoff > 0
    assert "TensorNet" in (tmp_path / "model.report.txt").read_text()


def test_convert_refuses_another_ending(capsys, data, tmp_path):
    command = ["convert", data / "tensornet.ckpt", tmp_path / "model.ckpt"]
    assert_refused(capsys, command, "the target must end in .safetensors")


def test_info_lists_versions_devices_and_parts(capsys):
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    for words in (
        f"torchmdx {torchmdx.__version__}",
        "Python 3",
        "torch 2",
        "GPU",
        "required:",
        "ok  ase",
        "compiled code:",
        "cell_list",
        "optional:",
    ):
        assert words in out
    assert "the installation is complete" in out
    releases = [line for line in out.splitlines() if "downloaded on first use" in line]
    assert len(releases) == 8
    assert all("; licence: " in line for line in releases)
    assert [line.split()[1] for line in releases if "licence: none is named on the page" in line] == [
        "TensorNet-PES-MatPES-r2SCAN-2025.2-m",
        "TensorNet-PES-ANI-1x-Subset",
    ]


@pytest.mark.parametrize("case", ["another GPU", "no NVRTC", "both"])
def test_info_says_whether_few_atoms_take_one_launch(monkeypatch, case):
    pytest.importorskip("triton")
    assert info.one_launch_state() is None or torch.cuda.is_available()

    def missing():
        raise CompileError("NVRTC was not found")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0) if case == "another GPU" else (9, 0))
    monkeypatch.setattr("torchmdx.runtime.cuda_source.nvrtc", missing if case == "no NVRTC" else lambda: None)
    assert (
        info.one_launch_state()
        == {
            "another GPU": (False, "slower: it needs a GPU of sm_90"),
            "no NVRTC": (False, "slower: NVRTC was not found"),
            "both": (True, "compiled by NVRTC on first use"),
        }[case]
    )


def test_info_says_what_is_missing_and_how_to_get_it(capsys, monkeypatch):
    from torchmdx.commands import info

    monkeypatch.setattr(info, "OPTIONAL", (("no-such-part", "nothing", "pip install no-such-part"),))
    assert cli.main(["info"]) == 0
    assert "--  no-such-part   missing: pip install no-such-part" in capsys.readouterr().out
    monkeypatch.setattr(info, "REQUIRED", info.OPTIONAL)
    assert cli.main(["info"]) == 1
    assert "the installation is incomplete" in capsys.readouterr().out


def test_info_describes_a_checkpoint(capsys, model):
    assert cli.main(["info", model]) == 0
    out = capsys.readouterr().out
    for words in ("2 layers, 8 channels, 6 expnorm", "O(3)", "cutoff 4.0 Å", "up to 35", "float64", "scale 1.7 eV"):
        assert words in out


def test_info_says_what_runs(capsys, model):
    assert cli.main(["info", model]) == 0
    assert len(re.findall(r"^(22|2,500) atoms on .*: ", capsys.readouterr().out, re.M)) == 2
    assert cli.main(["info", model, "--atoms", "600", "--card", "rtx4090"]) == 0
    out = capsys.readouterr().out
    assert "\n600 atoms on RTX 4090 (sm_89, 24 GiB), float32: fused kernels\n" in out
    assert "tiles of atoms are faster for 2,000 atoms or more, got 600" in out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--card", "V100"], "card must be one of H200, H100, A100"),
        (["--atoms", "-1"], "--atoms must be >= 0, got -1"),
    ],
)
def test_info_refuses_other_cards_and_numbers(capsys, model, options, words):
    assert_refused(capsys, ["info", model, *options], words)
    assert_refused(capsys, ["info", *options], "--atoms, --card and --periodic need a CHECKPOINT, got none")


def test_info_says_how_a_checkpoint_of_torchmdnet_was_read(capsys, data, tmp_path):
    checkpoint = torch.load(data / "tensornet.ckpt", weights_only=True)
    del checkpoint["hyper_parameters"]["static_shapes"]
    torch.save(checkpoint, tmp_path / "old.ckpt")
    assert cli.main(["info", str(data / "tensornet.ckpt")]) == 0
    assert "\nread: new layout: rows by part, then channel\n" in capsys.readouterr().out
    assert cli.main(["info", str(tmp_path / "old.ckpt")]) == 0
    assert "\nconverted: old layout (no 'static_shapes' in its settings): rows of " in capsys.readouterr().out


@pytest.mark.parametrize("command", [[], ["energy"], ["relax"], ["convert"], ["info"]])
def test_help_explains_every_command_and_option(capsys, command):
    with pytest.raises(SystemExit) as ended:
        cli.main([*command, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: torchmdx")
    wanted = {
        "": [
            "energy, forces and stress",
            "relax a structure",
            "of torchmd-net",
            "list installed packages",
        ],
        "energy": ["--model", "--charge", "--dtype", "--device", "--forces", "--json", "any format that ASE reads"],
        "relax": ["--model", "--cell", "--fmax", "--steps", "eV/Å"],
        "convert": [
            "--energy-unit",
            "--total-energy",
            "--coulomb-cutoff",
            "--sha256",
            "code in the files is never run",
        ],
        "info": ["checkpoint"],
    }
    for words in wanted["".join(command)]:
        assert words in " ".join(out.split())


@pytest.mark.parametrize("arguments", [[], ["dance"], ["energy"], ["energy", "x.xyz", "--model", "m", "--charge", "a"]])
def test_a_wrong_command_line_exits_2_with_usage(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage: torchmdx" in capsys.readouterr().err


def test_the_module_runs_as_a_program(molecule_file, data):
    command = [sys.executable, "-m", "torchmdx.commands.cli"]
    model = str(data / "tensornet.safetensors")
    done = subprocess.run(
        [*command, "energy", molecule_file, "--model", model, "--json"], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["num_atoms"] == 9


def test_a_checkpoint_that_is_not_there_ends_with_2(capsys):
    assert cli.main(["info", "nowhere"]) == 2
    assert "torchmdx: error: no checkpoint at 'nowhere'" in capsys.readouterr().err


def test_info_counts_one_thing_as_one(capsys, make_potential, tmp_path):
    torchmdx.save(make_potential(num_layers=1), tmp_path / "small.safetensors")
    assert cli.main(["info", str(tmp_path / "small.safetensors")]) == 0
    assert "TensorNet, 1 layer, 8 channels, " in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "convert a.safetensors {}",
        "data convert a.xyz -o {}",
        "data split a.store -o {}",
        "demo -o {}",
        "energy a.xyz -o {}",
        "evaluate a.xyz -o {}",
        "evaluate a.xyz --predictions {}",
        "export a.safetensors -o {}",
        "label a.xyz -o {} --calculator lj",
        "profile a.xyz -o {}",
        "relax a.xyz -o {}",
        "relax a.xyz -o b.xyz --trajectory {}",
        "relax a.xyz -o {} --index :",
        "view a.xyz -o {}",
    ],
)
def test_an_output_that_another_process_writes_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.xyz").write_text("1\n\nHe 0 0 0\n")
    with OutputLock("out.xyz"):
        assert cli.main(words.format("out.xyz").split()) == 2
        assert "only one run at a time may write an output, and process" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.xyz"]
