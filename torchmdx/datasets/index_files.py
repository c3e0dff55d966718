"""Readers of frame indices: text, .npy, and torchmd-net's splits.npz."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.npz_files import Rows
from torchmdx.datasets.splits import PARTS, Split
from torchmdx.datasets.store import Store
from torchmdx.runtime.damaged_file import WRONG_VALUES

TORCHMDNET = {"train": "idx_train", "validation": "idx_val", "test": "idx_test"}


def read_indices(path: str | Path) -> NDArray[np.int64]:
    """Integers of a .npy file, or of a text file, separated by spaces, commas or lines. Raises ValueError."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file of indices at {str(path)!r}")
    try:
        if path.suffix == ".npy":
            # Mapped, so that a shape larger than the file is refused before memory is asked for.
            return _whole(np.load(path, mmap_mode="r", allow_pickle=False))
        return _whole(np.array([float(word) for word in path.read_text().replace(",", " ").split()]))
    except (ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{str(path)!r} must hold the numbers of frames: {error}") from error


def read_torchmdnet(path: str | Path) -> Split:
    """The parts of a splits.npz of torchmd-net. Raises ValueError for another file."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no split at {str(path)!r}")
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _whole(Rows(path, archive, key).whole()) for name, key in TORCHMDNET.items()}
    except (ValueError, OSError, *WRONG_VALUES) as error:
        wanted = ", ".join(TORCHMDNET.values())
        raise ValueError(f"{str(path)!r} must be a .npz file with {wanted}: {error}") from error


def checked(splits: Split, store: Store) -> Split:
    """Sorted. Raises ValueError unless the parts are disjoint frames of the store and train has some."""
    sets = {name: np.sort(splits.get(name, np.zeros(0, np.int64))) for name in PARTS}
    seen: dict[int, str] = {}
    for name, indices in sets.items():
        outside = indices[(indices < 0) | (indices >= len(store))]
        if len(outside):
            raise ValueError(f"{name} must be of frames 0 to {len(store) - 1} of the store, got {outside[0]}")
        for index in indices.tolist():
            if index in seen:
                raise ValueError(f"frame {index} must be in one part and once, got it in {seen[index]} and {name}")
            seen[index] = name
    if not len(sets["train"]):
        raise ValueError("train must have at least one frame, got none")
    return sets


def _whole(values: NDArray[np.generic]) -> NDArray[np.int64]:
    if values.dtype.kind not in "iuf":
        raise ValueError(f"indices must be whole numbers, got {values.dtype}")
    numbers = values.astype(np.float64)
    if not (np.abs(numbers) < 2.0**53).all() or not (numbers == np.round(numbers)).all():
        raise ValueError("indices must be whole numbers, got other values")
    return values.reshape(-1).astype(np.int64)
