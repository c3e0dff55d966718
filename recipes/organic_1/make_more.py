"""More training molecules and ions, each with one conformer: the subsets of make_molecules.py stay as they are.

python make_more.py --start start
python make_more.py --start start --name yetmore --after more --count 50000 --seed 20270

Molecules continue where make_molecules.py, or the last call, stopped. Those whose hash makes them validate or test are
left out, and ions that a molecule of these subsets has as well. Needs RDKit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.pool
import random
from collections import Counter
from pathlib import Path

import numpy as np
from make_ions import MOST, Ion, choose, ions_of, key_of
from make_molecules import Job, collect, embed, group_of
from rdkit import Chem, RDLogger
from start_file import Entry, read_entries, subset_of, write_entries


def bare(smiles: str, group: str) -> Entry:
    """A molecule whose ions are to be found: with the number of its atoms, without conformers."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    none = np.zeros((0, 2), int)
    return Entry(smiles, group, "train", Chem.GetFormalCharge(mol), numbers, none, none[:, 0] > 0, np.zeros((0, 1, 3)))


def new_molecules(old: list[Entry], count: int, seed: int, pool: multiprocessing.pool.Pool) -> list[Entry]:
    """The next molecules of the stream that train."""
    known = {entry.name for entry in old}
    smiles = [text for text in collect(count, seed, None) if text not in known]
    groups = pool.map(group_of, smiles, chunksize=64)
    homes = {entry.group: entry.subset for entry in old}
    train = [(s, g) for s, g in zip(smiles, groups, strict=True) if homes.get(g, subset_of(g)) == "train"]
    return [bare(s, g) for s, g in train]


def new_ions(
    old: list[Entry], old_ions: list[Entry], new: list[Entry], seed: int, pool: multiprocessing.pool.Pool
) -> list[tuple[Entry, Ion]]:
    """Ions of the new molecules that neither are there already nor belong to a molecule of another subset."""
    held = [e for e in old if e.subset != "train" and e.charge == 0 and 2 < len(e.numbers) <= MOST]
    parents = [e for e in new if e.charge == 0 and 2 < len(e.numbers) <= MOST]
    charged = [e.name for e in [*old, *old_ions, *new] if e.charge]
    known = {key_of(Chem.MolFromSmiles(name)) for name in charged}
    found = pool.map(ions_of, [*held, *parents], chunksize=32)
    chosen = choose([*held, *parents], found, known, seed)
    return [(parent, ion) for parent, ion in chosen if parent.subset == "train"]


def main() -> None:
    """Writes the molecules and a list of them next to molecules.npz and ions.npz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, default=Path("start"))
    parser.add_argument("--name", default="more", help="of the files")
    parser.add_argument("--after", nargs="*", default=[], help="names of earlier calls")
    parser.add_argument("--count", type=int, default=22000, help="molecules, all that are there already included")
    parser.add_argument("--molecules-seed", type=int, default=20261, help="of make_molecules.py")
    parser.add_argument("--seed", type=int, default=20268)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    RDLogger.DisableLog("rdApp.*")
    old, old_ions = (read_entries(args.start / f"{name}.npz") for name in ("molecules", "ions"))
    earlier = [entry for name in args.after for entry in read_entries(args.start / f"{name}.npz")]
    old, old_ions = old + earlier, old_ions + earlier
    with multiprocessing.Pool(args.workers) as pool:
        new = new_molecules(old, args.count, args.molecules_seed, pool)
        ions = new_ions(old, old_ions, new, args.seed, pool)
        print(f"{len(new)} molecules and {len(ions)} ions to embed", flush=True)
        jobs = [Job(e.name, e.group, "train", 0, 1) for e in new]
        jobs += [Job(ion.smiles, parent.group, "train", 0, 1) for parent, ion in ions]
        random.Random(args.seed).shuffle(jobs)
        made = pool.map(embed, [Job(j.smiles, j.group, j.subset, args.seed + k, 1) for k, j in enumerate(jobs)], 8)
    entries = [entry for entry in made if entry is not None]
    write_entries(args.start / f"{args.name}.npz", entries)
    (args.start / f"{args.name}.txt").write_text("".join(f"{entry.name}\n" for entry in entries))
    print(f"{len(entries)} have conformers, {np.mean([len(e.numbers) for e in entries]):.1f} atoms in the mean")
    print(", ".join(f"charge {q:+d}: {n}" for q, n in sorted(Counter(e.charge for e in entries).items())))


if __name__ == "__main__":
    main()
