"""The split of a store by its files' names: train-*, val-* and test-*.

python make_split.py organic_1.store split.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from torchmdx.datasets.splits import write_split
from torchmdx.datasets.store import Store

PARTS = {"train": "train", "val": "validation", "test": "test"}  # by the beginning of a file's name


def main() -> None:
    """Writes the split, and tells its sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("split")
    args = parser.parse_args()
    store = Store.open(args.store)
    names = np.array([Path(store.origin(k)[0]).name for k in range(len(store))])
    subsets = np.array([name.split("-")[0] for name in names])
    unknown = set(subsets) - set(PARTS)
    if unknown:
        raise ValueError(f"files must begin with {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    splits = {part: np.flatnonzero(subsets == subset) for subset, part in PARTS.items()}
    write_split(args.split, splits, store)
    print(", ".join(f"{part}: {len(frames)} frames" for part, frames in splits.items()))


if __name__ == "__main__":
    main()
