"""Composition of structures: element counts, symbols, formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.frames import Frames


def symbol(atomic_number: int) -> str:
    """Symbol of an element."""
    from ase.data import chemical_symbols

    return str(chemical_symbols[atomic_number])


def compositions(frames: Frames) -> NDArray[np.int64]:
    """Atoms of each element in each frame [F, largest atomic number + 1]."""
    width = int(frames.atomic_numbers.max(initial=0)) + 1
    places = frames.frame_index * width + frames.atomic_numbers
    return np.bincount(places, minlength=len(frames) * width).reshape(len(frames), width)


def formula(composition: NDArray[Any]) -> str:
    """Formula in Hill order: carbon and hydrogen first if there is carbon, the others by symbol."""
    found = {symbol(z): int(composition[z]) for z in np.flatnonzero(composition).tolist()}
    first = [name for name in ("C", "H") if name in found and "C" in found]
    order = first + sorted(found.keys() - set(first))
    return "".join(name + (str(found[name]) if found[name] > 1 else "") for name in order)
