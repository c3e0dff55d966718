"""Store: frames packed in memory-mapped arrays on disk, so that data may be larger than memory."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames, Whole, rows_of
from torchmdx.runtime.damaged_file import naming, parse_json
from torchmdx.system import LAST_ELEMENT

FORMAT, FORMAT_VERSION = "torchmdx-store", 1
DESCRIPTION = "store.json"
# Name: type on disk, shape of an entry, whether there is one for each atom (else for each frame).
ARRAYS: dict[str, tuple[str, tuple[int, ...], bool]] = {
    "counts": ("<i8", (), False),
    "positions": ("<f8", (3,), True),
    "atomic_numbers": ("|u1", (), True),
    "cell": ("<f8", (3, 3), False),
    "pbc": ("|u1", (3,), False),  # 0 or 1
    "charge": ("<f8", (), False),
    "energy": ("<f8", (), False),
    "forces": ("<f4", (3,), True),
    "stress": ("<f4", (3, 3), False),
    "origin_file": ("<i4", (), False),
    "origin_frame": ("<i8", (), False),
}
LABELS = ("energy", "forces", "stress")


class Store:
    """A directory of arrays, opened for reading. `gather` may be called from several threads.

    counts [F]: atoms of each frame. labels: which of "energy", "forces", "stress" at least one frame has.
    elements: atomic numbers that occur. digest: a hash of the content. units: those of the original files; the
    store itself is in Å and eV.
    """

    def __init__(self, path: Path, description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.path, self._arrays = path, arrays
        self.counts: Whole = np.array(arrays["counts"])
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        self.digest: str = description["digest"]
        self.labels = frozenset(description["labels"])
        self.elements = tuple(description["elements"])
        self.sources: list[str] = description["sources"]
        self.units: dict[str, str] = description["units"]
        self._known = np.zeros(256, bool)
        self._known[list(self.elements)] = True

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Opens a store. Raises FileNotFoundError, and ValueError if it is broken or of another version."""
        path = Path(path)
        try:
            description = parse_json((path / DESCRIPTION).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"no store of frames at {str(path)!r} ({DESCRIPTION} is not there)") from None
        except ValueError as error:
            raise ValueError(f"{DESCRIPTION} of {str(path)!r} is not readable: {error}") from error
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{str(path)!r} is not a store of frames: its format must be {FORMAT!r}")
        if description.get("version") != FORMAT_VERSION:
            raise ValueError(
                f"this torchmdx reads stores of version {FORMAT_VERSION}, "
                f"{str(path)!r} has version {description.get('version')!r}"
            )
        with naming(path):
            _require_description(description, path)
            arrays = {name: _mapped(path, name, description) for name in ARRAYS}
            _require_whole(arrays, description, path)
            return cls(path, description, arrays)

    @staticmethod
    def is_store(path: str | Path) -> bool:
        """Whether there is a store at `path`, which may be damaged."""
        return (Path(path) / DESCRIPTION).is_file()

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_atoms(self) -> int:
        return int(self._starts[-1])

    def gather(self, indices: Any) -> Frames:
        """The frames at these indices, in this order. Raises IndexError for an index out of range."""
        indices = np.asarray(indices, np.int64).reshape(-1)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"frames of this store are numbered 0 to {len(self) - 1}, got {wrong}")
        counts = self.counts[indices]
        atoms = rows_of(self._starts[indices], counts)
        taken: dict[str, NDArray[Any]] = {
            name: np.array(self._arrays[name][atoms if of_atoms else indices])
            for name, (_, _, of_atoms) in ARRAYS.items()
            if not name.startswith("origin")
        }
        self._require_sound(taken)
        taken["pbc"] = taken["pbc"].astype(bool)
        return Frames(**taken | {"counts": counts, "atomic_numbers": taken["atomic_numbers"].astype(np.int64)})

    def _require_sound(self, taken: dict[str, NDArray[Any]]) -> None:
        """Raises ValueError for values that no store is written with, such as unknown elements."""
        sound = {
            "atomic_numbers": self._known[taken["atomic_numbers"]],
            "pbc": taken["pbc"] <= 1,
            **{name: np.isfinite(taken[name]) for name in ("positions", "cell", "charge")},
        }
        for name, good in sound.items():
            if not good.all():
                wrong = taken[name][~good][0]
                raise ValueError(f"{name}.bin of the store {str(self.path)!r} is damaged, got {wrong}")

    @property
    def origin_files(self) -> Whole:
        """Index of the source file of each frame in `sources` [F]."""
        return np.asarray(self._arrays["origin_file"], np.int64)

    def origin(self, index: int) -> tuple[str, int]:
        """The source file of a frame, and its index in that file."""
        return self.sources[int(self._arrays["origin_file"][index])], int(self._arrays["origin_frame"][index])


def _mapped(path: Path, name: str, description: dict[str, Any]) -> NDArray[Any]:
    kind, entry, of_atoms = ARRAYS[name]
    shape = (description["num_atoms"] if of_atoms else description["num_frames"], *entry)
    file = path / f"{name}.bin"
    expected = math.prod(shape) * np.dtype(kind).itemsize
    size = file.stat().st_size if file.is_file() else None
    if size != expected:
        raise ValueError(f"{file.name} of the store {str(path)!r} must have {expected} bytes, got {size}")
    if expected == 0:  # which cannot be mapped
        return np.zeros(shape, kind)
    return np.memmap(file, kind, "r", shape=shape)


def _require_description(description: dict[str, Any], path: Path) -> None:
    """Raises ValueError for a description with a missing entry or one of the wrong type."""

    def texts(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(one, str) for one in value)

    def element(value: Any) -> bool:
        return type(value) is int and 0 < value <= LAST_ELEMENT

    units = description.get("units")
    sound = {
        **{name: type(description.get(name)) is int and description[name] > 0 for name in ("num_frames", "num_atoms")},
        "labels": texts(description.get("labels")) and set(description["labels"]) <= set(LABELS),
        "elements": isinstance(description.get("elements"), list) and all(map(element, description["elements"])),
        "units": isinstance(units, dict) and texts(list(units.values())),
        "sources": texts(description.get("sources")),
        "digest": isinstance(description.get("digest"), str),
    }
    for name, good in sound.items():
        if not good:
            raise ValueError(f"{name} in {DESCRIPTION} of {str(path)!r} is damaged, got {description.get(name)!r:.80}")


def _require_whole(arrays: dict[str, NDArray[Any]], description: dict[str, Any], path: Path) -> None:
    """Raises ValueError unless counts add up to the number of atoms and all source indices are valid."""
    counts, atoms = arrays["counts"], description["num_atoms"]
    total = 0
    if ((counts >= 0) & (counts <= atoms)).all():
        ends = np.cumsum(counts)
        total = int(ends[-1]) if (ends >= 0).all() else 0  # negative where it overflowed
    if total != atoms:
        raise ValueError(f"counts.bin of the store {str(path)!r} must add up to {atoms} atoms: it is damaged")
    files = arrays["origin_file"]
    if files.min() < 0 or files.max() >= len(description["sources"]):
        raise ValueError(f"origin_file.bin of the store {str(path)!r} must number its sources: it is damaged")


class StoreWriter:
    """Writes a store frame by frame. The directory is created atomically at the end of the `with` block.

    Raises FileExistsError if the path exists, unless it is a store and `overwrite` is True.
    """

    def __init__(self, path: str | Path, *, units: dict[str, str] | None = None, overwrite: bool = False) -> None:
        self.path = Path(path)
        if self.path.exists() and not (overwrite and Store.is_store(self.path)):
            what = "a store" if Store.is_store(self.path) else "something that is not a store"
            remedy = "--overwrite replaces it" if Store.is_store(self.path) else "choose another path"
            raise FileExistsError(f"there is {what} at {str(self.path)!r} already; {remedy}")
        self.units = units or {}
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._files: dict[str, BinaryIO] = {}
        self._hash = hashlib.sha256()
        self._sources: dict[str, int] = {}
        self._elements: set[int] = set()
        self._labels: set[str] = set()
        self.num_frames = self.num_atoms = 0

    def __enter__(self) -> StoreWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        self._files = {name: (self._partial / f"{name}.bin").open("wb") for name in ARRAYS}
        return self

    def add(self, frames: Frames, source: str, first_index: int | Whole) -> None:
        """Appends frames that came from `source`: numbers in it, or that of the first of consecutive ones."""
        numbers = (
            np.asarray(first_index, np.int64)
            if np.ndim(first_index)
            else np.arange(len(frames), dtype=np.int64) + int(np.asarray(first_index))
        )
        file = self._sources.setdefault(str(source), len(self._sources))
        values: dict[str, NDArray[Any]] = {
            "origin_file": np.full(len(frames), file, np.int32),
            "origin_frame": numbers,
        }
        for name, (kind, _, _) in ARRAYS.items():
            raw = np.ascontiguousarray(values[name] if name in values else getattr(frames, name), kind).tobytes()
            self._files[name].write(raw)
            if not name.startswith("origin"):
                self._hash.update(raw)
        present = {"energy": frames.has_energy, "forces": frames.has_forces, "stress": frames.has_stress}
        self._labels |= {name for name, there in present.items() if there.any()}
        self._elements |= set(np.unique(frames.atomic_numbers).tolist())
        self.num_frames += len(frames)
        self.num_atoms += frames.num_atoms

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for file in self._files.values():
                if kind is None:
                    file.flush()
                    os.fsync(file.fileno())
                file.close()
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._partial, ignore_errors=True)

    def _finish(self) -> None:
        if self.num_frames == 0:
            raise ValueError(f"a store needs at least one frame, got none for {str(self.path)!r}")
        description = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "num_frames": self.num_frames,
            "num_atoms": self.num_atoms,
            "labels": sorted(self._labels),
            "elements": sorted(self._elements),
            "units": self.units,
            "sources": list(self._sources),
            "digest": self._hash.hexdigest(),
        }
        (self._partial / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        if self.path.exists():  # asked for by `overwrite`
            shutil.rmtree(self.path)
        os.replace(self._partial, self.path)
