"""Exported files: the compiled program against `evaluate`, from Python and from C++; errors that write nothing."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch.utils import cpp_extension

from torchmdx import Potential, System, TensorNetConfig, evaluate, save
from torchmdx.checkpoints.export import package
from torchmdx.checkpoints.export.package import export, inputs_of, largest_error, metadata, sample_systems
from torchmdx.checkpoints.export.program import Program
from torchmdx.commands.cli import main
from torchmdx.step.results import StepError

EXAMPLE = Path(__file__).parents[3] / "examples" / "export" / "evaluate.cpp"


@pytest.fixture
def potential() -> Potential:
    """Of the elements of the structures below; float64, so that errors are those of the program."""
    torch.manual_seed(3)
    made = Potential(TensorNetConfig(num_channels=8, num_radial=6, num_layers=1, cutoff=4.0, max_z=10)).double()
    with torch.no_grad():
        made.scale.fill_(3.0)
        made.shift.fill_(-0.5)
        made.reference_energies.uniform_(-2, 2)
    return made.eval().requires_grad_(False)


def diamond() -> Atoms:
    crystal = bulk("C", "diamond", a=3.4)
    crystal.rattle(0.05, seed=1)
    return crystal


@pytest.mark.nightly
def test_a_file_from_the_command_runs_in_python_and_cpp(potential, tmp_path, capsys):
    """One test, because each compilation takes a minute."""
    save(potential, tmp_path / "model.safetensors")
    made = tmp_path / "made" / "model.pt2"
    made.parent.mkdir()
    words = ["export", str(tmp_path / "model.safetensors"), "-o", str(made), "--dtype", "float64"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"wrote {made}: " in said
    assert float(said.split()[-1]) < 1e-9
    assert "for cpu, float64, cutoff 4.0 Å; largest relative error against the exact model " in said
    assert list(made.parent.iterdir()) == [made]
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    require_python(made, potential)
    require_cpp(made, potential, tmp_path)


def require_python(path: Path, potential: Potential) -> None:
    """Any number of atoms and edges, without edges as well; the file says what it needs."""
    model = torch._inductor.aoti_load_package(str(path))
    found = model.loader.get_metadata()
    assert (found["dtype"], float(found["cutoff"]), found["AOTI_DEVICE_KEY"]) == ("float64", 4.0, "cpu")
    assert found["atomic_numbers"].split() == [str(number) for number in range(1, 11)]
    molecules = [molecule("C6H6"), molecule("H2O"), molecule("H2"), Atoms("O")]
    for atoms in (*molecules, diamond(), diamond().repeat((3, 2, 2))):
        system = System.from_ase(atoms, 1.0)
        energies, forces, virial = model(*inputs_of(system, potential).values())
        wanted = evaluate(potential, system, stress=atoms.cell.rank == 3)
        torch.testing.assert_close(energies, wanted.energies, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(forces, wanted.forces, rtol=0, atol=1e-10)
        if wanted.stress is not None:
            torch.testing.assert_close(virial, -wanted.stress[0] * atoms.cell.volume, rtol=0, atol=1e-9)


def require_cpp(path: Path, potential: Potential, folder: Path) -> None:
    """The C++ example, compiled as docs/export.md says, prints what `evaluate` computes."""
    program, structure = str(folder / "evaluate"), str(folder / "structure.txt")
    (libraries,) = cpp_extension.library_paths()
    words = ["g++", "-std=c++20", "-O1", str(EXAMPLE), "-o", program, f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    words += [f"-I{path}" for path in cpp_extension.include_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(words, check=True, timeout=600)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for atoms in (molecule("CH3CH2OH"), diamond()):
        lines = [str(len(atoms)), " ".join(map(str, atoms.cell.array.ravel()))]
        places = zip(atoms.numbers, atoms.positions.tolist(), strict=True)
        Path(structure).write_text("\n".join([*lines, *(f"{z} {x!r} {y!r} {w!r}" for z, (x, y, w) in places)]))
        done = subprocess.run(
            [program, str(path), structure, "1"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=environment,
        )
        said = [line.split() for line in done.stdout.splitlines()]
        wanted = evaluate(potential, System.from_ase(atoms, 1.0), stress=atoms.cell.rank == 3)
        assert float(said[0][1]) == pytest.approx(wanted.energy.item(), rel=1e-8)
        forces = np.array([line[1:4] for line in said if line[0] == "force"], float)
        np.testing.assert_allclose(forces, wanted.forces.numpy(), rtol=0, atol=1e-7)
        if wanted.stress is not None:
            virial = np.array([line[1:4] for line in said if line[0] == "virial"], float)
            np.testing.assert_allclose(virial, -wanted.stress[0].numpy() * atoms.cell.volume, rtol=0, atol=1e-6)
    broken = subprocess.run([program, str(path), os.devnull], capture_output=True, text=True, timeout=60)
    assert broken.returncode == 2
    assert "expected N, nine numbers of the cell, and N atoms" in broken.stderr


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 80


def test_the_samples_cover_what_matters(potential):
    samples = sample_systems(potential)
    assert {bool(system.pbc.any()) for system in samples} == {True, False}
    assert len({system.num_atoms for system in samples}) == len(samples)
    lengths = [system.cell.diagonal().max().item() for system in samples if system.pbc.any()]
    assert min(lengths) < potential.cutoff < max(lengths)
    assert largest_error(Program(potential), potential, samples) < 1e-11


def test_a_program_that_differs_is_refused(potential):
    exact = Program(potential)

    def wrong(*inputs):
        energies, forces, virial = exact(*inputs)
        return energies, forces * (1 + 1e-6), virial

    def broken(*inputs):
        energies, forces, virial = exact(*inputs)
        return energies, forces, virial * torch.nan

    with pytest.raises(StepError, match="differs from the exact model by 1.0e-06 for 12 atoms, more than 1e-09"):
        largest_error(wrong, potential, sample_systems(potential))
    with pytest.raises(StepError, match="differs from the exact model by nan for 4 atoms"):
        largest_error(broken, potential, sample_systems(potential))


def test_errors_come_before_the_work_and_write_nothing(potential, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must end in .pt2, got 'model.pt'"):
        export(potential, "model.pt")
    with pytest.raises(FileNotFoundError, match="no folder"):
        export(potential, tmp_path / "none" / "a.pt2")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(package.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="exporting needs a C\\+\\+ compiler, found no no-such-compiler"):
        export(potential, tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="about libraries of Linux")
def test_a_compiler_without_the_shared_library_is_refused(potential, tmp_path, monkeypatch):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho libstdc++.so\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(FileNotFoundError, match="shared library libstdc\\+\\+.so, which .*g\\+\\+ found none"):
        export(potential, tmp_path / "a.pt2")
    assert list(tmp_path.iterdir()) == [compiler]


def test_metadata_is_text(potential):
    assert all(isinstance(value, str) for value in metadata(potential).values())
