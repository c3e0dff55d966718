"""Checks of frames: what makes one broken, and how close its atoms are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.blocks import FrameBlock
from torchmdx.datasets.frames import OF_ATOMS, Frames
from torchmdx.datasets.store import ISOLATED, is_isolated
from torchmdx.datasets.units import Units
from torchmdx.structures.cell import require_lattice, wrap
from torchmdx.structures.system_fields import LAST_ELEMENT

CLOSEST = 0.1  # Å; no two nuclei of a labelled structure are nearer
PAIRS_AT_ONCE = 1 << 20


def in_our_units(block: FrameBlock, units: Units) -> Frames:
    """The frames in Å, eV and e, labels but energies in float32; without a volume there is no stress."""
    frames = block.frames
    flat = _without_volume(frames)
    periodic: Any = frames.pbc.any(1)
    with np.errstate(over="ignore"):  # `broken` finds infinite values
        return replace(
            frames,
            positions=frames.positions * units.length_factor,
            cell=frames.cell * units.length_factor,
            energy=frames.energy * units.energy_factor,
            forces=(frames.forces * units.force_factor).astype(np.float32),
            charges=frames.charges.astype(np.float32),
            # That of a periodic structure depends on the choice of the cell.
            dipole=np.where(periodic[:, None], np.nan, frames.dipole * units.dipole_factor).astype(np.float32),
            stress=np.where(flat[:, None, None], np.nan, frames.stress * units.stress_factor).astype(np.float32),
        )


def broken(frames: Frames, claimed: frozenset[str], unlabelled: bool = False) -> dict[int, str]:
    """Frames that cannot be used, with the reason; labels that are `claimed` must exist and be finite.

    Args:
        unlabelled: Whether frames may have no labels.
    """
    found: dict[int, str] = {}

    def note(where: Any, reason: str) -> None:
        for index in np.flatnonzero(where):
            found.setdefault(int(index), reason.format(_element(frames, int(index))))

    note(frames.counts == 0, "it has no atoms")
    finite: Any = np.isfinite(frames.positions)
    note(~_all_of(frames, finite.all(1)), "positions must be finite")
    note(~np.isfinite(frames.cell).all((1, 2)), "the cell must be finite")
    known = (frames.atomic_numbers >= 1) & (frames.atomic_numbers <= LAST_ELEMENT)
    note(~_all_of(frames, known), f"atomic numbers must be 1 to {LAST_ELEMENT}, got {{}}")
    note(~np.isfinite(frames.charge), "the charge must be finite")
    note(~(np.isfinite(frames.weight) & (frames.weight >= 0)), "config_weight must be finite and >= 0")
    lone = np.array([is_isolated(name) for name in frames.config_type], bool)
    note(lone & (frames.counts != 1), f"a frame of config_type {ISOLATED} must have one atom")
    note(lone & ~frames.has_energy, f"a frame of config_type {ISOLATED} must have an energy")
    flat = _without_volume(frames)
    if not unlabelled and not claimed - {"stress"}:
        note(flat | (not claimed), "it has no energy, forces or stress")
    absent = missing(frames, claimed)
    for name in sorted(claimed):
        values = np.isfinite(getattr(frames, name))
        atoms = values.reshape(len(values), math.prod(values.shape[1:])).all(1)
        good = _all_of(frames, atoms) if name in OF_ATOMS else atoms
        unused = {"stress": flat, "dipole": frames.pbc.any(1)}.get(name, np.zeros(len(frames), bool))
        note(~good & ~unused & ~absent[name], f"{name} must be finite, got NaN or infinity")
    for index in np.flatnonzero(frames.pbc.any(1)):
        if int(index) not in found:
            cell, pbc = torch.from_numpy(frames.cell[index][None]), torch.from_numpy(frames.pbc[index][None])
            try:
                require_lattice(cell, pbc)
            except ValueError as error:
                found[int(index)] = str(error).removesuffix(" (system 0)")
    return found


def missing(frames: Frames, claimed: frozenset[str]) -> dict[str, NDArray[np.bool_]]:
    """Which frames [F] lack a label that others of their file have: all of it is NaN, and another label is there.

    Stress and dipole moments that have no meaning are not missing.
    """
    absent, whole = {}, {}
    for name in claimed:
        values = getattr(frames, name)
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        empty, full = np.isnan(rows).all(1), np.isfinite(rows).all(1)
        absent[name], whole[name] = (_all_of(frames, one) if name in OF_ATOMS else one for one in (empty, full))
    meant = {"stress": ~_without_volume(frames), "dipole": ~frames.pbc.any(1)}
    everything = np.ones(len(frames), bool)
    return {
        name: where
        & meant.get(name, everything)
        & np.logical_or.reduce([whole[other] for other in claimed if other != name], initial=False)
        for name, where in absent.items()
    }


def _without_volume(frames: Frames) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.linalg.det(np.where(np.isfinite(frames.cell), frames.cell, 0.0)) == 0
    return found


def _element(frames: Frames, index: int) -> str:
    start = frames.offsets[index]
    numbers = frames.atomic_numbers[start : start + frames.counts[index]]
    wrong = numbers[(numbers < 1) | (numbers > LAST_ELEMENT)]
    return str(wrong[0]) if len(wrong) else ""


def _all_of(frames: Frames, atoms: Any) -> NDArray[np.bool_]:
    """Whether the condition holds for all atoms of each frame."""
    index = np.repeat(np.arange(len(frames)), frames.counts)
    return np.bincount(index[~atoms], minlength=len(frames)) == 0


def nearest(frames: Frames) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The smallest distance [F] in each frame, Å, infinite for one atom; and the elements of that pair [F,2].

    Frames must not be broken.
    """
    distance, pair = np.full(len(frames), np.inf), np.zeros((len(frames), 2), np.int64)
    offsets, periodic = frames.offsets, frames.pbc.any(1)
    for size in np.unique(frames.counts[~periodic]):
        if 2 <= size <= 64:
            alike = np.flatnonzero(~periodic & (frames.counts == size))
            step = max(1, PAIRS_AT_ONCE // int(size) ** 2)
            for start in range(0, len(alike), step):
                some = alike[start : start + step]
                distance[some], pair[some] = _of_small(frames, offsets[some], int(size))
    for index in np.flatnonzero(periodic | (frames.counts > 64)):
        atoms = slice(int(offsets[index]), int(offsets[index + 1]))
        distance[index], (first, second) = _of_one(frames.positions[atoms], frames.cell[index], frames.pbc[index])
        pair[index] = frames.atomic_numbers[atoms][[first, second]]
    return distance, pair


def _of_small(frames: Frames, starts: Any, size: int) -> tuple[Any, Any]:
    atoms = starts[:, None] + np.arange(size)
    first, second = np.triu_indices(size, 1)
    positions = frames.positions[atoms]
    squares = ((positions[:, first] - positions[:, second]) ** 2).sum(-1)
    best = squares.argmin(1)
    numbers = frames.atomic_numbers[atoms]
    rows = np.arange(len(starts))
    return np.sqrt(squares[rows, best]), np.stack([numbers[rows, first[best]], numbers[rows, second[best]]], 1)


def _of_one(positions: Any, cell: Any, pbc: Any) -> tuple[float, tuple[int, int]]:
    """Of a frame that is large or periodic: atoms against all images in the cells around."""
    from scipy.spatial import cKDTree

    count = len(positions)
    images, owners = positions, np.arange(count)
    if pbc.any():
        one = torch.zeros(count, dtype=torch.int64, device="cpu")
        inside, _ = wrap(torch.from_numpy(positions), torch.from_numpy(cell)[None], torch.from_numpy(pbc)[None], one)
        positions = inside.numpy()
        ranges = [range(-1, 2) if along else range(1) for along in pbc]
        shifts = np.array([(a, b, c) for a in ranges[0] for b in ranges[1] for c in ranges[2]]) @ cell
        images = (positions + shifts[:, None]).reshape(-1, 3)
        owners = np.tile(np.arange(count), len(shifts))
    if len(images) < 2:
        return np.inf, (0, 0)
    distances, neighbors = cKDTree(images).query(positions, k=2)
    best = int(distances[:, 1].argmin())
    # Two atoms at the same position may come in either order.
    others = [int(owners[k]) for k in neighbors[best] if owners[k] != best] or [best]
    return float(distances[best, 1]), (best, others[0])
