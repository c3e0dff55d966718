"""Hydrogens of carbon between their carbon and another atom, and around their carbon. Needs NumPy only.

python make_hydrogens.py --geometries geometries

Bonds are stretched along themselves by make_geometries.py, and a hydrogen between two polar atoms is in
make_protons.py; a hydrogen that leaves its carbon for an atom next to it is in neither. A network that has not seen one
may have a path there with almost no barrier: a methyl group lost a hydrogen in 335 ps at 300 K.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from assemblies import Frame
from deform import COVALENT
from frame_file import read_frames, write_frames

BONDED = 1.35  # Å, of a hydrogen and its carbon at most
REACH = 3.0  # Å, from the hydrogen to where it may go
AT_THE_END = 1.03  # of the sum of covalent radii
NOISE = 0.06  # Å, a coordinate
HYDROGEN = 0.3  # how likely another hydrogen is to be the atom it goes to, a heavy one: 1
ABOUT = 0.25  # share of those that go anywhere
STEPS = (0.2, 0.8)  # Å, how far these go
LEAST = 0.55  # of the sum of covalent radii: nearer atoms are left out
FILES = 4


def hydrogens_of_carbon(numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Carbons and their hydrogens [n,2]."""
    carbons, hydrogens = np.flatnonzero(numbers == 6), np.flatnonzero(numbers == 1)
    lengths = np.linalg.norm(positions[hydrogens][:, None] - positions[carbons], axis=-1)
    h, c = np.nonzero(lengths < BONDED)
    return np.stack([carbons[c], hydrogens[h]], 1)


def towards(
    numbers: np.ndarray, positions: np.ndarray, bond: np.ndarray, rng: np.random.Generator
) -> np.ndarray | None:
    """A place of the hydrogen on the straight path to a nearby atom; None if there is no such atom."""
    carbon, hydrogen = bond
    lengths = np.linalg.norm(positions - positions[hydrogen], axis=-1)
    near = np.flatnonzero(lengths < REACH)
    near = near[(near != carbon) & (near != hydrogen)]
    if not len(near):
        return None
    weights = np.where(numbers[near] == 1, HYDROGEN, 1.0)
    other = rng.choice(near, p=weights / weights.sum())
    end = AT_THE_END * (COVALENT[1] + COVALENT[int(numbers[other])])
    way = positions[other] - positions[hydrogen]
    length = max(lengths[other] - end, 0.0)
    return np.asarray(positions[hydrogen] + way / lengths[other] * length * rng.uniform(0.1, 1.0))


def moved(numbers: np.ndarray, positions: np.ndarray, bond: np.ndarray, rng: np.random.Generator) -> np.ndarray | None:
    """Positions with the hydrogen moved; None if it would overlap another atom."""
    hydrogen = bond[1]
    place = None if rng.random() < ABOUT else towards(numbers, positions, bond, rng)
    if place is None:
        direction = rng.normal(size=3)
        place = positions[hydrogen] + direction / np.linalg.norm(direction) * rng.uniform(*STEPS)
    found = positions.copy()
    found[hydrogen] = place + rng.normal(scale=NOISE, size=3)
    radii = np.array([COVALENT[int(z)] for z in numbers]) + COVALENT[1]
    apart = np.delete(np.linalg.norm(found - found[hydrogen], axis=-1) / radii, hydrogen)
    return found if apart.min() > LEAST else None


def frames_of(geometries: Path, count: int, seed: int) -> list[Frame]:
    """This number of frames, from all training frames except dynamics and moved ones."""
    rng = np.random.default_rng([seed, 37])
    frames: list[Frame] = []
    for path in sorted(geometries.glob("train-*.xyz")):
        if not path.stem.startswith(("train-md", "train-protons", "train-hydrogens")):
            frames += [frame for frame in read_frames(path) if (frame.numbers == 6).any()]
    found: list[Frame] = []
    for k in rng.permutation(len(frames)):
        frame = frames[k]
        bonds = hydrogens_of_carbon(frame.numbers, frame.positions)
        if len(bonds):
            places = moved(frame.numbers, frame.positions, bonds[rng.integers(len(bonds))], rng)
            if places is not None:
                found.append(Frame(frame.numbers, places, frame.charge, frame.name))
        if len(found) == count:
            break
    print(f"{len(frames)} frames have carbon; {len(found)} hydrogens were moved")
    return found


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries", type=Path, default=Path("geometries"))
    parser.add_argument("--count", type=int, default=14000)
    parser.add_argument("--seed", type=int, default=20269)
    args = parser.parse_args()
    frames = frames_of(args.geometries, args.count, args.seed)
    for k in range(FILES):
        if frames[k::FILES]:
            write_frames(args.geometries / f"train-hydrogens-{k:02d}.xyz", frames[k::FILES])


if __name__ == "__main__":
    main()
