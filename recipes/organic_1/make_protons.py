"""Protons between two atoms: training frames with a hydrogen bond, the proton moved along it. Needs NumPy only.

python make_protons.py --geometries geometries

Frames of other kinds hardly ever have a proton half-way between two atoms, and a network's energies there are then
arbitrary. Reads the output of make_geometries.py and adds to it. Half of the frames are neutral, half charged. The two
ions of one atom are repeated, since no other frame represents them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from assemblies import Frame
from frame_file import read_frames, write_frames

POLAR = (7, 8, 9, 16, 17)
BONDED = {7: 1.25, 8: 1.2, 9: 1.15, 16: 1.55, 17: 1.5}  # Å, of a hydrogen and its atom at most
AT_THE_END = {7: 1.02, 8: 0.97, 9: 0.93, 16: 1.34, 17: 1.28}
REACH, LEAST_APART, LEAST_COSINE = 2.3, 2.2, 0.25  # Å, Å, and of the angle at the hydrogen, turned round
NOISE = 0.04  # Å
FILES = 4
BARE = 40


def hydrogen_bonds(numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Donors, hydrogens and acceptors [n,3] of a structure."""
    polar, hydrogens = np.flatnonzero(np.isin(numbers, POLAR)), np.flatnonzero(numbers == 1)
    if len(polar) < 2 or not len(hydrogens):
        return np.zeros((0, 3), int)
    vectors = positions[polar][None] - positions[hydrogens][:, None]  # [H,P,3]
    lengths = np.linalg.norm(vectors, axis=-1)
    donor = lengths.argmin(1)
    bonded = lengths.min(1) < np.array([BONDED[int(numbers[k])] for k in polar])[donor]
    towards = vectors / lengths[..., None]
    cosine = -(towards * towards[np.arange(len(donor)), donor][:, None]).sum(-1)
    apart = np.linalg.norm(positions[polar][None] - positions[polar][donor][:, None], axis=-1)
    found = bonded[:, None] & (lengths < REACH) & (cosine > LEAST_COSINE) & (apart > LEAST_APART)
    h, p = np.nonzero(found)
    return np.stack([polar[donor[h]], hydrogens[h], polar[p]], 1)


def moved(numbers: np.ndarray, positions: np.ndarray, bond: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The proton somewhere between where it is and a bond with the acceptor."""
    _, proton, acceptor = bond
    back = positions[proton] - positions[acceptor]
    end = positions[acceptor] + back / np.linalg.norm(back) * AT_THE_END[int(numbers[acceptor])]
    share = rng.uniform(0.1, 1.0)
    found = positions.copy()
    found[proton] = (1 - share) * positions[proton] + share * end + rng.normal(scale=NOISE, size=3)
    return found


def frames_of(geometries: Path, count: int, seed: int) -> list[Frame]:
    """This number of frames, half of them neutral and half charged, from all training frames except dynamics."""
    rng = np.random.default_rng([seed, 17])
    neutral: list[Frame] = []
    charged: list[Frame] = []
    bare: dict[tuple[int, int], Frame] = {}
    for path in sorted(geometries.glob("train-*.xyz")):
        if path.stem.startswith(("train-md", "train-protons", "train-hydrogens")):
            continue
        for frame in read_frames(path):
            if len(frame.numbers) == 1 and frame.charge:
                bare[int(frame.numbers[0]), frame.charge] = frame
                continue
            bonds = hydrogen_bonds(frame.numbers, frame.positions)
            if len(bonds):
                places = moved(frame.numbers, frame.positions, bonds[rng.integers(len(bonds))], rng)
                (charged if frame.charge else neutral).append(Frame(frame.numbers, places, frame.charge, frame.name))
    chosen = [part[k] for part in (neutral, charged) for k in rng.permutation(len(part))[: count // 2]]
    print(f"{len(neutral)} neutral and {len(charged)} charged frames have hydrogen bonds; {len(chosen)} are taken")
    return [*chosen, *[frame for frame in bare.values() for _ in range(BARE)]]


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries", type=Path, default=Path("geometries"))
    parser.add_argument("--count", type=int, default=16000)
    parser.add_argument("--seed", type=int, default=20266)
    args = parser.parse_args()
    frames = frames_of(args.geometries, args.count, args.seed)
    frames = [frames[k] for k in np.random.default_rng(args.seed).permutation(len(frames))]
    for k in range(FILES):
        write_frames(args.geometries / f"train-protons-{k:02d}.xyz", frames[k::FILES])


if __name__ == "__main__":
    main()
