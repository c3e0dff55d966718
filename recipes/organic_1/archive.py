"""Packs labelled files into a few small archives, and unpacks these into .npz files for `torchmdx data convert`.

python archive.py pack --labelled labelled --output archives
python archive.py unpack --archives archives --output data

Positions are rounded to 1e-4 Å where they were made with four digits and to 1e-5 Å where dynamics made them, forces to
5e-4 eV/Å; energies are as they were. Whole numbers are kept as planes of bytes, which compress.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NUMBERS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9, "S": 16, "Cl": 17}
MADE, SAMPLED, FORCES = 1e-4, 1e-5, 5e-4
SUBSETS = {  # archives of each; ions, shared protons and the output of make_more.py have their own
    "train": 4,
    "val": 1,
    "test": 1,
    "heldout": 1,
    "train-ions": 1,
    "train-more": 4,
    "train-yetmore": 4,
    "train-protons": 1,
    "val-ions": 1,
    "test-ions": 1,
}
LARGEST_FORCE = 40.0  # eV/Å: frames with more are left out
PLANES = 3


@dataclass(frozen=True, eq=False)
class Frames:
    """Labelled structures, one after the other. quantum: of positions, of each frame, Å."""

    counts: np.ndarray
    numbers: np.ndarray
    positions: np.ndarray
    forces: np.ndarray
    energies: np.ndarray
    charges: np.ndarray
    quantum: np.ndarray
    kinds: np.ndarray


def joined(parts: list[Frames]) -> Frames:
    """All in one."""
    fields = Frames.__dataclass_fields__
    return Frames(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in fields})


def read_labelled(path: Path) -> tuple[Frames, int]:
    """Frames of a file of `torchmdx label` without those with too large forces, and the number of these."""
    rows = list(_frames(path))
    kept = [row for row in rows if np.abs(row[2]).max() <= LARGEST_FORCE]
    quantum = SAMPLED if "-md" in path.stem else MADE
    counts = np.array([len(row[0]) for row in kept], np.int64)
    frames = Frames(
        counts=counts,
        numbers=np.concatenate([row[0] for row in kept]),
        positions=np.concatenate([row[1] for row in kept]),
        forces=np.concatenate([row[2] for row in kept]),
        energies=np.array([row[3] for row in kept]),
        charges=np.array([row[4] for row in kept], np.int64),
        quantum=np.full(len(kept), quantum),
        kinds=np.full(len(kept), path.stem),
    )
    return frames, len(rows) - len(kept)


def _frames(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, float, int]]:
    with path.open() as file:
        for line in file:
            count = int(line)
            comment = file.readline()
            columns = [file.readline().split() for _ in range(count)]
            if "Properties=species:S:1:pos:R:3:forces:R:3" not in comment:
                raise ValueError(f"{str(path)!r} must have species, pos and forces, got {comment.strip()!r}")
            values = np.array([row[1:7] for row in columns], float)
            numbers = np.array([NUMBERS[row[0]] for row in columns], np.uint8)
            yield (
                numbers,
                values[:, :3] - values[:, :3].mean(0).round(4),
                values[:, 3:],
                _value(comment, "energy"),
                int(_value(comment, "charge")),
            )


def _value(comment: str, key: str) -> float:
    found = re.search(rf"(?:^|\s){key}=(\S+)", comment)
    if found is None:
        raise ValueError(f"a labelled frame must have {key}, got {comment.strip()!r}")
    return float(found[1])


def planes(values: np.ndarray) -> np.ndarray:
    """Whole numbers as bytes [PLANES, ...], the low ones first."""
    shifted = values.astype(np.int64) + (1 << (8 * PLANES - 1))
    if shifted.min(initial=0) < 0 or shifted.max(initial=0) >= 1 << (8 * PLANES):
        raise ValueError(f"numbers must fit {PLANES} bytes, got {int(np.abs(values).max())}")
    return np.stack([(shifted >> (8 * k)) & 255 for k in range(PLANES)]).astype(np.uint8)


def whole(bytes_: np.ndarray) -> np.ndarray:
    """The numbers again."""
    return np.sum([bytes_[k].astype(np.int64) << (8 * k) for k in range(PLANES)], 0) - (1 << (8 * PLANES - 1))


def pack(labelled: Path, output: Path, workers: int) -> None:
    """Archives of each subset, ions apart, frames of all kinds mixed evenly over them."""
    output.mkdir(parents=True, exist_ok=True)
    for subset, number in SUBSETS.items():
        name, _, kind = subset.partition("-")
        files = sorted(path for path in labelled.glob(f"{name}-*.xyz") if _kind(path) == kind)
        if not files:
            continue
        with multiprocessing.Pool(workers) as pool:
            read = pool.map(read_labelled, files, chunksize=1)
        frames = joined([part for part, _ in read])
        left_out = sum(left for _, left in read)
        print(f"{subset}: {len(frames.counts)} frames; {left_out} above {LARGEST_FORCE} eV/Å left out")
        with multiprocessing.Pool(min(workers, number)) as pool:
            names = [output / f"{subset}-{k}.npz" for k in range(number)]
            pool.starmap(_write, [(name, _every(frames, k, number)) for k, name in enumerate(names)])


def _kind(path: Path) -> str:
    """The group of frames that shares archives."""
    return next(
        (kind for kind in ("protons", "yetmore", "more") if f"-{kind}" in path.stem),
        "ions" if "-ion" in path.stem else "",
    )


def _every(frames: Frames, first: int, step: int) -> Frames:
    chosen = np.arange(len(frames.counts)) % step == first
    atoms = np.repeat(chosen, frames.counts)
    per_atom = ("numbers", "positions", "forces")
    fields = Frames.__dataclass_fields__
    return Frames(**{name: getattr(frames, name)[atoms if name in per_atom else chosen] for name in fields})


def _write(path: Path, frames: Frames) -> None:
    quantum = np.repeat(frames.quantum, frames.counts)[:, None]
    names, kinds = np.unique(frames.kinds, return_inverse=True)
    np.savez_compressed(
        path,
        counts=frames.counts.astype(np.uint8),
        numbers=frames.numbers,
        positions=planes((frames.positions / quantum).round()),
        forces=planes((frames.forces / FORCES).round()),
        energies=frames.energies,
        charges=frames.charges.astype(np.int8),
        quantum=frames.quantum.astype(np.float32),
        names=names,
        kinds=kinds.astype(np.int16),
    )


def unpack(archives: Path, output: Path) -> None:
    """An .npz of padded arrays of each archive, as `torchmdx data convert` reads them; its frames' files as kind."""
    output.mkdir(parents=True, exist_ok=True)
    for path in sorted(archives.glob("*.npz")):
        with np.load(path, allow_pickle=False) as data:
            counts = data["counts"].astype(int)
            quantum = np.repeat(np.where(data["quantum"] > (MADE + SAMPLED) / 2, MADE, SAMPLED), counts)[:, None]
            inside = np.arange(counts.max()) < counts[:, None]
            shape = inside.shape
            padded = {"z": np.zeros(shape, np.int64), "R": np.zeros((*shape, 3)), "F": np.zeros((*shape, 3))}
            padded["z"][inside] = data["numbers"]
            padded["R"][inside] = whole(data["positions"]) * quantum
            padded["F"][inside] = whole(data["forces"]) * FORCES
            kinds = data["names"][data["kinds"]]
            np.savez(output / path.name, **padded, E=data["energies"], Q=data["charges"].astype(float))
        np.savetxt(output / f"{path.stem}.kinds.txt", kinds, fmt="%s")
        print(f"{path.stem}: {len(counts)} frames, {counts.mean():.1f} atoms in the mean")


def main() -> None:
    """Packs or unpacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "unpack"))
    parser.add_argument("--labelled", type=Path, default=Path("labelled"))
    parser.add_argument("--archives", type=Path, default=Path("archives"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    if args.what == "pack":
        pack(args.labelled, args.output, args.workers)
    else:
        unpack(args.archives, args.output)


if __name__ == "__main__":
    main()
