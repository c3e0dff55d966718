"""Division of a periodic structure among processes, written independently of the code under test."""

from dataclasses import dataclass

import numpy as np
from ase import Atoms


@dataclass
class Part:
    """atoms: index of the original of each atom, owned ones first; positions of atoms and images; hops of each."""

    atoms: np.ndarray
    positions: np.ndarray
    num_owned: int
    hops: np.ndarray


def divide(atoms: Atoms, parts: int, reach: float, cutoff: float, skin: float = 0.0) -> list[Part]:
    """Slabs along the first lattice vector, with copies of all atoms up to `reach` outside."""
    inverse = np.linalg.inv(atoms.cell.array)
    height = 1 / np.linalg.norm(inverse[:, 0])
    place = (atoms.positions @ inverse)[:, 0]
    most = int(np.ceil(reach / height)) + 1 if atoms.pbc[0] else 0
    found = []
    for part in range(parts):
        low, high = part / parts, (part + 1) / parts
        if not atoms.pbc[0]:
            low, high = (-np.inf if part == 0 else low), (np.inf if part == parts - 1 else high)
        owned = np.flatnonzero((place >= low) & (place < high))
        index, images, hops = [owned], [np.zeros(len(owned))], [np.zeros(len(owned))]
        for image in range(-most, most + 1):
            x = place + image
            outside = np.maximum(low - x, x - high).clip(min=0) * height
            here = np.flatnonzero((outside <= reach + skin) & ~((x >= low) & (x < high)))
            index.append(here)
            images.append(np.full(len(here), image))
            hops.append(np.ceil((outside[here] - skin) / cutoff).clip(min=1))
        number, image, hop = (np.concatenate(x) for x in (index, images, hops))
        order = np.argsort(hop, kind="stable")
        positions = atoms.positions[number] + image[:, None] * atoms.cell.array[0]
        found.append(Part(number[order], positions[order], len(owned), hop[order].astype(np.int32)))
    return found
