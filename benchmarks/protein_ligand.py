"""Runs the example of a protein with an ML ligand, for as long as asked, and tells what the ligand did.

    python -m benchmarks.protein_ligand [--picoseconds 1000] [--seconds 190] [--into FOLDER]

T4 lysozyme L99A with p-xylene in its cavity (structures/lysozyme_l99a.pdb and p_xylene.sdf, both from openmmtools, MIT
licence), in TIP3P water with ions, with `organic-1` for the ligand: examples/19_protein_ligand.py in steps of 2 fs at
300 K and 1 bar. A first run of 4 ps measures the speed; the second one lasts --picoseconds, or as long as both together
take --seconds. FOLDER keeps the log and the page.

- ns_day: of the dynamics of the second run
- temperature_K, density: means of its second half
- pocket_rmsd: of the ligand's heavy atoms, Å, with the protein's CA atoms superposed on those of the first frame; mean
  of the second half, and largest
- ca_rmsd: of the CA atoms, Å, mean of the second half
- longest_bond: largest length of any of the ligand's covalent bonds, over that in the file
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
from openmm import app

from benchmarks.record import write
from torchmdx.report.view.curves import read_table
from torchmdx.report.view.dcd import open_dcd

ROOT = Path(__file__).parents[1]
STRUCTURES = ROOT / "benchmarks" / "structures"
TRIAL, MARGIN = 4.0, 15.0  # ps; s for what comes after the dynamics
BOND = 1.7  # Å, longest between atoms of the ligand
Floats = NDArray[np.float64]


def run(folder: Path, protein: str, ligand: str, picoseconds: float) -> tuple[float, str]:
    """Runs the example in a folder. Returns its wall time, s, and what it printed."""
    start = time.perf_counter()
    command = [sys.executable, str(ROOT / "examples" / "19_protein_ligand.py"), protein, ligand]
    done = subprocess.run([*command, "--time", f"{picoseconds:g}"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the example ended with {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - start, done.stdout


def superposed(positions: Floats, on: Floats, by: list[int]) -> Floats:
    """Frames [F,N,3] after the least-squares rotation and translation of the atoms `by` onto those of `on` [N,3]."""
    centred = positions - positions[:, by].mean(1, keepdims=True)
    target = on - on[by].mean(0)
    left, _, right = np.linalg.svd(np.einsum("fni,nj->fij", centred[:, by], target[by]))
    left[:, :, -1] *= np.linalg.det(left @ right)[:, None]
    moved: Floats = centred @ (left @ right) + on[by].mean(0)
    return moved


def observed(folder: Path) -> dict[str, Any]:
    """What the files of a run show."""
    log = read_table(folder / "complex.log")
    dcd = open_dcd(folder / "complex.dcd")
    positions, _ = dcd.read(np.arange(dcd.num_frames))
    atoms = list(app.PDBFile(str(folder / "complex.final.pdb")).topology.atoms())
    carbons = [atom.index for atom in atoms if atom.name == "CA"]
    ligand = [atom.index for atom in atoms if atom.residue.name == "LIG"]
    heavy = [index for index in ligand if atoms[index].element.symbol != "H"]
    moved, half = superposed(positions, positions[0], carbons), dcd.num_frames // 2
    rmsd = np.sqrt(((moved - positions[0]) ** 2).sum(-1))  # [F,N]
    pocket, backbone = (np.sqrt((rmsd[:, chosen] ** 2).mean(1)) for chosen in (heavy, carbons))
    first, second = np.triu_indices(len(ligand), 1)
    own = positions[:, ligand]
    lengths = np.linalg.norm(own[:, first] - own[:, second], axis=-1)
    bonds = lengths[0] < BOND
    found = dict(picoseconds=round(float(log["time_ps"][-1]), 3), frames=dcd.num_frames)
    found["ns_day"] = round(float(log["Speed (ns/day)"][-1]), 1)
    found |= dict(temperature_K=round(float(log["temperature_K"][half:].mean()), 2))
    found |= dict(density=round(float(log["density_g_per_cm3"][half:].mean()), 4))
    found |= dict(pocket_rmsd=round(float(pocket[half:].mean()), 3), largest_pocket_rmsd=round(float(pocket.max()), 3))
    found |= dict(ca_rmsd=round(float(backbone[half:].mean()), 3))
    return found | dict(longest_bond=round(float((lengths[:, bonds] / lengths[0, bonds]).max()), 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picoseconds", type=float, default=1000.0)
    parser.add_argument("--seconds", type=float, default=190.0, help="most that everything may take")
    parser.add_argument("--trial", type=float, default=TRIAL, help="ps of the first run")
    parser.add_argument("--into", type=Path, default=Path("out"), help="folder for the log and the page")
    parser.add_argument("--protein", default=str(STRUCTURES / "lysozyme_l99a.pdb"))
    parser.add_argument("--ligand", default=str(STRUCTURES / "p_xylene.sdf"))
    options = parser.parse_args()
    structures = str(Path(options.protein).resolve()), str(Path(options.ligand).resolve())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        setup, printed = run(folder, *structures, options.trial)
        print(printed, flush=True)
        speed = observed(folder / "out")["ns_day"]
        left = max(options.seconds - 2 * setup - MARGIN, 0.0)
        picoseconds = min(options.picoseconds, max(float(np.floor(speed / 86.4 * left)), options.trial))
        print(f"{speed} ns/day: {picoseconds:g} ps", flush=True)
        wall, printed = run(folder, *structures, picoseconds)
        row = observed(folder / "out") | dict(wall_s=round(wall, 1), atoms=int(printed.split(" of ")[1].split()[0]))
        print(row, flush=True)
        print(write("protein_ligand", [row]), flush=True)
        options.into.mkdir(parents=True, exist_ok=True)
        page = options.into / "complex.html"
        command = [sys.executable, "-m", "torchmdx.commands.cli", "view", str(folder / "out" / "complex.dcd")]
        subprocess.run([*command, "-o", str(page), "--index", "::5", "--overwrite"], check=True)
        shutil.copy(folder / "out" / "complex.log", options.into)
        shutil.copy(folder / "out" / "complex.final.pdb", options.into)


if __name__ == "__main__":
    main()
