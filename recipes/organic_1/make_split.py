"""A split of a store made of the .npz files of archive.py, by the files' names.

python make_split.py organic_1.store split.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from torchmdx.datasets.splits import write_split
from torchmdx.datasets.store import Store

PARTS = {"train": "train", "val": "validation", "test": "test"}  # by the beginning of a file's name


def main() -> None:
    """Writes the split, and tells its sizes."""
    store = Store.open(sys.argv[1])
    subsets = np.array([Path(store.origin(k)[0]).name.split("-")[0] for k in range(len(store))])
    unknown = set(subsets) - set(PARTS)
    if unknown:
        raise ValueError(f"files must begin with {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    splits = {part: np.flatnonzero(subsets == subset) for subset, part in PARTS.items()}
    write_split(sys.argv[2], splits, store)
    print(", ".join(f"{part}: {len(frames)} frames" for part, frames in splits.items()))


if __name__ == "__main__":
    main()
