"""Frames of trajectory and structure files: DCD with a structure next to it, and every format of ASE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.curves import frame_panels, log_panels
from torchmdx.report.view.dcd import Dcd
from torchmdx.report.view.hdf5 import ENDINGS, Hdf5, open_trajectory
from torchmdx.report.view.movie import TIME, MovieFrames
from torchmdx.report.view.thin import frames_to_show
from torchmdx.structures.files import read_structure, read_structures
from torchmdx.structures.units import PICOSECOND

if TYPE_CHECKING:
    from ase import Atoms

Integers = NDArray[np.int64]

STRUCTURES = (".final.pdb", ".final.cif", ".final.xyz", ".start.pdb", ".pdb", ".cif", ".xyz")
LEAST_VOLUME = 1.0  # Å³ per atom; a smaller cell is a placeholder


def read(
    path: str,
    *,
    index: str = ":",
    structure: str | None = None,
    log: str | None = None,
    frame_time: float | None = None,
) -> MovieFrames:
    """The frames of a file.

    Args:
        index: Of frames, as ASE writes it (":", "-1", "::10").
        structure: A file with the elements, for a DCD (default: the files of `torchmdx md` next to it).
        log: Of `torchmdx md` (default: the one next to a DCD).
        frame_time: Time between the frames of a file without times, fs.

    Raises:
        FileNotFoundError: For files that do not fit together or hold no such frame.
        ValueError: For files that do not fit together or hold no such frame.
    """
    if frame_time is not None and not 0 < frame_time < math.inf:
        raise ValueError(f"--frame-time must be > 0 fs, got {frame_time}")
    if Path(path).suffix.lower() in (".dcd", *ENDINGS):
        if frame_time is not None:
            raise ValueError(f"--frame-time applies to files without times, got it with {path!r}")
        return _read_dcd(path, index, structure, log)
    for option, value in (("--structure", structure), ("--log", log)):
        if value is not None:
            raise ValueError(f"{option} applies to DCD and HDF5 trajectories, got it with {path!r}")
    structures = read_structures(path, ":")
    indices = selected(index, len(structures), path)
    return of_structures(
        [structures[place] for place in indices],
        title=Path(path).name,
        indices=indices,
        num_frames=len(indices),
        frame_time=frame_time,
    )


def selected(index: str, number: int, path: str) -> Integers:
    """Indices of frames that `index` selects of `number` frames. Raises ValueError if there are none."""
    from ase.utils import string2index

    try:
        chosen: Any = string2index(index)
        found = np.atleast_1d(np.arange(number)[chosen]).astype(np.int64)
    except (ValueError, IndexError) as error:
        raise ValueError(f"--index must select frames of the {number} in {path!r}, got {index!r}") from error
    if not len(found):
        raise ValueError(f"--index must select frames of the {number} in {path!r}, got {index!r}, which selects none")
    return found


def of_structures(
    structures: Sequence[Atoms],
    *,
    title: str,
    indices: Integers | None = None,
    num_frames: int | None = None,
    axis: str = "frame",
    frame_time: float | None = None,
) -> MovieFrames:
    """Frames of ASE structures, with the energies, forces and velocities that they carry.

    Args:
        indices: In their file, or numbers of steps.
        num_frames: In the file.
        axis: What indices count.
        frame_time: Time between frames, fs.
    """
    indices = np.arange(len(structures)) if indices is None else indices
    x = indices.astype(np.float64) * (1.0 if frame_time is None else frame_time / PICOSECOND)
    first = structures[0]
    same = all(len(atoms) == len(first) for atoms in structures)
    moving = all(atoms.has("momenta") for atoms in structures)
    return MovieFrames(
        title=title,
        numbers=[atoms.numbers.astype(np.int64) for atoms in structures],
        positions=[atoms.positions.astype(np.float64) for atoms in structures],
        cells=[_cell(atoms) for atoms in structures],
        pbc=[np.asarray(atoms.pbc, dtype=bool) for atoms in structures],
        indices=indices,
        num_frames=num_frames or len(structures),
        x=x,
        axis=axis if frame_time is None else TIME,
        captions=[
            _caption(atoms, f"{axis} {place:,}", same)
            for atoms, place in zip(structures, indices.tolist(), strict=True)
        ],
        labels=labels_of(first) if same else None,
        panels=frame_panels(structures, x),
        velocities=[atoms.get_velocities() for atoms in structures] if moving else None,
    )


def of_dcd(
    dcd: Dcd | Hdf5,
    numbers: Integers,
    *,
    title: str,
    indices: Integers | None = None,
    labels: list[str] | None = None,
    log: Path | None = None,
    temperature: float | None = None,
    pbc: NDArray[np.bool_] | None = None,
) -> MovieFrames:
    """Frames of a DCD or HDF5 file with the elements [N] of its atoms; only those that a page can show are read.

    Args:
        labels: Of the atoms.
        log: Of the run; temperature: its thermostat's, K.
        pbc: [3] the periodic directions of frames with a cell, which the file does not tell; None for all.

    Raises:
        ValueError: For another number of atoms, or without a frame.
    """
    if dcd.num_atoms != len(numbers):
        raise ValueError(f"{str(dcd.path)!r} has {dcd.num_atoms} atoms, but the structure has {len(numbers)}")
    if not dcd.num_frames:
        raise ValueError(f"{str(dcd.path)!r} has no complete frame")
    indices = np.arange(dcd.num_frames) if indices is None else indices
    number = len(indices)
    indices = indices[frames_to_show(number, dcd.num_atoms)]
    positions, cells = dcd.read(indices)
    steps = dcd.steps()[indices]
    timed = dcd.timestep > 0
    times = steps * dcd.timestep / PICOSECOND
    captions = [
        f"frame {place:,}, step {step:,}" + f", {time:.6g} ps" * timed
        for place, step, time in zip(indices.tolist(), steps.tolist(), times.tolist(), strict=True)
    ]
    return MovieFrames(
        title=title,
        numbers=[numbers] * len(indices),
        positions=list(positions),
        cells=[None] * len(indices) if cells is None else list(cells),
        pbc=[np.full(3, cells is not None) if cells is None or pbc is None else pbc] * len(indices),
        indices=indices,
        num_frames=number,
        x=np.asarray(times if timed else steps, dtype=np.float64),
        axis=TIME if timed else "step",
        captions=captions,
        labels=labels,
        panels=log_panels(log, temperature) if log is not None else [],
    )


def labels_of(atoms: Atoms) -> list[str] | None:
    """Labels as "ALA 2 CA" from the residues of a PDB file, None without residues."""
    needed = ("residuenames", "residuenumbers", "atomtypes")
    if any(name not in atoms.arrays for name in needed):
        return None
    columns = (atoms.arrays[name].tolist() for name in needed)
    return [f"{residue.strip()} {number} {name.strip()}" for residue, number, name in zip(*columns, strict=True)]


def _read_dcd(path: str, index: str, structure: str | None, log: str | None) -> MovieFrames:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no trajectory at {path!r}")
    dcd = open_trajectory(path)
    prefix = str(Path(path).with_suffix(""))
    if structure is None:
        structure = next((prefix + ending for ending in STRUCTURES if Path(prefix + ending).is_file()), None)
    if structure is None:
        raise FileNotFoundError(
            f"{path!r} has no elements: give a file that has them with --structure, or put one in its folder, such as "
            f"{Path(prefix).name + STRUCTURES[0]!r}"
        )
    if log is None:
        log = prefix + ".log" if Path(prefix + ".log").is_file() else None
    elif not Path(log).is_file():
        raise FileNotFoundError(f"no log at {log!r}")
    atoms = read_structure(structure, "-1")
    if dcd.num_atoms != len(atoms):
        raise ValueError(f"{path!r} has {dcd.num_atoms} atoms, but {structure!r} has {len(atoms)}")
    return of_dcd(
        dcd,
        atoms.numbers.astype(np.int64),
        title=Path(path).name,
        indices=selected(index, dcd.num_frames, path),
        labels=labels_of(atoms),
        log=None if log is None else Path(log),
        pbc=np.asarray(atoms.pbc, dtype=bool) if atoms.pbc.any() else None,
    )


def _cell(atoms: Atoms) -> NDArray[np.float64] | None:
    cell = np.asarray(atoms.cell.array, dtype=np.float64)
    if not atoms.pbc.any() or abs(float(np.linalg.det(cell))) < LEAST_VOLUME * max(len(atoms), 1):
        return None
    return cell


def _caption(atoms: Atoms, place: str, same: bool) -> str:
    return place if same else f"{place}: {atoms.get_chemical_formula(mode='hill')}"
