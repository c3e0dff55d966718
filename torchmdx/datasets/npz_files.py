"""NPZ archives: rMD17, sGDML, PhysNet and others of one array for each quantity."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.blocks import Blocks, Keys, Remark, block, is_shared, rows_of_a_block
from torchmdx.datasets.label_names import by_quantity, options, unread
from torchmdx.runtime.damaged_file import naming

USUAL: dict[str, tuple[str, ...]] = {
    "positions": ("coords", "R", "positions", "pos", "coordinates"),
    "atomic_numbers": ("nuclear_charges", "z", "Z", "atomic_numbers", "numbers", "species"),
    "energy": ("energies", "E", "energy"),
    "forces": ("forces", "F", "force"),
    "stress": ("stress",),
    "charge": ("Q", "charge", "total_charge"),
    "cell": ("cell", "box"),
    # Arrays called charges may hold nuclear charges.
    "charges": (),
    "dipole": (),
}

NEEDED: tuple[tuple[str, ...], ...] = (("positions",), ("atomic_numbers",), ("energy", "forces", "charges", "dipole"))

# Of arrays, or rows, that are read at once: bytes, and bytes for each one that is stored.
WHOLE, LARGEST_RATIO = 1 << 28, 20


def read(path: Path, keys: Keys) -> Blocks:
    """Frames in blocks, without having whole arrays in memory. Raises ValueError that names the file and the array."""
    try:
        with naming(path):
            archive = zipfile.ZipFile(path)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not a whole NPZ file: {error}") from error
    with naming(path), archive:
        names = [Path(name).stem for name in archive.namelist() if name.endswith(".npy")]
        chosen = choose(keys, USUAL, names, str(path))
        for text in unread_arrays(keys, names, chosen, repr(str(path))):
            yield Remark(text)
        arrays = {name: Rows(path, archive, key) for name, key in chosen.items()}
        shape = arrays["positions"].shape
        if len(shape) != 3:
            raise ValueError(f"{chosen['positions']!r} of {str(path)!r} must be [frames, atoms, 3], got {list(shape)}")
        total, step = shape[0], rows_of_a_block(shape[1])
        constant = {}
        for name, rows in arrays.items():
            if is_shared(name, rows.shape):
                constant[name] = rows.whole()
            elif rows.shape[:1] != (total,):
                raise ValueError(
                    f"{chosen[name]!r} of {str(path)!r} must have a row for each of {total} frames, "
                    f"got shape {list(rows.shape)}"
                )
        for first in range(0, total, step):
            count = min(step, total - first)
            part = {name: rows.take(count) for name, rows in arrays.items() if name not in constant}
            yield block(first, **constant | part)


def choose(keys: Keys, usual: dict[str, tuple[str, ...]], names: list[str], where: str) -> dict[str, str]:
    """The array of each quantity that is there. Raises ValueError without positions, elements and some label."""
    chosen = {}
    for name, candidates in usual.items():
        named = getattr(keys, name)
        if named is not None and named not in names:
            raise ValueError(f"the {name} key must be an array of {where}, got {named!r}; it has {', '.join(names)}")
        found = [key for key in ((named,) if named else candidates) if key in names]
        if found:
            chosen[name] = found[0]
    for needed in NEEDED:
        if not any(name in chosen for name in needed):
            needed = needed[:2]  # of labels, those that are usual
            looked = ", ".join(key for name in needed for key in usual[name])
            similar = {name: found[0] for name, found in by_quantity(names).items() if name in needed}
            ways = options(similar or dict.fromkeys(needed, "NAME"))
            raise ValueError(
                f"{where} must have {' or '.join(needed)} ({looked}), got {', '.join(names)}; other names: {ways}"
            )
    for name in keys.named():
        if name not in usual:
            raise ValueError(f"{where} is of a format without a {name} key, got {getattr(keys, name)!r}")
    return chosen


def unread_arrays(keys: Keys, names: list[str], chosen: dict[str, str], where: str) -> list[str]:
    """Warnings about arrays that look like labels of quantities that are not read at all."""
    read = {name for quantity in chosen for name in by_quantity(names).get(quantity, [])}
    return unread(where, keys, set(names) - read, chosen)


class Rows:
    """An array of an archive, read from its beginning."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, key: str) -> None:
        self._where = f"{key!r} of {str(path)!r}"
        stored = archive.getinfo(f"{key}.npy")
        self._most_whole = max(WHOLE, LARGEST_RATIO * stored.compress_size)
        self._file = archive.open(stored)
        version = np.lib.format.read_magic(self._file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, column_major, self._dtype = header(self._file)
        if self._dtype.hasobject:
            raise ValueError(f"{self._where} must be numbers; Python objects, which may run code, are not loaded")
        size = math.prod(self.shape) * self._dtype.itemsize
        if min(self.shape, default=0) < 0 or size > stored.file_size:
            raise ValueError(f"{self._where} must have {size} bytes for its shape, got {stored.file_size}")
        # Columns first on disk: rows are not contiguous there.
        self._all = self._read(self.shape[::-1]).T if column_major and len(self.shape) > 1 else None
        self._next = 0

    def take(self, count: int) -> Any:
        """The next rows."""
        self._next += count
        if self._all is not None:
            return self._all[self._next - count : self._next]
        return self._read((count, *self.shape[1:]))

    def whole(self) -> Any:
        """All of it."""
        return self._all if self._all is not None else self._read(self.shape)

    def _read(self, shape: tuple[int, ...]) -> Any:
        wanted = math.prod(shape) * self._dtype.itemsize
        if wanted > self._most_whole:
            raise ValueError(f"{self._where} is larger than its part of the file allows: {wanted} bytes")
        try:
            raw = self._file.read(wanted)
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
            raise ValueError(f"{self._where} is damaged: {error}") from error
        if len(raw) != wanted:
            raise ValueError(f"{self._where} must have {wanted} more bytes, got {len(raw)}")
        return np.frombuffer(raw, self._dtype).reshape(shape)
