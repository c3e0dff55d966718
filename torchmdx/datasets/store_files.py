"""Stores as sources of another store, to merge them or to add files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from torchmdx.datasets.blocks import Blocks, FrameBlock, Keys
from torchmdx.datasets.store import Store
from torchmdx.datasets.store_arrays import LABELS

CHUNK = 4096


def read(path: Path, keys: Keys) -> Blocks:
    """All frames of a store, in blocks of frames with the same labels. Keys apply to the other files."""
    store = Store.open(path)
    for start in range(0, len(store), CHUNK):
        frames = store.gather(np.arange(start, min(start + CHUNK, len(store))))
        there = np.stack([frames.has(label) for label in LABELS], axis=1)
        ends = [*(np.flatnonzero((there[1:] != there[:-1]).any(1)) + 1).tolist(), len(frames)]
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            claimed = frozenset(label for label, found in zip(LABELS, there[first], strict=True) if found)
            yield FrameBlock(start + first, frames.take(np.arange(first, end)), claimed)
