"""Labelled structures as extended XYZ that ASE can read, and the list of failures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

from torchmdx.datasets.labelling.geometry import Labels, UnlabelledStructure
from torchmdx.datasets.labelling.ledger import Failure
from torchmdx.runtime.files import whole_file, write_whole

SUFFIXES = (".xyz", ".extxyz")


def require_output(path: Path) -> None:
    """Raises ValueError or FileNotFoundError if no output can be written there."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"--output must end in {' or '.join(SUFFIXES)} (extended XYZ), got {str(path)!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing folder, got {str(path)!r}: no {path.parent}")
    if path.is_dir():
        raise IsADirectoryError(f"--output must be a file, got the folder {str(path)!r}")


def write_structures(path: Path, frames: Iterable[tuple[str, UnlabelledStructure, Labels]]) -> None:
    """Writes origin, structure and labels of each frame. The file is replaced atomically."""
    with whole_file(path) as binary:
        file = io.TextIOWrapper(binary, encoding="utf-8", write_through=True)
        for origin, geometry, labels in frames:
            _write_frame(file, origin, geometry, labels)
        file.detach()


def write_failures(path: Path, failures: Iterable[Failure]) -> None:
    """Writes a CSV of origin and reason. The file is replaced atomically."""
    file = io.StringIO(newline="")
    rows = csv.writer(file)
    rows.writerow(["origin", "reason"])
    rows.writerows([failure.origin, failure.reason] for failure in failures)
    write_whole(path, file.getvalue().encode())


def _write_frame(file: IO[str], origin: str, geometry: UnlabelledStructure, labels: Labels) -> None:
    from ase.data import chemical_symbols

    entries = ["Properties=species:S:1:pos:R:3:forces:R:3"]
    if geometry.cell.any():
        entries.insert(0, f'Lattice="{_numbers(geometry.cell)}"')
    entries.append(f"energy={labels.energy!r}")
    if labels.stress is not None:
        entries.append(f'stress="{_numbers(labels.stress)}"')
    charge = geometry.charge
    entries.append(f"charge={int(charge) if float(charge).is_integer() else charge!r}")
    if geometry.multiplicity is not None:
        entries.append(f"multiplicity={geometry.multiplicity}")
    # ASE's writer does not escape backslashes, which occur in SMILES, and its reader drops them.
    quoted = origin.replace("\\", "\\\\").replace('"', '\\"')
    entries += [f'origin="{quoted}"', f'pbc="{" ".join("FT"[int(flag)] for flag in geometry.pbc)}"']
    file.write(f"{len(geometry.numbers)}\n{' '.join(entries)}\n")
    rows = np.hstack([geometry.positions, labels.forces])
    for number, row in zip(geometry.numbers, rows, strict=True):
        file.write(f"{chemical_symbols[number]:<2} " + " ".join(f"{value:.8f}" for value in row) + "\n")


def _numbers(array: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in array.ravel())
