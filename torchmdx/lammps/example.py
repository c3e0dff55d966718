"""A LAMMPS data file and an input that runs, as an example."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.data import atomic_masses, atomic_numbers

from torchmdx.runtime.files import require_new, write_whole

SPACING = 3.107  # Å between molecules of water at 1 g/cm³

INPUT = """\
# {atoms} atoms of water with a neural-network potential. Run it on one process, or on several:
#   torchmdx lammps -in in.water
#   mpirun -np 2 torchmdx lammps -in in.water
units           metal
atom_style      atomic
boundary        p p p
read_data       data.water

pair_style      torchmdx {model}
pair_coeff      * * {elements}

neighbor        1.0 bin
minimize        0 0.1 30 300
reset_timestep  0
velocity        all create 300 1 loop geom
fix             1 all nvt temp 300 300 0.05
timestep        0.0005
thermo_style    custom step temp pe etotal press
thermo          10
run             50
write_restart   water.restart
"""


def write_example(folder: Path, model: str = "organic-1", molecules: int = 64) -> list[Path]:
    """Writes data.water and in.water into a folder; returns their paths.

    Raises:
        FileExistsError: For existing files.
    """
    files = [folder / "data.water", folder / "in.water"]
    for file in files:
        require_new(file, remedy="choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    atoms = water(molecules)
    write_whole(files[0], data_file(atoms, ["H", "O"], "water").encode())
    write_whole(files[1], INPUT.format(atoms=len(atoms), model=model, elements="H O").encode())
    return files


def water(molecules: int, seed: int = 0) -> Atoms:
    """Randomly oriented water molecules, at least this number, on a grid in a periodic cube of density 1 g/cm³."""
    side = int(np.ceil(round(molecules ** (1 / 3), 9)))
    one, random = molecule("H2O"), np.random.default_rng(seed)
    shape = one.positions - one.get_center_of_mass()
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
    turned = [shape @ rotation.T for rotation in _rotations(random, len(grid))]
    positions = (np.stack(turned) + SPACING * (grid[:, None] + 0.5)).reshape(-1, 3)
    atoms = Atoms(np.tile(one.numbers, len(grid)), positions, cell=[SPACING * side] * 3, pbc=True)
    atoms.wrap()
    return atoms


def data_file(atoms: Atoms, elements: list[str], title: str) -> str:
    """A data file for atom_style atomic; atom types are the elements in this order.

    The cell must be LAMMPS's own form, a along x and b in the plane of x and y.
    """
    cell = atoms.cell.array
    if np.abs(np.triu(cell, 1)).max() > 1e-9 or (np.diag(cell) <= 0).any():
        raise ValueError(f"LAMMPS needs a cell with a along x and b in the plane of x and y, got {cell.tolist()}")
    types = [elements.index(symbol) + 1 for symbol in atoms.get_chemical_symbols()]
    lines = [title, "", f"{len(atoms)} atoms", f"{len(elements)} atom types", ""]
    lines += [f"0 {float(cell[axis, axis])!r} {name}lo {name}hi" for axis, name in enumerate("xyz")]
    if np.abs(np.tril(cell, -1)).max() > 0:
        lines.append(f"{float(cell[1, 0])!r} {float(cell[2, 0])!r} {float(cell[2, 1])!r} xy xz yz")
    lines += ["", "Masses", ""]
    lines += [f"{n + 1} {atomic_masses[atomic_numbers[symbol]]:.6f}  # {symbol}" for n, symbol in enumerate(elements)]
    lines += ["", "Atoms  # atomic", ""]
    lines += [
        f"{n + 1} {kind} {' '.join(repr(float(x)) for x in place)}"
        for n, (kind, place) in enumerate(zip(types, atoms.positions, strict=True))
    ]
    return "\n".join(lines) + "\n"


def _rotations(random: np.random.Generator, count: int) -> np.ndarray:
    """Random rotation matrices [count,3,3], from unit quaternions."""
    w, x, y, z = (random.normal(size=(count, 4))).T
    size = np.sqrt(w**2 + x**2 + y**2 + z**2)
    w, x, y, z = w / size, x / size, y / size, z / size
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1)
