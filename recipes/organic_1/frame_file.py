"""Structures to label as extended XYZ: with total charge, name, and atoms and charge of each molecule in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from assemblies import Frame

SYMBOLS = {1: "H", 6: "C", 7: "N", 8: "O", 9: "F", 16: "S", 17: "Cl"}


def write_frames(path: Path, frames: list[Frame]) -> None:
    """Extended XYZ, with the total charge and the name."""
    lines = []
    for frame in frames:
        name = frame.name.replace("\\", "\\\\")  # as extended XYZ wants it between quotes
        lines.append(f"{len(frame.numbers)}")
        parts = " ".join(f"{atoms}:{charge}" for atoms, charge in frame.parts)
        parts = f'parts="{parts}" ' if parts else ""
        lines.append(f'Properties=species:S:1:pos:R:3 charge={frame.charge} molecule="{name}" {parts}pbc="F F F"')
        lines += [
            f"{SYMBOLS[int(z)]} {x:.4f} {y:.4f} {w:.4f}"
            for z, (x, y, w) in zip(frame.numbers, frame.positions, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")


def read_frames(path: Path) -> Iterator[Frame]:
    """What `write_frames` wrote."""
    numbers = {symbol: number for number, symbol in SYMBOLS.items()}
    with path.open() as file:
        for line in file:
            comment = file.readline()
            found = re.search(r'charge=(-?\d+) molecule="([^"]*)"(?: parts="([^"]*)")?', comment)
            if found is None:
                raise ValueError(f"a frame of {str(path)!r} must have charge and molecule, got {comment.strip()!r}")
            rows = [file.readline().split() for _ in range(int(line))]
            z = np.array([numbers[row[0]] for row in rows])
            x = np.array([row[1:] for row in rows], float)
            parts = tuple((int(n), int(q)) for n, q in (part.split(":") for part in (found[3] or "").split()))
            yield Frame(z, x, int(found[1]), found[2].replace("\\\\", "\\"), parts)
