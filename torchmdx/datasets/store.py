"""Store: frames packed in memory-mapped arrays on disk, so that data may be larger than memory."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.copies import copy_groups
from torchmdx.datasets.frames import Frames, Whole, rows_of
from torchmdx.datasets.store_arrays import ARRAYS, DESCRIPTION, LABELS, OPTIONAL, Arrays, open_arrays
from torchmdx.runtime.damaged_file import naming, parse_json

FORMAT = "torchmdx-store"
# Version 2 may have optional arrays; a store without them has version 1.
PLAIN, FORMAT_VERSION = 1, 2
CHUNK = 4096  # frames
ISOLATED = "IsolatedAtom"


class Store:
    """A directory of arrays, opened for reading. `gather` may be called from several threads.

    Attributes:
        counts ([F]): Atoms of each frame.
        labels: Which of "energy", "forces", "stress", "charges" and "dipole" at least one frame has.
        elements: Atomic numbers that occur.
        digest: A hash of the content.
        units: Those of the original files; the store itself is in Å and eV.
        config_types: Kinds of frames, empty for frames without a kind.
        made_from: State of the original files, if known; see `source_state`.
    """

    def __init__(self, path: Path, description: dict[str, Any], arrays: Arrays) -> None:
        self.path, self._arrays = path, arrays
        self.counts: Whole = np.array(arrays["counts"])
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])
        self.digest: str = description["digest"]
        self.labels = frozenset(description["labels"])
        self.elements = tuple(description["elements"])
        self.sources: list[str] = description["sources"]
        self.units: dict[str, str] = description["units"]
        self.config_types: list[str] = description.get("config_types", [""])
        self.made_from: dict[str, Any] | None = description.get("made_from")
        self._known = np.zeros(256, bool)
        self._known[list(self.elements)] = True

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Opens a store.

        Raises:
            FileNotFoundError: If it is broken or of another version.
            ValueError: If it is broken or of another version.
        """
        path = Path(path)
        try:
            description = parse_json((path / DESCRIPTION).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"no store of frames at {str(path)!r} ({DESCRIPTION} is not there)") from None
        except ValueError as error:
            raise ValueError(f"{DESCRIPTION} of {str(path)!r} is not readable: {error}") from error
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{str(path)!r} is not a store of frames: its format must be {FORMAT!r}")
        if description.get("version") not in (PLAIN, FORMAT_VERSION):
            raise ValueError(
                f"this torchmdx reads stores of versions {PLAIN} and {FORMAT_VERSION}, "
                f"{str(path)!r} has version {description.get('version')!r}"
            )
        with naming(path):
            return cls(path, description, open_arrays(path, description))

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
        """The frames at these indices, in this order.

        Raises:
            IndexError: For an index out of range.
        """
        indices = np.asarray(indices, np.int64).reshape(-1)
        if len(indices) and (indices.min() < 0 or indices.max() >= len(self)):
            wrong = indices[(indices < 0) | (indices >= len(self))][0]
            raise IndexError(f"frames of this store are numbered 0 to {len(self) - 1}, got {wrong}")
        counts = self.counts[indices]
        atoms = rows_of(self._starts[indices], counts)
        columns = ARRAYS | OPTIONAL
        taken: Arrays = {
            name: np.array(array[atoms if columns[name][2] else indices])
            for name, array in self._arrays.items()
            if not name.startswith("origin")
        }
        self._require_sound(taken)
        taken["pbc"] = taken["pbc"].astype(bool)
        if "config_type" in taken:
            taken["config_type"] = np.array(self.config_types)[taken["config_type"]]
        return Frames(**taken | {"counts": counts, "atomic_numbers": taken["atomic_numbers"].astype(np.int64)})

    def _require_sound(self, taken: Arrays) -> None:
        """Raises ValueError for values that no store is written with, such as unknown elements."""
        sound = {
            "atomic_numbers": self._known[taken["atomic_numbers"]],
            "pbc": taken["pbc"] <= 1,
            **{name: np.isfinite(taken[name]) for name in ("positions", "cell", "charge")},
            **({"weight": taken["weight"] >= 0} if "weight" in taken else {}),
        }
        for name, good in sound.items():
            if not good.all():
                wrong = taken[name][~good][0]
                raise ValueError(f"{name}.bin of the store {str(self.path)!r} is damaged, got {wrong}")

    @property
    def isolated(self) -> NDArray[np.bool_]:
        """Which frames [F] are isolated atoms, for reference energies, by their config_type IsolatedAtom."""
        kinds = np.array([is_isolated(name) for name in self.config_types])
        index = self._arrays.get("config_type")
        return np.zeros(len(self), bool) if index is None else kinds[index]

    @property
    def periodic(self) -> NDArray[np.bool_]:
        """Whether each frame [F] is periodic in all directions."""
        found: NDArray[np.bool_] = (np.asarray(self._arrays["pbc"]) != 0).all(1)
        return found

    @property
    def origin_files(self) -> Whole:
        """Index of the source file of each frame in `sources` [F]."""
        return np.asarray(self._arrays["origin_file"], np.int64)

    @functools.cached_property
    def copies(self) -> Whole:
        """The first frame with the structure of each frame [F]; see `copy_groups`."""
        starts = range(0, len(self), CHUNK)
        return copy_groups(self.gather(np.arange(start, min(start + CHUNK, len(self)))) for start in starts)

    def origin(self, index: int) -> tuple[str, int]:
        """The source file of a frame, and its index in that file."""
        return self.sources[int(self._arrays["origin_file"][index])], int(self._arrays["origin_frame"][index])


class StoreWriter:
    """Writes a store frame by frame. The directory is created atomically at the end of the `with` block.

    Raises:
        FileExistsError: If the path exists, unless it is a store and `overwrite` is True.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        units: dict[str, str] | None = None,
        made_from: dict[str, Any] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path)
        if self.path.exists() and not (overwrite and Store.is_store(self.path)):
            what = "a store" if Store.is_store(self.path) else "something that is not a store"
            remedy = "--overwrite replaces it" if Store.is_store(self.path) else "choose another path"
            raise FileExistsError(f"there is {what} at {str(self.path)!r} already; {remedy}")
        self.units, self.made_from = units or {}, made_from
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._files: dict[str, BinaryIO] = {}
        self._hash = hashlib.sha256()
        self._optional = {name: hashlib.sha256() for name in OPTIONAL}
        self._config_types: dict[str, int] = {}
        self._used: set[str] = set()
        self._sources: dict[str, int] = {}
        self._elements: set[int] = set()
        self._labels: set[str] = set()
        self.num_frames = self.num_atoms = 0

    def __enter__(self) -> StoreWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._partial.mkdir()
        self._files = {name: (self._partial / f"{name}.bin").open("wb") for name in ARRAYS | OPTIONAL}
        return self

    def add(self, frames: Frames, source: str, first_index: int | Whole) -> None:
        """Appends frames that came from `source`: numbers in it, or that of the first of consecutive ones."""
        numbers = (
            np.asarray(first_index, np.int64)
            if np.ndim(first_index)
            else np.arange(len(frames), dtype=np.int64) + int(np.asarray(first_index))
        )
        file = self._sources.setdefault(str(source), len(self._sources))
        names, which = np.unique(frames.config_type, return_inverse=True)
        index = np.array(
            [self._config_types.setdefault(str(name), len(self._config_types)) for name in names], np.int32
        )
        values: Arrays = {
            "origin_file": np.full(len(frames), file, np.int32),
            "origin_frame": numbers,
            "config_type": index[which.reshape(-1)],
        }
        for name, (kind, _, _) in (ARRAYS | OPTIONAL).items():
            raw = np.ascontiguousarray(values[name] if name in values else getattr(frames, name), kind).tobytes()
            self._files[name].write(raw)
            if not name.startswith("origin"):
                (self._optional.get(name) or self._hash).update(raw)
        labels = {name for name in LABELS if frames.has(name).any()}
        self._labels |= labels
        self._used |= labels & OPTIONAL.keys()
        self._used |= {"weight"} if (frames.weight != 1).any() else set()
        self._used |= {"config_type"} if (frames.config_type != "").any() else set()
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
        optional = [name for name in OPTIONAL if name in self._used]
        for name in OPTIONAL:
            if name not in optional:
                (self._partial / f"{name}.bin").unlink()
            else:
                self._hash.update(name.encode() + self._optional[name].digest())
        if "config_type" in optional:
            self._hash.update(json.dumps(list(self._config_types)).encode())
        description = {
            "format": FORMAT,
            "version": FORMAT_VERSION if optional else PLAIN,
            "num_frames": self.num_frames,
            "num_atoms": self.num_atoms,
            "labels": sorted(self._labels),
            "elements": sorted(self._elements),
            "units": self.units,
            "sources": list(self._sources),
            "digest": self._hash.hexdigest(),
        }
        if optional:
            description |= {"optional": optional, "config_types": list(self._config_types)}
        if self.made_from is not None:
            description["made_from"] = self.made_from
        (self._partial / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        if self.path.exists():  # asked for by `overwrite`
            shutil.rmtree(self.path)
        os.replace(self._partial, self.path)


def is_isolated(config_type: str) -> bool:
    """Whether frames of this kind are isolated atoms."""
    return config_type.lower() == ISOLATED.lower()
