"""Removes assemblies in which GFN2-xTB moves charge across a gap, which a network of neighbours cannot reproduce.

python check_apart.py --geometries geometries

In one of the train-moreapart-*.xyz of make_geometries.py, a molecule that stands further than 4 Å from all others must
have its own charge to 0.2 e. Many anions do not: an electron that is loosely bound spreads to whatever is near, since
the method takes energies of orbitals for what they are. Frames without self-consistent charges go too. Needs tblite.
"""

from __future__ import annotations

import argparse
import multiprocessing
import warnings
from pathlib import Path

import numpy as np
from assemblies import Frame
from frame_file import read_frames, write_frames
from tblite.interface import Calculator

FAR = 4.0  # Å
MOST_MOVED = 0.2  # e
BOHR = 0.529177210903  # Å


def far_parts(frame: Frame) -> list[int]:
    """Which of a frame's molecules stand apart from all others."""
    owner = np.repeat(np.arange(len(frame.parts)), [atoms for atoms, _ in frame.parts])
    apart = np.linalg.norm(frame.positions[:, None] - frame.positions, axis=-1)
    apart[owner[:, None] == owner] = np.inf
    return [k for k in range(len(frame.parts)) if apart[owner == k].min(initial=np.inf) > FAR]


def moved(frame: Frame) -> np.ndarray:
    """How much charge each molecule of a frame has beyond its own, e; all of it where there is no solution."""
    calculator = Calculator("GFN2-xTB", frame.numbers, frame.positions / BOHR, charge=frame.charge)
    calculator.set("verbosity", 0)
    try:
        charges = calculator.singlepoint().get("charges")
    except RuntimeError:
        return np.full(len(frame.parts), np.inf)
    owner = np.repeat(np.arange(len(frame.parts)), [atoms for atoms, _ in frame.parts])
    return np.asarray(np.bincount(owner, charges) - [charge for _, charge in frame.parts])


def kept(frame: Frame) -> bool:
    """Whether each separate molecule keeps its charge; close molecules may share it."""
    far = far_parts(frame) if any(charge for _, charge in frame.parts) else []
    return not far or bool(np.abs(moved(frame)[far]).max() <= MOST_MOVED)


def main() -> None:
    """Rewrites the files without those frames."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries", type=Path, default=Path("geometries"))
    parser.add_argument("--workers", type=int, default=multiprocessing.cpu_count())
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    with multiprocessing.Pool(args.workers) as pool:
        for path in sorted(args.geometries.glob("train-moreapart-*.xyz")):
            frames = list(read_frames(path))
            good = pool.map(kept, frames, chunksize=16)
            write_frames(path, [frame for frame, stays in zip(frames, good, strict=True) if stays])
            print(f"{path.name}: {len(good) - sum(good)} of {len(good)} left out", flush=True)


if __name__ == "__main__":
    main()
