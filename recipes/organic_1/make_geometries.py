"""Structures to label, from the files of make_molecules.py, make_ions.py and make_more.py. Needs NumPy only.

python make_geometries.py --start start --output geometries
"""

from __future__ import annotations

import argparse
import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from assemblies import Assembler, Frame
from deform import Shaper
from frame_file import write_frames
from start_file import Entry, read_entries

# What a molecule of 22 atoms gets, in shares; smaller ones get more frames, larger ones fewer.
KINDS = (("thermal", 6), ("rattle", 2), ("scale", 1), ("torsion", 3), ("stretch", 2))
LARGE_KINDS = (("thermal", 6), ("torsion", 4))
CHUNKS = 16  # files of training molecules
ION_ROUNDS = (("thermal",), ("torsion", "stretch", "rattle"), ("thermal",), ("scale", "torsion", "stretch"))
ION_PARTS = 4  # files of a round of the training ions: each round has a frame of each ion
ION_HELD_ROUNDS = 3  # rounds of validation and test
MORE_ION_ROUNDS = 4  # of ions of make_more.py; its molecules may have more
Rounds = tuple[tuple[str, ...], ...]
# Of each of its calls: rounds, and the stream of their random numbers.
MORE: dict[str, tuple[Rounds, int]] = {
    "more": ((*ION_ROUNDS, ("thermal", "rattle", "torsion")), 19),
    "yetmore": ((("thermal", "rattle"), ("torsion", "stretch", "scale")), 31),
}
APART_FILES = 8
MD_MOST_ATOMS = 26
MD_CHUNK = 100  # molecules of a file
TEMPERATURES = (300, 600, 1000)
MD_HELD = 48  # molecules of validation and of test with dynamics
MD_CLUSTERS = 150
MD_CLUSTER_ATOMS = 22


@dataclass(frozen=True)
class Job:
    """A file to write."""

    kind: str
    subset: str
    chunk: int
    args: argparse.Namespace


def molecule_frames(entries: list[tuple[int, Entry]], kinds: tuple[tuple[str, int], ...], seed: int) -> list[Frame]:
    """Frames of each molecule, which depend on nothing but the seed and its number."""
    frames: list[Frame] = []
    for number, entry in entries:
        rng = np.random.default_rng([seed, number])
        if len(entry.numbers) == 1:
            frames.append(_frame(entry, np.zeros((1, 3))))
            continue
        shaper = Shaper(entry, rng)
        factor = 1.0 if kinds is LARGE_KINDS else float(np.clip((22 / len(entry.numbers)) ** 0.7, 0.7, 3.5))
        for kind, count in kinds:
            frames += [_frame(entry, shaper.draw(kind)) for _ in range(max(1, round(count * factor)))]
    return frames


def ion_frames(entries: list[Entry], subset: str, chunk: int, seed: int) -> list[Frame]:
    """Frames of the ions of a subset; of training ions a part of one round, so that labels may end anywhere."""
    own = [(k, e) for k, e in enumerate(entries) if e.subset == subset]
    rounds = range(ION_HELD_ROUNDS) if subset != "train" else [chunk // ION_PARTS]
    frames: list[Frame] = []
    for turn in rounds:
        for number, entry in own if subset != "train" else own[chunk % ION_PARTS :: ION_PARTS]:
            rng = np.random.default_rng([seed, 11, number, turn])
            frames.append(_frame(entry, Shaper(entry, rng).draw(str(rng.choice(ION_ROUNDS[turn])))))
    return frames


def more_frames(entries: list[Entry], rounds: Rounds, stream: int, chunk: int, seed: int) -> list[Frame]:
    """A part of one round of what a call of make_more.py made. stream: of random numbers, its own for each call."""
    turn = chunk // ION_PARTS
    frames: list[Frame] = []
    for number in range(chunk % ION_PARTS, len(entries), ION_PARTS):
        entry = entries[number]
        if turn < MORE_ION_ROUNDS or not entry.charge:
            rng = np.random.default_rng([seed, stream, number, turn])
            frames.append(_frame(entry, Shaper(entry, rng).draw(str(rng.choice(rounds[turn])))))
    return frames


def more_assemblies(old: list[Entry], more: list[Entry], common: set[str], seed: int) -> list[Frame]:
    """Pairs and clusters of molecules and ions of make_more.py, with those that all subsets share."""
    known = [e for e in old if e.name in common]
    assembler = Assembler([*known, *more], common, "train", np.random.default_rng([seed, 23]), "more")
    frames = [*assembler.ion_pairs([e for e in more if e.charge]), *assembler.dimers(), *assembler.clusters()]
    return [frames[k] for k in np.random.default_rng(seed).permutation(len(frames))]


def apart_frames(old: list[Entry], ions: list[Entry], common: set[str], chunk: int, seed: int) -> list[Frame]:
    """Pairs and threes of any training molecules and ions at all distances: those of one file."""
    rng = np.random.default_rng([seed, 29, chunk])
    frames = Assembler(old, common, "train", rng).apart([e for e in ions if e.charge and e.subset == "train"])
    return [frames[k] for k in rng.permutation(len(frames))]


def _frame(entry: Entry, positions: np.ndarray) -> Frame:
    return Frame(entry.numbers, positions, entry.charge, entry.name)


def dynamics_starts(entries: list[Entry], seed: int) -> list[tuple[str, list[Frame]]]:
    """Files of starting structures by name, in the order in which they matter; largest molecules first in each."""
    found: list[tuple[str, list[Frame]]] = []
    for subset in ("val", "test", "train"):
        rng = np.random.default_rng([seed, len(subset)])
        chosen = [e for e in entries if e.subset == subset and 3 <= len(e.numbers) <= MD_MOST_ATOMS]
        chosen = [chosen[k] for k in rng.permutation(len(chosen))]
        if subset != "train":
            chosen = chosen[:MD_HELD]
        for chunk, start in enumerate(range(0, len(chosen), MD_CHUNK)):
            part = sorted(chosen[start : start + MD_CHUNK], key=lambda e: -len(e.numbers))
            frames = [_frame(e, e.conformers[chunk % len(e.conformers)]) for e in part]
            found.append((f"{subset}-md{TEMPERATURES[(chunk + 1) % 3]}-{chunk:02d}", frames))
    return found


def do(job: Job) -> tuple[str, int, int]:
    """Writes a file; its name, frames and atoms."""
    entries = read_entries(job.args.start / "molecules.npz")
    common = {line.split()[0] for line in (job.args.start / "common.txt").read_text().splitlines()}
    seed = job.args.seed
    name = f"{job.subset}-{job.kind}-{job.chunk:02d}"
    if job.kind == "molecules":
        own = [(k, e) for k, e in enumerate(entries) if e.subset == job.subset]
        frames = molecule_frames(own[job.chunk :: CHUNKS if job.subset == "train" else 1], KINDS, seed)
    elif job.kind == "heldout":
        held = read_entries(job.args.start / "heldout.npz")
        frames = molecule_frames(list(enumerate(held)), LARGE_KINDS, seed + 1)
    elif job.kind == "ions":
        frames = ion_frames(read_entries(job.args.start / "ions.npz"), job.subset, job.chunk, seed)
    elif job.kind in MORE:
        frames = more_frames(read_entries(job.args.start / f"{job.kind}.npz"), *MORE[job.kind], job.chunk, seed)
    elif job.kind == "moreassemblies":
        frames = more_assemblies(entries, read_entries(job.args.start / "more.npz"), common, seed)
    elif job.kind == "moreapart":
        more, ions = (read_entries(job.args.start / f"{name}.npz") for name in ("more", "ions"))
        frames = apart_frames([*entries, *more], [*ions, *more, *entries], common, job.chunk, seed)
    elif job.kind == "ionpairs":
        rng = np.random.default_rng([seed, 13, len(job.subset)])
        frames = Assembler(entries, common, job.subset, rng).ion_pairs(read_entries(job.args.start / "ions.npz"))
    else:
        rng = np.random.default_rng([seed, 7, len(job.subset), ("dimers", "clusters", "mdclusters").index(job.kind)])
        assembler = Assembler(entries, common, job.subset, rng)
        if job.kind == "dimers":
            frames = assembler.dimers()
        else:
            frames = assembler.clusters()
        if job.kind == "mdclusters":
            small = [f for f in frames if len(f.numbers) <= MD_CLUSTER_ATOMS][::3]
            frames = [small[k] for k in rng.permutation(len(small))[: MD_CLUSTERS if job.subset == "train" else 12]]
            frames.sort(key=lambda f: -len(f.numbers))
            name = f"{job.subset}-md300-c{job.chunk}"
    return _written(job.args.output, name, frames)


def _written(folder: Path, name: str, frames: list[Frame]) -> tuple[str, int, int]:
    if frames:
        write_frames(folder / f"{name}.xyz", frames)
    return name, len(frames), sum(len(f.numbers) for f in frames)


def main() -> None:
    """Writes all files, in parallel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", type=Path, default=Path("start"))
    parser.add_argument("--output", type=Path, default=Path("geometries"))
    parser.add_argument("--seed", type=int, default=20262)
    parser.add_argument("--only", nargs="*", help="kinds of files, as ions ionpairs; default: all")
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    subsets = ("train", "val", "test")
    jobs = [Job(kind, subset, 0, args) for kind in ("clusters", "dimers", "mdclusters") for subset in subsets]
    jobs += [Job("molecules", subset, 0, args) for subset in subsets[1:]]
    jobs += [Job("molecules", "train", chunk, args) for chunk in range(CHUNKS)] + [Job("heldout", "heldout", 0, args)]
    jobs += [Job(kind, subset, 0, args) for kind in ("ionpairs", "ions") for subset in subsets[1:]]
    jobs += [Job("ionpairs", "train", 0, args)]
    jobs += [Job("ions", "train", chunk, args) for chunk in range(len(ION_ROUNDS) * ION_PARTS)]
    jobs += [Job(kind, "train", k, args) for kind, (rounds, _) in MORE.items() for k in range(len(rounds) * ION_PARTS)]
    jobs += [Job("moreassemblies", "train", 0, args)]
    jobs += [Job("moreapart", "train", chunk, args) for chunk in range(APART_FILES)]
    if args.only:
        jobs = [job for job in jobs if job.kind in args.only]
    with multiprocessing.Pool(args.workers) as pool:
        done = list(pool.imap_unordered(do, jobs))
    if not args.only or "dynamics" in args.only:
        entries = read_entries(args.start / "molecules.npz")
        done += [_written(args.output, name, frames) for name, frames in dynamics_starts(entries, args.seed)]
    for name, frames, atoms in sorted(done):
        print(f"{name} {frames} frames, {atoms / max(1, frames):.1f} atoms in the mean")


if __name__ == "__main__":
    main()
