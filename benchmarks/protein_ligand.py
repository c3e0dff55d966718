"""Runs the example of a protein with an ML ligand, for as long as asked, and tells what the ligand did.

    python -m benchmarks.protein_ligand [--picoseconds 1000] [--seconds 190] [--into FOLDER]

T4 lysozyme L99A with p-xylene in its cavity (structures/lysozyme_l99a.pdb and p_xylene.sdf, both from openmmtools, MIT
licence), in TIP3P water with ions, with `organic-1` for the ligand: examples/19_protein_ligand.py in steps of 2 fs at
300 K and 1 bar, stopped after --seconds if that comes before --picoseconds. FOLDER keeps structure, trajectory and log,
and the page where plotly is installed.

- ns_day: median over the intervals between frames, so that other programs in some of them do not count
- temperature_K, density: means of its second half
- pocket_rmsd: of the ligand's heavy atoms, Å, with the protein's CA atoms superposed on those of the start, after
  minimization; mean of the second half, and largest
- largest_shift: of the centre of the ligand's heavy atoms in the same frames, Å
- ca_rmsd: of the CA atoms, Å, mean of the second half
- longest_bond: largest length of a covalent bond of the ligand, in units of that at the start
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from openmm import app, unit

from benchmarks.record import write
from torchmdx.report.view.curves import read_table
from torchmdx.report.view.dcd import open_dcd

ROOT = Path(__file__).parents[1]
STRUCTURES = ROOT / "benchmarks" / "structures"
FRAMES = 400
BOND = 1.7  # Å, longest between atoms of the ligand
Floats = NDArray[np.float64]


def run(folder: Path, protein: str, ligand: str, picoseconds: float, seconds: float) -> None:
    """Runs the example in a folder, for at most this time. Raises CalledProcessError if it fails."""
    command = [sys.executable, str(ROOT / "examples" / "19_protein_ligand.py"), protein, ligand]
    command += ["--time", f"{picoseconds:g}", "--frames", str(FRAMES)]
    try:
        subprocess.run(command, cwd=folder, timeout=seconds, check=True)
    except subprocess.TimeoutExpired:
        print(f"stopped after {seconds:g} s", flush=True)


def superposed(positions: Floats, on: Floats, by: list[int]) -> Floats:
    """Frames [F,N,3] after the least-squares rotation and translation of the atoms `by` onto those of `on` [N,3]."""
    centred = positions - positions[:, by].mean(1, keepdims=True)
    target = on - on[by].mean(0)
    left, _, right = np.linalg.svd(np.einsum("fni,nj->fij", centred[:, by], target[by]))
    left[:, :, -1] *= np.linalg.det(left @ right)[:, None]
    moved: Floats = centred @ (left @ right) + on[by].mean(0)
    return moved


def speed(log: dict[str, Floats]) -> float:
    """ns/day, from a log with the mean speed since its first row, which has none."""
    since = log["time_ps"][1:] - log["time_ps"][0]
    elapsed = np.concatenate([[0.0], since / log["Speed (ns/day)"][1:]])
    return round(float(np.median(np.diff(log["time_ps"]) / np.diff(elapsed))), 1)


def observed(folder: Path) -> dict[str, Any]:
    """What the files of a run show."""
    log = read_table(folder / "complex.log")
    dcd = open_dcd(folder / "complex.dcd")
    positions, _ = dcd.read(np.arange(dcd.num_frames))
    start = app.PDBFile(str(folder / "complex.start.pdb"))
    atoms, pose = list(start.topology.atoms()), np.array(start.positions.value_in_unit(unit.angstrom))
    carbons = [atom.index for atom in atoms if atom.name == "CA"]
    ligand = [atom.index for atom in atoms if atom.residue.name == "LIG"]
    heavy = [index for index in ligand if atoms[index].element.symbol != "H"]
    moved, half = superposed(positions, pose, carbons), dcd.num_frames // 2
    rmsd = np.sqrt(((moved - pose) ** 2).sum(-1))  # [F,N]
    pocket, backbone = (np.sqrt((rmsd[:, chosen] ** 2).mean(1)) for chosen in (heavy, carbons))
    shift = np.linalg.norm((moved - pose)[:, heavy].mean(1), axis=1)
    first, second = np.triu_indices(len(ligand), 1)
    lengths = np.linalg.norm(positions[:, ligand][:, first] - positions[:, ligand][:, second], axis=-1)
    at_first = np.linalg.norm(pose[ligand][first] - pose[ligand][second], axis=-1)
    longest = (lengths / at_first)[:, at_first < BOND].max()
    found: dict[str, Any] = dict(solute_atoms=dcd.num_atoms, frames=dcd.num_frames)
    found |= dict(picoseconds=round(float(log["time_ps"][-1]), 3), ns_day=speed(log))
    found |= dict(temperature_K=round(float(log["temperature_K"][half:].mean()), 2))
    found |= dict(density=round(float(log["density_g_per_cm3"][half:].mean()), 4))
    found |= dict(pocket_rmsd=round(float(pocket[half:].mean()), 3), largest_pocket_rmsd=round(float(pocket.max()), 3))
    found |= dict(largest_shift=round(float(shift.max()), 3))
    return found | dict(ca_rmsd=round(float(backbone[half:].mean()), 3), longest_bond=round(float(longest), 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picoseconds", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=190.0, help="most that everything may take")
    parser.add_argument("--into", type=Path, default=Path("out"), help="folder for the log and the page")
    parser.add_argument("--protein", default=str(STRUCTURES / "lysozyme_l99a.pdb"))
    parser.add_argument("--ligand", default=str(STRUCTURES / "p_xylene.sdf"))
    options = parser.parse_args()
    structures = str(Path(options.protein).resolve()), str(Path(options.ligand).resolve())
    options.into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start = time.perf_counter()
        run(folder, *structures, options.picoseconds, options.seconds)
        row = observed(folder / "out") | dict(wall_s=round(time.perf_counter() - start, 1))
        print(row, flush=True)
        print(write("protein_ligand", [row]), flush=True)
        for name in ("complex.log", "complex.start.pdb", "complex.dcd"):
            shutil.copy(folder / "out" / name, options.into)
    command = [sys.executable, "-m", "torchmdx.commands.cli", "view", str(options.into / "complex.dcd"), "--overwrite"]
    subprocess.run(command, check=False)


if __name__ == "__main__":
    main()
