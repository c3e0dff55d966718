"""Protons between two atoms: training frames with a hydrogen bond, the proton moved along it. Needs NumPy only.

python make_protons.py --data data --output geometries

Frames of other kinds hardly ever have a proton half-way from one atom to another, and what a network makes of it then
is anything. --data: of archive.py unpack. Halves of the frames are neutral and charged; bare ions of one atom, of
which there are two, are repeated, since nothing else speaks for them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from assemblies import Frame
from make_geometries import write_frames

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


def frames_of(data: Path, count: int, seed: int) -> list[Frame]:
    """So many frames, as many neutral as charged; no molecule of dynamics twice as often as another kind."""
    rng = np.random.default_rng([seed, 17])
    neutral: list[Frame] = []
    charged: list[Frame] = []
    bare: dict[tuple[int, int], Frame] = {}
    for path in sorted(data.glob("train-*.npz")):
        names = path.with_suffix("").with_suffix("").name
        with np.load(path, allow_pickle=False) as file:
            numbers, places, charges = file["z"], file["R"], file["Q"]
        for z, x, q in zip(numbers, places, charges, strict=True):
            inside = z > 0
            z, x, q = z[inside], x[inside].astype(float), round(float(q))
            if len(z) == 1 and q:
                bare[int(z[0]), q] = Frame(z, x, q, names)
                continue
            bonds = hydrogen_bonds(z, x)
            if len(bonds):
                frame = Frame(z, moved(z, x, bonds[rng.integers(len(bonds))], rng), q, names)
                (charged if q else neutral).append(frame)
    chosen = [part[k] for part in (neutral, charged) for k in rng.permutation(len(part))[: count // 2]]
    print(f"{len(neutral)} neutral and {len(charged)} charged frames have hydrogen bonds; {len(chosen)} are taken")
    return [*chosen, *[frame for frame in bare.values() for _ in range(BARE)]]


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, default=Path("geometries"))
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=20266)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    frames = frames_of(args.data, args.count, args.seed)
    frames = [frames[k] for k in np.random.default_rng(args.seed).permutation(len(frames))]
    for k in range(FILES):
        write_frames(args.output / f"train-protons-{k:02d}.xyz", frames[k::FILES])


if __name__ == "__main__":
    main()
