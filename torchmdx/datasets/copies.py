"""Copies: frames of the same structure, which must not be in two parts of a split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames

RESOLUTION = 1e-4  # Å and e: files of text round positions


def copy_groups(batches: Iterable[Frames]) -> NDArray[np.int64]:
    """A number for each frame [F]: that of the first frame with the same structure, which is its own without one.

    Two frames have the same structure if elements, positions, cell, periodic directions and charge are the same, in the
    same order of atoms. Labels do not matter: a structure that was computed twice is still the same structure.
    """
    first: dict[bytes, int] = {}
    groups = [
        first.setdefault(digest, number)
        for number, digest in enumerate(digest for frames in batches for digest in _digests(frames))
    ]
    return np.array(groups, np.int64)


def _digests(frames: Frames) -> Iterable[bytes]:
    steps = {
        name: np.rint(getattr(frames, name) / RESOLUTION).astype(np.int64) for name in ("positions", "cell", "charge")
    }
    offsets = frames.offsets
    for index in range(len(frames)):
        atoms = slice(offsets[index], offsets[index + 1])
        text = hashlib.blake2b(digest_size=16)
        for values in (
            frames.atomic_numbers[atoms],
            steps["positions"][atoms],
            steps["cell"][index],
            frames.pbc[index],
            steps["charge"][index],
        ):
            text.update(np.ascontiguousarray(values).tobytes())
        yield text.digest()
