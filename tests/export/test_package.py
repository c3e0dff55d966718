"""Exported files: the compiled program against `evaluate`, from Python and from C++; errors that write nothing."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch.utils import cpp_extension

import torchmdx
from torchmdx import System, evaluate
from torchmdx.export import package
from torchmdx.export.package import export, inputs_of, largest_error, metadata, sample_systems
from torchmdx.export.program import Program
from torchmdx.step.results import StepError

EXAMPLE = Path(__file__).parents[2] / "examples" / "export" / "evaluate.cpp"


@pytest.fixture(scope="module")
def exported(potential, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("export") / "potential.pt2"
    made = export(potential, path)
    assert made.path == path
    assert made.error < 1e-9
    assert made.num_bytes == path.stat().st_size
    assert [name.name for name in path.parent.iterdir()] == ["potential.pt2"]
    return path


@pytest.fixture(scope="module")
def potential():
    """Of the elements of the structures below; float64, so that errors are those of the program."""
    torch.manual_seed(3)
    made = torchmdx.Potential(torchmdx.TensorNetConfig(num_channels=8, num_radial=6, cutoff=4.0, max_z=10)).double()
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
@pytest.mark.parametrize(
    "atoms",
    [molecule("C6H6"), molecule("H2O"), molecule("H2"), Atoms("O"), diamond(), diamond().repeat((3, 2, 2))],
    ids=lambda atoms: f"{atoms.symbols}",
)
def test_any_number_of_atoms_and_edges(exported, potential, atoms):
    system = System.from_ase(atoms, 1.0)
    energies, forces, virial = torch._inductor.aoti_load_package(str(exported))(*inputs_of(system, potential).values())
    wanted = evaluate(potential, system, stress=atoms.cell.rank == 3)
    torch.testing.assert_close(energies, wanted.energies, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(forces, wanted.forces, rtol=0, atol=1e-10)
    if wanted.stress is not None:
        torch.testing.assert_close(virial, -wanted.stress[0] * atoms.cell.volume, rtol=0, atol=1e-9)


@pytest.mark.nightly
def test_the_file_says_what_it_needs(exported):
    found = torch._inductor.aoti_load_package(str(exported)).loader.get_metadata()
    assert float(found["cutoff"]) == 4.0
    assert found["dtype"] == "float64"
    assert found["atomic_numbers"].split() == [str(number) for number in range(1, 11)]
    assert found["AOTI_DEVICE_KEY"] == "cpu"


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The C++ example, compiled as docs/export.md says."""
    made = tmp_path_factory.mktemp("cpp") / "evaluate"
    (libraries,) = cpp_extension.library_paths()
    words = ["g++", "-std=c++20", "-O1", str(EXAMPLE), "-o", str(made), f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    words += [f"-I{path}" for path in cpp_extension.include_paths()] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    subprocess.run(words, check=True, timeout=600)
    return made


@pytest.mark.nightly
@pytest.mark.parametrize("atoms", [molecule("CH3CH2OH"), diamond()], ids=["molecule", "crystal"])
def test_from_cpp(exported, program, potential, tmp_path, atoms):
    lines = [str(len(atoms)), " ".join(map(str, atoms.cell.array.ravel()))]
    lines += [f"{z} {x!r} {y!r} {w!r}" for z, (x, y, w) in zip(atoms.numbers, atoms.positions.tolist(), strict=True)]
    (tmp_path / "structure.txt").write_text("\n".join(lines))
    done = subprocess.run(
        [str(program), str(exported), str(tmp_path / "structure.txt"), "1"],
        capture_output=True, text=True, timeout=120, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    said = [line.split() for line in done.stdout.splitlines()]
    wanted = evaluate(potential, System.from_ase(atoms, 1.0), stress=atoms.cell.rank == 3)
    assert float(said[0][1]) == pytest.approx(wanted.energy.item(), rel=1e-8)
    forces = np.array([line[1:4] for line in said if line[0] == "force"], float)
    np.testing.assert_allclose(forces, wanted.forces.numpy(), rtol=0, atol=1e-7)
    if wanted.stress is not None:
        virial = np.array([line[1:4] for line in said if line[0] == "virial"], float)
        np.testing.assert_allclose(virial, -wanted.stress[0].numpy() * atoms.cell.volume, rtol=0, atol=1e-6)
    broken = subprocess.run([str(program), str(exported), os.devnull], capture_output=True, text=True, timeout=60)
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


def test_metadata_is_text(potential):
    assert all(isinstance(value, str) for value in metadata(potential).values())
