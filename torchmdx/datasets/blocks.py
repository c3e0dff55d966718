"""The output of readers: blocks of frames in the units of their file, frames that cannot be read, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets import KEY_NAMES
from torchmdx.datasets.frames import Frames
from torchmdx.runtime.damaged_file import WRONG_VALUES

BLOCK_NUMBERS = 1 << 20  # of a block's positions: 8 MB


@dataclass(frozen=True, eq=False)
class FrameBlock:
    """Consecutive frames of a file, the first of them number `first`, in the file's units, labels in float64.

    Attributes:
        claimed: Which labels the file has for these frames; a NaN in one of them is an error.
    """

    first: int
    frames: Frames
    claimed: frozenset[str]


@dataclass(frozen=True)
class Unreadable:
    """`count` frames from `first` on that cannot be read, and the reason."""

    first: int
    count: int
    reason: str


@dataclass(frozen=True)
class Remark:
    """A warning about a whole file."""

    text: str


@dataclass(frozen=True)
class Stated:
    """Units by quantity, energy or force, that the file states of its labels."""

    units: Mapping[str, str]


Blocks = Iterator[FrameBlock | Unreadable | Remark | Stated]


@dataclass(frozen=True)
class Keys:
    """Names of the quantities in a file; None: the usual ones of its format."""

    positions: str | None = None
    atomic_numbers: str | None = None
    cell: str | None = None
    charge: str | None = None
    energy: str | None = None
    forces: str | None = None
    stress: str | None = None
    virial: str | None = None
    charges: str | None = None
    dipole: str | None = None

    @classmethod
    def of(cls, names: Mapping[str, str | None] | None) -> Keys:
        """Raises ValueError for an unknown quantity."""
        known = [field.name for field in fields(cls)]
        for name in names or {}:
            if name not in known:
                raise ValueError(f"keys must be of {', '.join(known)}, got {name!r}")
        return cls(**dict(names or {}))

    def named(self) -> dict[str, str]:
        """The names that were given, by quantity."""
        return {name: getattr(self, name) for name in KEY_NAMES if getattr(self, name) is not None}


def rows_of_a_block(num_atoms: int) -> int:
    """Number of frames in a block, for frames of this many atoms."""
    return max(1, BLOCK_NUMBERS // (3 * max(1, num_atoms)))


def is_shared(name: str, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape is one value for all frames of its file or group."""
    shared = {"atomic_numbers": len(shape) == 1, "cell": shape in ((3,), (3, 3)), "charge": shape in ((), (1,))}
    return shared.get(name, False)


def block(
    first: int,
    positions: Any,
    atomic_numbers: Any,
    *,
    cell: Any = None,
    pbc: Any = None,
    charge: Any = 0.0,
    energy: Any = None,
    forces: Any = None,
    stress: Any = None,
    charges: Any = None,
    dipole: Any = None,
    weight: Any = 1.0,
    config_type: str = "",
) -> FrameBlock:
    """A block of S frames: positions [S,N,3], atomic_numbers [N] or [S,N], the latter padded with zeros at its end.

    cell [3,3] or [S,3,3], periodic in all directions unless pbc says else; charge a number or [S]; energy [S] or [S,1];
    forces [S,N,3]; charges [S,N] or [S,N,1]; dipole [S,3]; stress [S,3,3], [S,9] or [S,6] in Voigt's order; weight a
    number or [S].

    Raises:
        ValueError: For other shapes.
    """
    positions = numbers_of("positions", positions)
    if positions.ndim != 3 or positions.shape[2] != 3:
        raise ValueError(f"positions must have shape [frames, atoms, 3], got {list(positions.shape)}")
    size, atoms = positions.shape[:2]
    numbers = _atomic_numbers(atomic_numbers, size, atoms)
    # Zeros after the last atom are padding; a zero before it is an unknown element.
    counts = np.where(numbers.any(1), atoms - (numbers[:, ::-1] != 0).argmax(1), 0).astype(np.int64)
    real = np.arange(atoms) < counts[:, None]
    claimed = {"energy": energy, "forces": forces, "stress": stress, "charges": charges, "dipole": dipole}
    if cell is not None:
        cell = np.broadcast_to(_box(numbers_of("cell", cell)), (size, 3, 3)).astype(np.float64)
    periodic = (cell is not None) if pbc is None else pbc
    frames = Frames(
        counts=counts,
        positions=positions[real],
        atomic_numbers=numbers[real],
        cell=np.zeros((size, 3, 3)) if cell is None else cell,
        pbc=np.broadcast_to(np.asarray(periodic, bool), (size, 3)).copy(),
        charge=_column("charge", charge, size),
        energy=np.full(size, np.nan) if energy is None else _column("energy", energy, size),
        forces=np.full((int(counts.sum()), 3), np.nan) if forces is None else _forces(forces, positions.shape)[real],
        stress=np.full((size, 3, 3), np.nan) if stress is None else _stress(stress, size),
        charges=np.full(int(counts.sum()), np.nan) if charges is None else _charges(charges, (size, atoms))[real],
        dipole=np.full((size, 3), np.nan) if dipole is None else _dipole(dipole, size),
        weight=_column("config_weight", weight, size),
        config_type=np.full(size, config_type),
    )
    return FrameBlock(first, frames, frozenset(name for name, value in claimed.items() if value is not None))


def numbers_of(name: str, values: Any) -> Any:
    """The values as float64. Raises ValueError for arrays that are not numeric."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numbers, got {array.dtype}")
    return array.astype(np.float64)


def _atomic_numbers(values: Any, size: int, atoms: int) -> Any:
    array = numbers_of("atomic numbers", values)
    if array.ndim == 1:
        array = np.broadcast_to(array, (size, len(array)))
    if array.shape != (size, atoms):
        raise ValueError(f"atomic numbers must have shape [{atoms}] or [{size}, {atoms}], got {list(array.shape)}")
    if not ((np.abs(array) < 2.0**31).all() and (array == np.round(array)).all()):
        raise ValueError("atomic numbers must be integers")
    return array.astype(np.int64)


def _column(name: str, values: Any, size: int) -> Any:
    array = numbers_of(name, values)
    if array.shape in ((), (1,)):
        return np.full(size, float(array.reshape(())))
    if array.size != size or array.shape[0] != size:
        raise ValueError(f"{name} must have one number for each of {size} frames, got shape {list(array.shape)}")
    return array.reshape(size)


def _forces(values: Any, shape: Any) -> Any:
    array = numbers_of("forces", values)
    if array.shape != shape:
        raise ValueError(f"forces must have the shape of the positions, {list(shape)}, got {list(array.shape)}")
    return array


def _charges(values: Any, shape: tuple[int, int]) -> Any:
    array = numbers_of("charges", values)
    if array.shape not in (shape, (*shape, 1)):
        raise ValueError(f"charges must have shape {list(shape)}, one for each atom, got {list(array.shape)}")
    return array.reshape(shape)


def _dipole(values: Any, size: int) -> Any:
    array = numbers_of("dipole", values)
    if array.shape != (size, 3):
        raise ValueError(f"dipole moments must have shape [{size}, 3], got {list(array.shape)}")
    return array


def _stress(values: Any, size: int) -> Any:
    array = numbers_of("stress", values)
    if array.shape not in ((size, 6), (size, 9), (size, 3, 3)):
        raise ValueError(f"stress must have shape [{size}, 6], [{size}, 9] or [{size}, 3, 3], got {list(array.shape)}")
    return np.stack([tensor(one) for one in array])


def tensor(values: Any) -> Any:
    """[3,3], symmetric, from six numbers in Voigt's order xx, yy, zz, yz, xz, xy, from nine, or from [3,3]."""
    array = numbers_of("stress", values)
    if array.shape == (6,):
        xx, yy, zz, yz, xz, xy = array
        return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    if array.shape not in ((9,), (3, 3)):
        raise ValueError(f"stress and virial must have 6 or 9 numbers, got shape {list(array.shape)}")
    square = array.reshape(3, 3)
    return (square + square.T) / 2


def _box(array: Any) -> Any:
    """Cells from [3,3], [S,3,3], or edges [3] or [S,3] of rectangular boxes."""
    if array.shape[-1:] != (3,) or array.ndim > 3:
        raise ValueError(f"cells must have shape [3, 3], [frames, 3, 3] or edges [frames, 3], got {list(array.shape)}")
    if array.ndim == 3 or array.shape == (3, 3):
        return array
    return array[..., None] * np.eye(3)


def mapped(path: Path) -> Any:
    """The array of a .npy file, mapped into memory. Raises ValueError for a damaged file, and for objects."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{str(path)!r} is not a whole .npy file of numbers: {error}") from error
