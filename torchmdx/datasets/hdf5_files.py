"""HDF5 files whose groups hold frames of one molecule or one size: torchmd-net's dataset, SPICE, and their like."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.blocks import Blocks, FrameBlock, Keys, Remark, Unreadable, block, is_shared, rows_of_a_block
from torchmdx.datasets.npz_files import WHOLE, choose, unread_arrays
from torchmdx.runtime.damaged_file import WRONG_VALUES, naming
from torchmdx.runtime.hdf5_content import require_own_array, require_own_link
from torchmdx.runtime.optional_package import require_package

TORCHMDNET: dict[str, tuple[str, ...]] = {
    "positions": ("pos",),
    "atomic_numbers": ("types",),
    "energy": ("energy",),
    "forces": ("forces",),
    "cell": ("box",),
    "charge": ("total_charge",),
    "charges": (),
    "dipole": (),
}
GRADIENT = "dft_total_gradient"
SPICE: dict[str, tuple[str, ...]] = {
    "positions": ("conformations",),
    "atomic_numbers": ("atomic_numbers",),
    "energy": ("dft_total_energy",),
    "forces": (GRADIENT,),
    "charge": ("total_charge",),
    "charges": (),
    "dipole": (),
}
# Bytes of an array for each that is stored, the most that compression may save.
LARGEST_RATIO = 2000
BRACKET = re.compile(r"\[[^\]]*?(?:([+-])(\d+)|(\++)|(-+))(?::\d+)?\]")


def read_torchmdnet(path: Path, keys: Keys) -> Blocks:
    """Reads groups of types, pos, and energy or forces; box and total_charge are optional."""
    yield from _read(path, keys, TORCHMDNET)


def read_spice(path: Path, keys: Keys) -> Blocks:
    """Reads groups of atomic_numbers, conformations, dft_total_energy, dft_total_gradient; the charge from smiles."""
    yield from _read(path, keys, SPICE)


def layout(path: Path) -> str:
    """The format of the file, spice or torchmdnet-hdf5. Raises ValueError if it is neither."""
    with _opened(path) as file, _damage_named(path):
        for _, group in _groups(file, None):
            if SPICE["positions"][0] in group:
                return "spice"
            if TORCHMDNET["positions"][0] in group:
                return "torchmdnet-hdf5"
    raise ValueError(
        f"{str(path)!r} must have groups with 'pos' (torchmd-net) or 'conformations' (SPICE), got none; "
        "--format torchmdnet-hdf5 with --positions-key and similar options reads other names"
    )


def smiles_charge(smiles: str) -> int:
    """The total charge: formal charges of the atoms in brackets, summed."""
    total = 0
    for sign, size, plus, minus in BRACKET.findall(smiles):
        total += (1 if sign == "+" else -1) * int(size) if sign else len(plus) - len(minus)
    return total


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    require_package("h5py", "HDF5 files need", "train")
    import h5py

    try:
        file = h5py.File(path, "r")
    except (ValueError, OSError, *WRONG_VALUES) as error:
        raise ValueError(f"{str(path)!r} is not a whole HDF5 file: {error}") from error
    with file:
        yield file


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Like `naming`, but also for OSError, which HDF5 raises for damaged content."""
    with naming(path):
        try:
            yield
        except OSError as error:
            raise ValueError(f"{str(path)!r} is damaged: {error}") from error


def _groups(group: Any, positions: str | None, seen: set[Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Groups that hold arrays, with positions if these are named, in the file's order; each once, as links may loop."""
    import h5py

    seen = set() if seen is None else seen
    info = h5py.h5o.get_info(group.id)
    if (info.fileno, info.addr) in seen:
        return
    seen.add((info.fileno, info.addr))
    for name in group:
        require_own_link(group, name)
    if positions in group if positions else any(_is_array(group, name) for name in group):
        yield group.name, group
    for name in group:
        if name != "_metadata" and group.get(name, getclass=True) is h5py.Group:
            yield from _groups(group[name], positions, seen)


def _is_array(group: Any, name: str) -> bool:
    import h5py

    return group.get(name, getclass=True) is h5py.Dataset


def _read(path: Path, keys: Keys, usual: dict[str, tuple[str, ...]]) -> Blocks:
    first = 0
    remarks: dict[str, None] = {}
    positions = keys.positions or usual["positions"][0]
    with _opened(path) as file, _damage_named(path):
        for name, group in _groups(file, positions):
            count, done = 1, 0
            try:
                shape = group[positions].shape
                count = shape[0] if shape else 1
                where = f"group {name!r} of {str(path)!r}"
                names = [key for key in group if _is_array(group, key)]
                chosen = choose(keys, usual, names, where)
                remarks |= dict.fromkeys(unread_arrays(keys, names, chosen, repr(str(path))))
                for found in _blocks(group, chosen, usual, first):
                    done += len(found.frames)
                    yield found
            except (ValueError, OSError, *WRONG_VALUES) as error:  # h5py raises most of these for damage
                yield Unreadable(first + done, count - done, f"group {name!r}: {error}")
            first += count
    if first == 0:
        raise ValueError(f"{str(path)!r} must have groups with {positions!r}, got none")
    for text in remarks:
        yield Remark(text)


def _blocks(group: Any, chosen: dict[str, str], usual: dict[str, tuple[str, ...]], first: int) -> Iterator[FrameBlock]:
    shape = group[chosen["positions"]].shape
    if len(shape) != 3:
        raise ValueError(f"{chosen['positions']!r} must be [frames, atoms, 3], got {list(shape)}")
    for key in (*chosen.values(), *(["smiles"] if "smiles" in group else [])):
        require_own_array(group[key])
        _require_stored(group[key])
    # A group is read completely or not at all: its shapes are checked before its first block is yielded.
    constant: dict[str, Any] = {}
    if usual is SPICE and "charge" not in chosen and "smiles" in group:
        constant["charge"] = float(smiles_charge(_text(group["smiles"])))
    for name, key in chosen.items():
        own = group[key].shape
        if is_shared(name, own):
            constant[name] = np.asarray(group[key])
        elif own[:1] != shape[:1]:
            raise ValueError(f"{key!r} must have a row for each of {shape[0]} frames, got shape {list(own)}")
    step = rows_of_a_block(shape[1])
    for start in range(0, shape[0], step):
        part = {name: group[key][start : start + step] for name, key in chosen.items() if name not in constant}
        if chosen.get("forces") == GRADIENT:
            part["forces"] = -part["forces"]
        yield block(first + start, **constant | part)


def _require_stored(dataset: Any) -> None:
    """Raises ValueError for a shape far larger than the stored data: HDF5 makes up the rest."""
    size = math.prod(dataset.shape or ()) * dataset.dtype.itemsize
    stored = dataset.id.get_storage_size()
    if not dataset.is_virtual and size > max(WHOLE, LARGEST_RATIO * stored):
        raise ValueError(f"{dataset.name!r} must be stored whole, got {stored} bytes for shape {list(dataset.shape)}")


def _text(dataset: Any) -> str:
    value = np.asarray(dataset).reshape(-1)[0]
    return value.decode() if isinstance(value, bytes) else str(value)
