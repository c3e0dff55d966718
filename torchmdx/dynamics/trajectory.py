"""DCD trajectories that can be truncated to a checkpoint and continued.

The layout is CHARMM's, little-endian, as OpenMM, VMD, MDAnalysis and mdtraj read it: a header of 276 bytes, then for
each frame the unit cell (if periodic) and x, y, z of all atoms in float32 Å, each between two record lengths. Cells are
lengths and angles: positions are turned to the orientation that readers make of them.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.orientation import standard
from torchmdx.runtime.files import naming_writes, write_all
from torchmdx.structures.units import FORCE_TO_ACCELERATION, KCAL_PER_MOL

Floats = NDArray[np.float64]

HEADER_BYTES = 276
NUM_FRAMES_AT, LAST_STEP_AT, BOX_FLAG_AT, NUM_ATOMS_AT = 8, 20, 48, 268
CHARMM_TIME = (KCAL_PER_MOL * FORCE_TO_ACCELERATION) ** -0.5  # fs: 1 amu, 1 Å, 1 kcal/mol
LARGEST_INT = 2**31 - 1


@dataclass(frozen=True, eq=False)
class TrajectoryFrame:
    """Positions [N,3] Å, cell [3,3] Å or None, velocities [N,3] Å/fs, time ps, energies eV, kinetic temperature K.

    In the orientation of the run; the cell, if any, has three vectors. A DCD needs the first two alone.
    """

    positions: Floats
    cell: Floats | None
    velocities: Floats | None = None
    time: float = np.nan
    potential: float = np.nan
    kinetic: float = np.nan
    temperature: float = np.nan


class Trajectory:
    """A DCD file open for appending; frame k is step k * interval."""

    def __init__(self, file: BinaryIO, num_atoms: int, interval: int, periodic: bool, num_frames: int) -> None:
        self._file, self.num_atoms, self.interval, self.periodic = file, num_atoms, interval, periodic
        self.num_frames = num_frames

    @classmethod
    def create(cls, path: Path, num_atoms: int, interval: int, periodic: bool, timestep: float) -> Trajectory:
        """A new file without frames. timestep: fs."""
        file = path.open("w+b", buffering=0)
        with naming_writes(path):
            write_all(file, header(num_atoms, interval, periodic, timestep))
        return cls(file, num_atoms, interval, periodic, 0)

    @classmethod
    def reopen(cls, path: Path, num_atoms: int, interval: int, periodic: bool, num_frames: int) -> Trajectory:
        """An existing file, truncated to its first num_frames. Raises ValueError for a different or shorter file."""
        file = path.open("r+b", buffering=0)
        head = file.read(HEADER_BYTES)
        frame = frame_bytes(num_atoms, periodic)
        fits = (
            len(head) == HEADER_BYTES
            and head[4:8] == b"CORD"
            and _integer(head, NUM_ATOMS_AT) == num_atoms
            and _integer(head, BOX_FLAG_AT) == int(periodic)
        )
        if not fits:
            file.close()
            raise ValueError(f"{str(path)!r} must be a trajectory of {num_atoms} atoms written by `torchmdx md`")
        held = (os.fstat(file.fileno()).st_size - HEADER_BYTES) // frame
        if held < num_frames:
            file.close()
            raise ValueError(f"{str(path)!r} must hold the {num_frames} frames up to the checkpoint, got {held}")
        file.truncate(HEADER_BYTES + num_frames * frame)
        trajectory = cls(file, num_atoms, interval, periodic, num_frames)
        trajectory._count()
        return trajectory

    def append(self, frame: TrajectoryFrame) -> None:
        """Writes the positions and, if periodic, the cell of a frame; updates the header after it."""
        parts, positions, cell = [], frame.positions, frame.cell
        if self.periodic and cell is not None:
            parts = [_record(_cell_parameters(cell))]
            positions = positions @ standard(cell)[1].T
        columns = np.ascontiguousarray(positions.T, dtype="<f4")
        parts += [_record(column.tobytes()) for column in columns]
        with naming_writes(self._file.name):
            self._file.seek(HEADER_BYTES + self.num_frames * frame_bytes(self.num_atoms, self.periodic))
            write_all(self._file, b"".join(parts))
            self.num_frames += 1
            self._count()

    def sync(self) -> None:
        """Waits until the file is on disk."""
        with naming_writes(self._file.name):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _count(self) -> None:
        last = max(self.num_frames - 1, 0) * self.interval
        for offset, value in ((NUM_FRAMES_AT, self.num_frames), (LAST_STEP_AT, last)):
            self._file.seek(offset)
            self._file.write(struct.pack("<i", min(value, LARGEST_INT)))


def read_frames(path: Path, num_atoms: int) -> Floats:
    """Positions [F,num_atoms,3] Å of a file without cells, complete frames only."""
    frame = np.dtype([("x", "<i4"), ("values", "<f4", (num_atoms,)), ("end", "<i4")])
    content = path.read_bytes()[HEADER_BYTES:]
    whole = len(content) // frame_bytes(num_atoms, False)
    records = np.frombuffer(content, frame, count=3 * whole)["values"]
    return records.reshape(whole, 3, num_atoms).transpose(0, 2, 1).astype(np.float64)


def header(num_atoms: int, interval: int, periodic: bool, timestep: float) -> bytes:
    """The header of a file without frames, whose frame 0 will be step 0. timestep: fs."""
    control = struct.pack(
        "<4s9if10i", b"CORD", 0, 0, interval, *[0] * 6, timestep / CHARMM_TIME, periodic, *[0] * 8, 24
    )
    titles = struct.pack("<i80s80s", 2, b"Created by torchmdx".ljust(80), b"positions in angstrom".ljust(80))
    return _record(control) + _record(titles) + _record(struct.pack("<i", num_atoms))


def frame_bytes(num_atoms: int, periodic: bool) -> int:
    """Size of a frame in bytes."""
    return 3 * (4 * num_atoms + 8) + (56 if periodic else 0)


def _record(data: bytes) -> bytes:
    length = struct.pack("<i", len(data))
    return length + data + length


def _integer(data: bytes, offset: int) -> int:
    return int(struct.unpack_from("<i", data, offset)[0])


def _cell_parameters(cell: Floats) -> bytes:
    """Lengths in Å and cosines of angles, in CHARMM's order: a, cos γ, b, cos β, cos α, c."""
    a, b, c = np.linalg.norm(cell, axis=1)
    cosines = [cell[0] @ cell[1] / (a * b), cell[0] @ cell[2] / (a * c), cell[1] @ cell[2] / (b * c)]
    return struct.pack("<6d", a, cosines[0], b, cosines[1], cosines[2], c)
