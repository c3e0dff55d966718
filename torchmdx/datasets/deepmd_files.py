"""Folders of .npy files of DeePMD-kit: systems of fixed and of mixed types.

::

    SYSTEM/type.raw, type_map.raw, nopbc     types of atoms, names of types, a file if nothing is periodic
    SYSTEM/set.*/coord.npy [F,3N], box.npy [F,9], energy.npy [F], force.npy [F,3N], virial.npy [F,9]
    SYSTEM/set.*/real_atom_types.npy [F,N]   in mixed systems: types of each frame, -1 for none

Å and eV; the virial is minus stress times volume.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.blocks import Blocks, Keys, Unreadable, block, mapped, rows_of_a_block
from torchmdx.runtime.damaged_file import WRONG_VALUES

TYPES = "type.raw"
LABELS = {"energy": "energy.npy", "forces": "force.npy", "virial": "virial.npy"}


def systems(path: Path) -> list[Path]:
    """The folders of systems at or below `path`, sorted."""
    return sorted(file.parent for file in path.rglob(TYPES))


def read(path: Path, keys: Keys) -> Blocks:
    """All systems at or below a folder, frames numbered through all of them.

    Raises:
        ValueError: For types without elements, and for files that cannot be read.
    """
    for name in keys.named():
        raise ValueError(f"deepmd is a format without a {name} key, got {getattr(keys, name)!r}")
    found = systems(path)
    if not found:
        raise ValueError(f"{str(path)!r} must have a system with {TYPES}, got none")
    first = 0
    for system in found:
        sets = sorted(one for one in system.glob("set.*") if (one / "coord.npy").is_file())
        if not sets:
            raise ValueError(f"{str(system)!r} must have folders set.* with coord.npy, got none")
        numbers = _numbers(system)
        for one in sets:
            positions = mapped(one / "coord.npy")
            count = len(positions) if positions.ndim else 1
            try:
                yield from _set(system, one, numbers, positions, first)
            except (ValueError, *WRONG_VALUES) as error:
                yield Unreadable(first, count, f"{one.relative_to(path)}: {error}")
            first += count


def _numbers(system: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Types of the atoms [N], and atomic numbers by type. Raises ValueError for unknown names."""
    from ase.data import atomic_numbers

    types = np.loadtxt(system / TYPES, dtype=np.int64, ndmin=1)
    file = system / "type_map.raw"
    if not file.is_file():
        raise ValueError(f"{str(system)!r} must have type_map.raw with the element of each type, got none")
    names = file.read_text().split()
    unknown = [name for name in names if name not in atomic_numbers]
    if unknown:
        raise ValueError(f"{str(file)!r} must name elements, got {unknown[0]!r}")
    if types.min(initial=0) < 0 or types.max(initial=-1) >= len(names):
        raise ValueError(f"{str(system / TYPES)!r} must have types 0 to {len(names) - 1}, got {types.max()}")
    return types, np.array([atomic_numbers[name] for name in names], np.int64)


def _set(
    system: Path, folder: Path, numbers: tuple[NDArray[np.int64], NDArray[np.int64]], positions: Any, first: int
) -> Blocks:
    types, elements = numbers
    frames, atoms = len(positions), len(types)
    shapes: dict[str, tuple[int, ...]] = {}
    shapes |= {"coord.npy": (frames, 3 * atoms), "force.npy": (frames, 3 * atoms), "box.npy": (frames, 9)}
    shapes |= {"virial.npy": (frames, 9), "real_atom_types.npy": (frames, atoms), "energy.npy": (frames,)}
    arrays = {name: mapped(folder / name) for name in shapes if (folder / name).is_file()}
    for name, array in arrays.items():
        if array.size != np.prod(shapes[name]) or array.shape[:1] != (frames,):
            raise ValueError(f"{name} must have shape {list(shapes[name])}, got {list(array.shape)}")
    periodic = not (system / "nopbc").exists() and "box.npy" in arrays
    step = rows_of_a_block(atoms)
    for start in range(0, frames, step):
        part = {name: np.asarray(array[start : start + step], np.float64) for name, array in arrays.items()}
        size = len(part["coord.npy"])
        kinds = elements[types]
        if "real_atom_types.npy" in part:
            own = part["real_atom_types.npy"].astype(np.int64)
            if own.max(initial=-1) >= len(elements):
                raise ValueError(f"real_atom_types.npy must be below {len(elements)}, got {own.max()}")
            kinds = np.where(own < 0, 0, elements[np.maximum(own, 0)])
        cell = part["box.npy"].reshape(size, 3, 3) if periodic else None
        stress = None
        if "virial.npy" in part and cell is not None:
            volume = np.abs(np.linalg.det(cell))
            stress = -part["virial.npy"].reshape(size, 3, 3) / volume[:, None, None]
        yield block(
            first + start,
            part["coord.npy"].reshape(size, atoms, 3),
            kinds,
            cell=cell,
            energy=part["energy.npy"].reshape(size) if "energy.npy" in part else None,
            forces=part["force.npy"].reshape(size, atoms, 3) if "force.npy" in part else None,
            stress=stress,
        )
