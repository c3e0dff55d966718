"""DCD trajectories of CHARMM, NAMD, OpenMM and `torchmdx md`: only the frames that are asked for are read."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.runtime.damaged_file import naming
from torchmdx.structures.cell import FLATTEST
from torchmdx.structures.units import FORCE_TO_ACCELERATION, KCAL_PER_MOL

Floats = NDArray[np.float64]

SHORTEST = 1e-3  # Å, of a lattice vector
CHARMM_TIME = (KCAL_PER_MOL * FORCE_TO_ACCELERATION) ** -0.5  # fs: 1 amu, 1 Å, 1 kcal/mol


@dataclass(frozen=True)
class Dcd:
    """Layout of a file, and steps of its frames: frame k is step start + k * interval. timestep: fs, 0 if unknown."""

    path: Path
    num_atoms: int
    num_frames: int
    periodic: bool
    start: int
    interval: int
    timestep: float
    offset: int
    order: str

    def steps(self) -> NDArray[np.int64]:
        return self.start + self.interval * np.arange(self.num_frames)

    def read(self, indices: NDArray[np.int64]) -> tuple[Floats, Floats | None]:
        """Positions [F,N,3] Å and cells [F,3,3] Å, None without a cell, of the frames at indices.

        Raises:
            ValueError: For lengths and angles that are of no cell.
        """
        frame = _frame(self.num_atoms, self.periodic, self.order)
        content = np.memmap(self.path, frame, "r", self.offset, (self.num_frames,))
        records = content[indices]
        positions = np.stack([records[name] for name in "xyz"], axis=-1).astype(np.float64)
        with naming(self.path):
            return positions, _cells(records["cell"], indices) if self.periodic else None


def open_dcd(path: str | Path) -> Dcd:
    """Reads the header. Raises ValueError for files that are no DCD, hold fixed atoms or have a fourth dimension."""
    path = Path(path)
    with naming(path), path.open("rb") as file:
        head = file.read(92)
        order = {84: "<", 84 << 24: ">"}.get(int.from_bytes(head[:4], "little"), "")
        if len(head) < 92 or not order or head[4:8] != b"CORD":
            raise ValueError(f"{str(path)!r} must be a DCD trajectory, got other content")
        numbers = struct.unpack(f"{order}9if10i", head[8:88])
        if numbers[8] or numbers[11]:
            raise ValueError(f"{str(path)!r} must have no fixed atoms and three dimensions, which differs")
        titles = struct.unpack(f"{order}i", file.read(4))[0]
        file.seek(titles + 8, 1)
        num_atoms = struct.unpack(f"{order}i", file.read(4))[0]
        offset = 92 + 4 + titles + 4 + 12
        frame = _frame(num_atoms, bool(numbers[10]), order).itemsize
        num_frames = max((path.stat().st_size - offset) // frame, 0)
    return Dcd(
        path, num_atoms, num_frames, bool(numbers[10]), numbers[1], max(numbers[2], 1), numbers[9] * CHARMM_TIME,
        offset, order,
    )  # fmt: skip


def _frame(num_atoms: int, periodic: bool, order: str) -> np.dtype[np.void]:
    """The records of a frame, each between two lengths in bytes."""
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
    if periodic:
        fields += [("cell_begins", f"{order}i4"), ("cell", f"{order}f8", (6,)), ("cell_ends", f"{order}i4")]
    for name in "xyz":
        fields += [(f"{name}_begins", f"{order}i4"), (name, f"{order}f4", (num_atoms,)), (f"{name}_ends", f"{order}i4")]
    return np.dtype(fields)


def _cells(records: NDArray[np.float64], indices: NDArray[np.int64]) -> Floats | None:
    """Cells from a, γ, b, β, α, c, where the angles are cosines or degrees."""
    a, gamma, b, beta, alpha, c = records.astype(np.float64).T
    angles = np.stack([alpha, beta, gamma], axis=-1)
    cosines = (np.abs(angles) <= 1).all(1)
    angles[cosines] = np.degrees(np.arccos(angles[cosines]))
    return cells_of(np.stack([a, b, c], axis=-1), angles, indices)


def cells_of(lengths: Floats, angles: Floats, indices: NDArray[np.int64]) -> Floats | None:
    """Cells [F,3,3] Å with a along x and b in the xy plane, from lengths [F,3] Å and angles α, β, γ [F,3] in degrees.

    None if all lengths are 0, as some programs write it without a cell. indices [F]: of the frames. Raises ValueError
    that names the first frame whose values are of no cell.
    """
    if not lengths.any():
        return None
    with np.errstate(all="ignore"):
        cosines = np.cos(np.radians(angles))
        alpha, beta, gamma = cosines.T
        # The square of the volume of a cell of unit lengths.
        volume = 1 - (cosines * cosines).sum(1) + 2 * alpha * beta * gamma
        between = ((angles > 0) & (angles < 180)).all(1)
        usable = (lengths >= SHORTEST).all(1) & np.isfinite(lengths).all(1) & between & (volume > FLATTEST**2)
    if not usable.all():
        bad = int(np.argmin(usable))
        raise ValueError(
            f"the cell of every frame must have lengths of at least {SHORTEST} Å and angles that three vectors can "
            f"have, got {lengths[bad].tolist()} Å and {angles[bad].tolist()} degrees in frame {indices[bad]}"
        )
    sine = np.sqrt(1 - gamma * gamma)
    zero = np.zeros_like(gamma)
    third = np.stack([beta, (alpha - beta * gamma) / sine, np.sqrt(volume) / sine], axis=-1)
    rows = [np.stack([zero + 1, zero, zero], axis=-1), np.stack([gamma, sine, zero], axis=-1), third]
    return np.asarray(np.stack(rows, axis=1) * lengths[:, :, None])
