"""One page of each sort, for tools/check_pages.py: make_pages.py DIR writes them and prints their paths."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.commands import cli

ROOT = Path(__file__).parents[1]


def make_pages(folder: Path) -> list[Path]:
    """Writes files and their pages to a folder; returns the pages. Raises RuntimeError if a command fails."""
    ase.io.write(folder / "liquid.xyz", liquid(8))
    ase.io.write(folder / "crystal.traj", crystal(20))
    ase.io.write(folder / "molecules.xyz", [labelled(molecule(name), -1.0) for name in ("H2O", "CH4", "C6H6", "SO2")])
    ase.io.write(folder / "silicon.cif", bulk("Si"))
    peptide = ROOT / "tests/data/alanine_dipeptide.pdb"
    pages = [folder / f"{name}.html" for name in ("peptide", "liquid", "crystal", "molecules", "silicon")]
    report = folder / "report"
    command(
        "md", peptide, "-o", folder / "peptide", "--steps", 200, "--save-every", 5, "--log-every", 2,
        "--device", "cpu", "--transport", "python", "--overwrite", "--seed", 1,
    )  # fmt: skip
    for name, page in zip(("liquid.xyz", "crystal.traj", "molecules.xyz", "silicon.cif"), pages[1:], strict=True):
        command("view", folder / name, "-o", page)
    command("evaluate", ROOT / "examples/data/ethanol.xyz", "-o", report, "--overwrite", "--device", "cpu")
    return [*pages, report / "interactive.html"]


def command(*words: object) -> None:
    """Runs a command of torchmdx."""
    arguments = [str(word) for word in words]
    if cli.main(arguments) != 0:
        raise RuntimeError(f"torchmdx {' '.join(arguments)} failed")


def labelled(atoms: Atoms, energy: float, **results: object) -> Atoms:
    """The structure with an energy, eV, and other results."""
    atoms.calc = SinglePointCalculator(atoms, energy=energy, **results)
    return atoms


def liquid(number: int) -> list[Atoms]:
    """1,536 atoms of water in a box, with velocities."""
    random, water, size, found = np.random.default_rng(0), molecule("H2O"), 8, []
    box = Atoms(cell=[3.1 * size] * 3, pbc=True)
    for place in np.ndindex(size, size, size):
        one = water.copy()
        one.rotate(random.uniform(0, 360), random.normal(size=3))
        one.translate(3.1 * np.array(place))
        box += one
    for step in range(number):
        moved = box.copy()
        moved.positions += np.repeat(random.normal(0, 0.1 * step, (size**3, 3)), 3, axis=0)
        moved.wrap()
        moved.set_momenta(random.normal(0, 0.3, (len(moved), 3)))
        found.append(labelled(moved, -100.0 - step))
    return found


def crystal(number: int) -> list[Atoms]:
    """Rock salt that shrinks, as in a relaxation of its cell."""
    found = []
    for step in range(number):
        atoms = bulk("NaCl", "rocksalt", a=5.64 + 0.4 * np.exp(-step / 5), cubic=True)
        atoms.rattle(0.2 * np.exp(-step / 5), seed=1)
        forces = np.random.default_rng(2).normal(size=(8, 3)) * np.exp(-step / 3)
        found.append(labelled(atoms, -30.0 - (1 - np.exp(-step / 5)), forces=forces))
    return found


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        written = make_pages(Path(sys.argv[1]))
    print(*written, sep="\n")
