"""Arranges atoms for a page: molecules in one piece, small cells repeated, frames superimposed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.view.bonds import bonds, molecules, whole
from torchmdx.report.view.movie import Kind, Movie, MovieFrames, Torsions
from torchmdx.report.view.observables import observables
from torchmdx.report.view.thin import atoms_to_show, frames_to_show
from torchmdx.report.view.torsions import backbone, torsion

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SMALL_CELL, MOST_REPEATED = 8.0, 400  # Å: the least extent that is drawn; atoms: in all repeated cells


@dataclass(eq=False)
class Arranged:
    """Atoms in frames, ready to be drawn: positions [F,N,3] Å from the centre, the file's index [N] of each atom.

    Attributes:
        pairs, crossings: As in `Kind`.
    """

    numbers: Integers
    atoms: Integers
    positions: Floats
    pairs: Integers
    crossings: Integers
    torsions: Torsions | None
    repeats: tuple[int, int, int]
    notes: list[str] = field(default_factory=list)


def movie_of(frames: MovieFrames, *, plain: bool = False) -> Movie:
    """The movie of frames, thinned if they are many or large.

    Args:
        plain: Without rotations and repeated cells, as vectors on the atoms need it.

    Raises:
        ValueError: Without a frame that has atoms.
    """
    if not frames.positions or not all(len(positions) for positions in frames.positions):
        raise ValueError("a page needs at least one frame, and atoms in every frame")
    uniform = frames.uniform
    mean = float(np.mean([len(positions) for positions in frames.positions]))
    frames = frames.take(frames_to_show(len(frames.positions), mean, mixed=not uniform))
    notes = []
    if len(frames.positions) < frames.num_frames:
        notes.append(f"{len(frames.positions):,} of {frames.num_frames:,} frames are shown.")
    parts = [frames] if uniform else [frames.take([place]) for place in range(len(frames.positions))]
    kinds: dict[bytes, int] = {}
    movie = Movie(
        frames.title, [], [], [], frames.cells, frames.x, frames.axis, frames.captions, frames.panels, None, notes
    )
    if not plain:
        movie.observables = observables(frames)
    for part in parts:
        found = _arranged(part, plain=plain, repeat=uniform and not plain)
        key = found.numbers.tobytes()
        if key not in kinds:
            kinds[key] = len(movie.kinds)
            movie.kinds.append(Kind(found.numbers, found.pairs, _labels(found, frames.labels), found.crossings))
        else:
            known = movie.kinds[kinds[key]]
            movie.kinds[kinds[key]] = Kind(
                known.numbers,
                union([known.pairs, found.pairs]),
                known.labels,
                union([known.crossings, found.crossings]),
            )
        movie.kind_of += [kinds[key]] * len(found.positions)
        movie.positions += list(found.positions)
        if uniform:
            movie.torsions, movie.repeats = found.torsions, found.repeats
        movie.notes += [note for note in found.notes if note not in movie.notes]
    return movie


def _arranged(frames: MovieFrames, *, plain: bool, repeat: bool) -> Arranged:
    """Frames of the same atoms. plain: without rotations. repeat: draw a small cell several times."""
    numbers, pbc = frames.numbers[0], frames.pbc[0]
    positions = np.stack(frames.positions)
    cells = None if frames.cells[0] is None else np.stack([cell for cell in frames.cells if cell is not None])
    found = molecules(numbers, positions[0], None if cells is None else cells[0], pbc)
    notes = []
    if cells is not None:
        positions = whole(positions, cells, pbc, found)
    torsions = _torsions(numbers, positions, found.pairs, frames.labels)
    atoms, note = atoms_to_show(numbers, found)
    notes += [note] if note else []
    positions, times = positions[:, atoms], (1, 1, 1)
    if cells is None and plain:
        positions = positions - positions.mean(1, keepdims=True)
    elif cells is None:
        positions = superimposed(positions)
        if len(positions) > 1:
            notes.append("Each frame is superimposed on the first.")
    if cells is not None:
        times = repeats(cells[0], pbc, len(atoms)) if repeat else times
        if times != (1, 1, 1):
            shifts = np.array(list(itertools.product(*map(range, times))))
            positions = np.concatenate([positions + (shift @ cells)[:, None] for shift in shifts], axis=1)
            atoms = np.tile(atoms, len(shifts))
            notes.append(f"{' × '.join(map(str, times))} cells are drawn.")
        positions = positions - (np.array(times) @ cells / 2)[:, None]
    boxes = None if cells is None else cells * np.array(times)[:, None]
    pairs, crossings = _bonds(numbers[atoms], positions, boxes, pbc)
    crossings[:, 2:] *= times
    return Arranged(numbers[atoms], atoms, positions, pairs, crossings, torsions, times, notes)


def _bonds(
    numbers: Integers, positions: Floats, boxes: Floats | None, pbc: NDArray[np.bool_]
) -> tuple[Integers, Integers]:
    """Bonds of all frames: pairs [B,2], and crossings [C,5], each with the image of the box in which its end is."""
    inside, across = [], []
    for k, frame in enumerate(positions):
        box, along = (None, np.zeros(3, dtype=bool)) if boxes is None else (boxes[k], pbc)
        pairs, shifts = bonds(numbers, frame, box, along, crystal=bool(along.any()))
        outside = shifts.any(1)
        inside.append(pairs[~outside])
        across.append(np.concatenate([pairs, shifts], axis=1)[outside])
    return union(inside), union(across)


def union(rows: list[Integers]) -> Integers:
    """All rows [B,K] of several lists, each once, in order."""
    every = [some for some in rows if len(some)]
    if not every:
        return rows[0][:0]
    low = np.min([some.min(0) for some in every], axis=0)
    spans = np.max([some.max(0) for some in every], axis=0) - low + 1
    keys = np.zeros(0, dtype=np.int64)
    for some in every:
        keys = np.union1d(keys, np.ravel_multi_index(tuple((some - low).T), spans))
    return np.stack(np.unravel_index(keys, spans), axis=1) + low


def repeats(cell: Floats, pbc: NDArray[np.bool_], num_atoms: int) -> tuple[int, int, int]:
    """How often a small cell is drawn along each periodic direction."""
    heights = 1 / np.linalg.norm(np.linalg.inv(cell), axis=0)
    times = np.where(pbc, np.clip(np.ceil(SMALL_CELL / heights - 0.3), 1, 4), 1).astype(int)
    while times.max() > 1 and times.prod() * num_atoms > MOST_REPEATED:
        times[times.argmax()] -= 1
    first, second, third = times.tolist()
    return first, second, third


def superimposed(positions: Floats) -> Floats:
    """Positions [F,N,3]; the first frame along its principal axes about its middle, the others superimposed on it.

    The longest axis is x, the second z, as the page's camera looks along y. Rotations only, no mirror images.
    """
    positions = positions - positions.mean(1, keepdims=True)
    _, _, axes = np.linalg.svd(positions[0], full_matrices=True)
    turn = axes[[0, 2, 1]].T
    if np.linalg.det(turn) < 0:
        turn[:, 1] *= -1
    target = positions[0] @ turn
    left, _, right = np.linalg.svd(positions.transpose(0, 2, 1) @ target)
    right[:, 2] *= np.sign(np.linalg.det(left @ right))[:, None]
    turned = np.asarray(positions @ (left @ right))
    return turned - (turned[0].max(0) + turned[0].min(0)) / 2


def _labels(found: Arranged, labels: list[str] | None) -> list[str] | None:
    return None if labels is None else [labels[atom] for atom in found.atoms]


def _torsions(numbers: Integers, positions: Floats, pairs: Integers, labels: list[str] | None) -> Torsions | None:
    residues = backbone(numbers, pairs)
    if not residues:
        return None
    names = [f"residue {place + 1}" for place in range(len(residues))]
    if labels is not None:
        names = [labels[residue.alpha_carbon].rsplit(" ", 1)[0] for residue in residues]
    phi = np.stack([torsion(positions, residue.phi) for residue in residues], axis=1)
    psi = np.stack([torsion(positions, residue.psi) for residue in residues], axis=1)
    return Torsions(names, phi, psi)
