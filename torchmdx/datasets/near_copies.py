"""Frames that are nearly copies of frames of another part, such as neighbours in a trajectory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store

Indices = NDArray[np.int64]
SAME = 0.02  # Å, root mean square of differences of distances
FEWEST_ATOMS = 6  # smaller molecules have so few shapes that independent frames are alike
MOST_COMPARED = 1000  # held-out frames
MOST_WORK = 200_000_000  # pairs of frames
CHUNK = 2048


def near_copies(store: Store, train: Indices, held_out: Indices) -> tuple[Indices, int]:
    """Frames of held_out with a nearly equal frame in train, and the number of frames that were compared.

    Two frames are nearly equal if they have the same atoms in the same order, and distances along the list of atoms,
    which rotations do not change, differ by less than 0.02 Å (root mean square). Held-out frames are sampled if there
    are many.
    """
    most = int(min(MOST_COMPARED, max(1, MOST_WORK // max(1, len(train)))))
    sample = held_out[:: max(1, -(-len(held_out) // most))]
    sample = sample[store.counts[sample] >= FEWEST_ATOMS]
    wanted = {key: (rows, np.concatenate(values)) for key, (rows, values) in _grouped(store, sample).items()}
    near: set[int] = set()
    for start in range(0, len(train), CHUNK):
        part = train[start : start + CHUNK]
        part = part[np.isin(store.counts[part], store.counts[sample])]
        for key, (_, values) in _grouped(store, part).items():
            if key in wanted:
                rows, targets = wanted[key]
                near |= set(np.array(rows)[_nearest(targets, np.concatenate(values)) < SAME].tolist())
    return np.array(sorted(near), np.int64), len(sample)


def _grouped(store: Store, indices: Indices) -> dict[bytes, tuple[list[int], list[NDArray[np.float32]]]]:
    """Frames and their distances, by atoms, charge and periodic directions."""
    found: dict[bytes, tuple[list[int], list[NDArray[np.float32]]]] = {}
    for index, (key, distances) in zip(indices.tolist(), _described(store.gather(indices)), strict=True):
        rows, values = found.setdefault(key, ([], []))
        rows.append(index)
        values.append(distances[None])
    return found


def _described(frames: Frames) -> Iterator[tuple[bytes, NDArray[np.float32]]]:
    """What must be equal, and distances [4N] from each atom to the next three in the list, and half way around it."""
    offsets = frames.offsets
    for k in range(len(frames)):
        atoms = slice(int(offsets[k]), int(offsets[k + 1]))
        positions, numbers, pbc = frames.positions[atoms], frames.atomic_numbers[atoms], frames.pbc[k]
        inverse = np.linalg.pinv(frames.cell[k]) if pbc.any() else None
        distances = []
        for step in (1, 2, 3, max(1, len(positions) // 2)):
            vectors = np.roll(positions, -step, axis=0) - positions
            if inverse is not None:
                vectors = vectors - (np.round(vectors @ inverse) * pbc) @ frames.cell[k]
            distances.append(np.linalg.norm(vectors, axis=1))
        key = numbers.astype(np.uint8).tobytes() + pbc.tobytes() + np.float64(frames.charge[k]).tobytes()
        yield key, np.concatenate(distances).astype(np.float32)


def _nearest(targets: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float64]:
    """Smallest root mean square difference [T] of rows of targets [T,D] from rows of others [F,D]."""
    centre = others.mean(0)
    a, b = (targets - centre).astype(np.float64), (others - centre).astype(np.float64)
    squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
    found: NDArray[np.float64] = np.sqrt(np.maximum(squares.min(1), 0) / targets.shape[1])
    return found
