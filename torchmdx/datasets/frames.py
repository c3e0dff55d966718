"""Frames: labelled structures, concatenated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.structures.system import System

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Whole = NDArray[np.int64]
Texts = NDArray[np.str_]
OF_ATOMS = ("positions", "atomic_numbers", "forces", "charges")
ABSENT: Any = None  # of a field that the constructor fills


@dataclass(frozen=True, eq=False)
class Frames:
    """F structures with N atoms in total, with labels; Å, eV, e. A missing label is NaN.

    A frame has all of its forces or none.

    Attributes:
        counts: [F] int64.
        positions: [N,3] float64.
        atomic_numbers: [N] int64.
        cell: [F,3,3] float64, zeros without a cell.
        pbc: [F,3] bool.
        charge: [F] float64.
        energy: [F] float64.
        forces: [N,3] float32.
        stress: [F,3,3] float32, eV/Å³.
        weight: [F] float64 in the loss, 1 unless given.
        config_type: [F] text, a kind of frames, empty unless given.
        charges: [N] float32 of atoms, e.
        dipole: [F,3] float32, e Å.
    """

    counts: Whole
    positions: Floats
    atomic_numbers: Whole
    cell: Floats
    pbc: NDArray[np.bool_]
    charge: Floats
    energy: Floats
    forces: Floats32
    stress: Floats32
    weight: Floats = ABSENT
    config_type: Texts = ABSENT
    charges: Floats32 = ABSENT
    dipole: Floats32 = ABSENT

    def __post_init__(self) -> None:
        frames, atoms = len(self.counts), int(self.counts.sum())
        defaults = {
            "weight": lambda: np.ones(frames),
            "config_type": lambda: np.full(frames, ""),
            "charges": lambda: np.full(atoms, np.nan, np.float32),
            "dipole": lambda: np.full((frames, 3), np.nan, np.float32),
        }
        for name, default in defaults.items():
            if getattr(self, name) is ABSENT:
                object.__setattr__(self, name, default())
        wanted = {
            "positions": (atoms, 3),
            "atomic_numbers": (atoms,),
            "cell": (frames, 3, 3),
            "pbc": (frames, 3),
            "charge": (frames,),
            "energy": (frames,),
            "forces": (atoms, 3),
            "stress": (frames, 3, 3),
            "weight": (frames,),
            "config_type": (frames,),
            "charges": (atoms,),
            "dipole": (frames, 3),
        }
        for name, shape in wanted.items():
            got = getattr(self, name).shape
            if got != shape:
                raise ValueError(f"{name} of {frames} frames must have shape {list(shape)}, got {list(got)}")

    @classmethod
    def single(
        cls,
        positions: Floats,
        atomic_numbers: Whole,
        *,
        cell: Floats | None = None,
        pbc: Sequence[bool] | NDArray[np.bool_] | None = None,
        charge: float = 0.0,
        energy: float = np.nan,
        forces: NDArray[np.floating] | None = None,
        stress: NDArray[np.floating] | None = None,
        weight: float = 1.0,
        config_type: str = "",
        charges: NDArray[np.floating] | None = None,
        dipole: NDArray[np.floating] | None = None,
    ) -> Frames:
        """One frame; labels left out are absent."""
        count = len(atomic_numbers)
        return cls(
            counts=np.array([count], np.int64),
            positions=np.asarray(positions, np.float64),
            atomic_numbers=np.asarray(atomic_numbers, np.int64),
            cell=np.zeros((1, 3, 3)) if cell is None else np.asarray(cell, np.float64)[None],
            pbc=np.zeros((1, 3), bool) if pbc is None else np.asarray(pbc, bool)[None],
            charge=np.array([charge], np.float64),
            energy=np.array([energy], np.float64),
            forces=np.full((count, 3), np.nan, np.float32) if forces is None else np.asarray(forces, np.float32),
            stress=np.full((1, 3, 3), np.nan, np.float32) if stress is None else np.asarray(stress, np.float32)[None],
            weight=np.array([weight], np.float64),
            config_type=np.array([config_type]),
            charges=ABSENT if charges is None else np.asarray(charges, np.float32),
            dipole=ABSENT if dipole is None else np.asarray(dipole, np.float32)[None],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Frames]) -> Frames:
        """Concatenates frames, in order."""
        if not parts:
            raise ValueError("frames to concatenate must be at least one, got none")
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.__annotations__})

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_atoms(self) -> int:
        return len(self.positions)

    @property
    def offsets(self) -> Whole:
        """Index of the first atom of each frame, and the number of atoms [F+1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])

    @property
    def frame_index(self) -> Whole:
        """The frame of each atom [N]."""
        return np.repeat(np.arange(len(self)), self.counts)

    def take(self, indices: NDArray[np.int64]) -> Frames:
        """The frames at these indices, in this order."""
        atoms = rows_of(self.offsets[:-1][indices], self.counts[indices])
        return Frames(
            **{name: getattr(self, name)[atoms if name in OF_ATOMS else indices] for name in Frames.__annotations__}
        )

    def has(self, label: str) -> NDArray[np.bool_]:
        """Whether each frame [F] has this label; a frame without atoms has no forces and no charges."""
        values = getattr(self, label)
        if label not in OF_ATOMS:
            return ~np.isnan(values.reshape(len(self), -1)[:, 0] if len(self) else np.zeros(0))
        found = np.zeros(len(self), bool)
        filled = self.counts > 0
        found[filled] = ~np.isnan(
            values.reshape(len(values), math.prod(values.shape[1:]))[self.offsets[:-1][filled], 0]
        )
        return found

    @property
    def has_energy(self) -> NDArray[np.bool_]:
        return self.has("energy")

    @property
    def has_forces(self) -> NDArray[np.bool_]:
        return self.has("forces")

    @property
    def has_stress(self) -> NDArray[np.bool_]:
        return self.has("stress")

    def system(self, index: int) -> System:
        """One frame as a validated structure."""
        start = int(self.offsets[index])
        atoms = slice(start, start + int(self.counts[index]))
        periodic = bool(self.pbc[index].any())
        return System.create(
            self.positions[atoms],
            self.atomic_numbers[atoms],
            cell=self.cell[index] if periodic else None,
            pbc=self.pbc[index] if periodic else None,
            charge=float(self.charge[index]),
        )


def rows_of(starts: Whole, counts: Whole) -> Whole:
    """Numbers of all rows of frames that begin at `starts` and have `counts` rows."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))
