"""Predictions for each frame, as extended XYZ.

A file of predictions has these keys, in eV, eV/Å and eV/Å³; what does not apply to a frame is left out. They are ASE's
own for results (`energy`, `forces`, `stress`).

::

    of `torchmdx energy -o`                            energy, forces, stress: predicted; charge
    of `torchmdx evaluate --predictions`               energy, forces, stress: labels
                                                       predicted_energy, predicted_forces, predicted_stress
                                                       charge, set, file, frame (where it is from, counted from 0)
    of an ensemble, in both                            energy_spread; forces_spread of each atom
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from torchmdx.datasets.store import Store

if TYPE_CHECKING:
    from ase import Atoms

    from torchmdx.report.predictions import Predictions

ENDINGS = (".xyz", ".extxyz")


def require_ending(path: str | Path, option: str) -> None:
    """Raises ValueError for a file whose name is not that of extended XYZ."""
    if Path(path).suffix.lower() not in ENDINGS:
        raise ValueError(f"{option} must be a file of extended XYZ, {' or '.join(ENDINGS)}, got {str(path)!r}")


def write_frame(file: BinaryIO, atoms: Atoms, results: Mapping[str, Any]) -> None:
    """Appends a structure with energy, forces and stress as ASE's results; other items go to info or arrays.

    An item with one entry for each atom is an array of atoms.
    """
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import write

    atoms = atoms.copy()
    own = {name: results[name] for name in ("energy", "forces", "stress") if name in results}
    for name, value in results.items():
        atoms.info.pop(name, None)
        atoms.arrays.pop(name, None)
        if name not in own:
            of_atoms = name.endswith(("forces", "forces_spread", "energies_uncertainty"))
            (atoms.arrays if of_atoms else atoms.info)[name] = value
    atoms.calc = SinglePointCalculator(atoms, **{name: np.asarray(value) for name, value in own.items()})
    text = io.StringIO()
    write(text, atoms, format="extxyz")
    file.write(text.getvalue().encode())


class PredictionsFile:
    """Writes labels and predictions of frames of stores to an open file. info: further items of every frame."""

    def __init__(self, file: BinaryIO, info: Mapping[str, Any] | None = None) -> None:
        self._file, self._info = file, dict(info or {})
        self.num_frames = 0

    def add(self, name: str, store: Store, part: Predictions) -> None:
        """Appends frames of the set with this name. The first call imports ASE."""
        for place in range(len(part.frames)):
            atoms, results = _labelled(part, place)
            source, number = store.origin(int(part.indices[place]))
            write_frame(self._file, atoms, results | {"set": name, "file": source, "frame": number} | self._info)
            self.num_frames += 1


def _labelled(part: Predictions, place: int) -> tuple[Atoms, dict[str, Any]]:
    """A frame, and its labels and predictions by key."""
    from ase import Atoms

    frames = part.frames
    start = int(frames.offsets[place])
    own = slice(start, start + int(frames.counts[place]))
    atoms = Atoms(
        frames.atomic_numbers[own], frames.positions[own], cell=frames.cell[place], pbc=frames.pbc[place].tolist()
    )
    found: dict[str, Any] = {
        "energy": float(frames.energy[place]),
        "forces": frames.forces[own].astype(np.float64),
        "stress": frames.stress[place].astype(np.float64),
    }
    # A cell without periodic directions is a box, not a lattice.
    labelled = {name: value for name, value in found.items() if np.isfinite(value).all()}
    labelled["predicted_energy"] = float(part.energy[place])
    labelled["predicted_forces"] = part.forces[own]
    if part.stress is not None and (frames.pbc[place].all() or "stress" in labelled):
        labelled["predicted_stress"] = part.stress[place]
    if part.energy_spread is not None and part.forces_spread is not None:
        labelled["energy_spread"] = float(part.energy_spread[place])
        labelled["forces_spread"] = part.forces_spread[own]
    if part.energy_uncertainty is not None and part.energies_uncertainty is not None:
        labelled["energy_uncertainty"] = float(part.energy_uncertainty[place])
        labelled["energies_uncertainty"] = part.energies_uncertainty[own]
    return atoms, labelled | {"charge": float(frames.charge[place])}
