"""Start structures of dynamics.py: test molecules of many sizes, some of them ions, relaxed with GFN2-xTB by tblite.

python make_dynamics_start.py --start start --output dynamics_start.xyz
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from card_methods import Structure, relax
from frame_file import SYMBOLS
from start_file import Entry, read_entries

NEUTRAL = 17
SMALLEST, LARGEST = 10, 40  # atoms
IONS = (-1, 1, 1)
LARGEST_FORCE, MOST_STEPS = 0.02, 300  # eV/Å


def choose(entries: list[Entry], seed: int) -> list[Entry]:
    """Neutral molecules of evenly spaced sizes, each with the element that is rarest so far, and ions."""
    rng = np.random.default_rng(seed)
    order = [entries[k] for k in rng.permutation(len(entries))]
    chosen: list[Entry] = []
    seen = dict.fromkeys(SYMBOLS, 0)
    sizes = [*np.linspace(SMALLEST, LARGEST, NEUTRAL).round(), *np.linspace(14, 28, len(IONS)).round()]
    charges = [0] * NEUTRAL + list(IONS)
    for size, charge in zip(sizes, charges, strict=True):
        fitting = [
            entry
            for entry in order
            if entry.charge == charge and abs(len(entry.numbers) - size) <= 1 and entry not in chosen and _one(entry)
        ]
        best = min(fitting, key=lambda entry: min(seen[int(z)] for z in entry.numbers))
        chosen.append(best)
        for number in set(best.numbers.tolist()):
            seen[number] += 1
    return chosen


def _one(entry: Entry) -> bool:
    """Not a zwitterion: relaxation moves its proton back, and it is then another molecule."""
    return not (entry.charge == 0 and "+" in entry.name and "N+](=O)" not in entry.name and "=[N+]=" not in entry.name)


def text(entry: Entry, relaxed: Structure) -> str:
    """Extended XYZ."""
    rows = [
        f"{SYMBOLS[int(z)]} {x:.4f} {y:.4f} {w:.4f}"
        for z, (x, y, w) in zip(relaxed.numbers, relaxed.positions, strict=True)
    ]
    comment = f'Properties=species:S:1:pos:R:3 charge={entry.charge} molecule="{entry.name}" pbc="F F F"'
    return "\n".join([str(len(rows)), comment, *rows]) + "\n"


def main() -> None:
    """Writes the structures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, default=Path("start"))
    parser.add_argument("--output", type=Path, default=Path("dynamics_start.xyz"))
    parser.add_argument("--seed", type=int, default=20263)
    args = parser.parse_args()
    entries = [entry for entry in read_entries(args.start / "molecules.npz") if entry.subset == "test"]
    with args.output.open("w") as file:
        for entry in choose(entries, args.seed):
            start = Structure(entry.numbers.astype(int), entry.conformers[0], entry.charge)
            relaxed = relax(start, LARGEST_FORCE, MOST_STEPS)
            centred = relaxed.at(relaxed.positions - relaxed.positions.mean(0))
            file.write(text(entry, centred))
            print(f"{len(entry.numbers)} atoms, charge {entry.charge:+d}: {entry.name}", flush=True)


if __name__ == "__main__":
    main()
