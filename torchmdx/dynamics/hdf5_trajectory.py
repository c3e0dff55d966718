"""Trajectories in HDF5, in the layout of MDTraj, which MDTraj and h5py read.

The root has the attributes `conventions` ("Pande") and `conventionVersion` ("1.1"), and the arrays

::

    coordinates [F,N,3] nm, time [F] ps, potentialEnergy and kineticEnergy [F] kJ/mol, temperature [F] K,
    cell_lengths [F,3] nm and cell_angles [F,3] degrees if periodic, velocities [F,N,3] nm/ps if wanted,
    topology [1]: JSON in ASCII, and, beyond MDTraj's layout, cell_vectors [F,3,3] nm if periodic

with the attribute `units`. All are float32. Coordinates and velocities are in the orientation that readers make of
lengths and angles, cell_vectors in that of the run: `standard(cell_vectors)` is the rotation between the two.

A file is complete on disk after each flush, at least once a second: metadata is written by flushes alone, and
`coordinates`, whose length is the number of frames, last. A process that is killed between flushes leaves a file that
every program reads up to the last one. The writer takes no lock, so that others can read a run in progress.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import torchmdx
from torchmdx.dynamics.orientation import standard
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import naming_writes
from torchmdx.runtime.hdf5_content import require_own
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER

UNITS = {
    "coordinates": "nanometers",
    "time": "picoseconds",
    "cell_lengths": "nanometers",
    "cell_angles": "degrees",
    "cell_vectors": "nanometers",
    "velocities": "nanometers/picosecond",
    "kineticEnergy": "kilojoules_per_mole",
    "potentialEnergy": "kilojoules_per_mole",
    "temperature": "kelvin",
}
NEWER = {"cell_vectors"}  # files of version 0.1 have none, and are continued without
FLUSH_SECONDS, MOST_BUFFERED = 1.0, 8 * 2**20  # bytes
CHUNK_BYTES, MOST_CHUNK = 2**15, 512  # bytes, frames
SPARE_BYTES = 2**16  # reserved for metadata of a flush, besides two chunks of every array
NM_PER_PS = 1e3 / NANOMETER  # of 1 Å/fs


class Hdf5Trajectory:
    """A file open for appending; frames are kept in memory until the next flush."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self._file = path, file
        self._arrays: dict[str, h5py.Dataset] = {name: file[name] for name in UNITS if name in file}
        self._written = len(file["coordinates"])
        self._frames: list[dict[str, NDArray[np.float32]]] = []
        self._flushed, self._failed = time.monotonic(), False

    @classmethod
    def create(
        cls, path: Path, num_atoms: int, interval: int, periodic: bool, timestep: float, velocities: bool, topology: str
    ) -> Hdf5Trajectory:
        """A new file without frames. interval: steps between frames; timestep: fs; topology: JSON."""
        with naming_writes(path):
            file = h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, fapl=_access()))
            attributes = {"conventions": "Pande", "conventionVersion": "1.1", "program": "torchmdx"}
            attributes |= {"programVersion": torchmdx.__version__, "application": "torchmdx", "title": "torchmdx"}
            for name, value in attributes.items():
                file.attrs[name] = np.bytes_(value.encode())
            file.attrs["stepsBetweenFrames"], file.attrs["timestepInFs"] = interval, timestep
            file["topology"] = np.array([topology.encode("ascii")])
            for name in arrays_of(periodic, velocities):
                shape = _shape(name, num_atoms)
                chunk = min(max(CHUNK_BYTES // (4 * int(np.prod(shape))), 1), MOST_CHUNK)
                given: dict[str, Any] = dict(maxshape=(None, *shape), chunks=(chunk, *shape), dtype="<f4")
                file.create_dataset(name, (0, *shape), **given).attrs["units"] = np.bytes_(UNITS[name].encode())
            file.flush()
        return cls(path, file)

    @classmethod
    def reopen(cls, path: Path, num_atoms: int, periodic: bool, velocities: bool, num_frames: int) -> Hdf5Trajectory:
        """An existing file, cut to its first num_frames. Raises ValueError for a different or shorter file."""
        try:
            file = h5py.File(h5py.h5f.open(os.fsencode(path), h5py.h5f.ACC_RDWR, fapl=_access()))
        except OSError as error:
            raise ValueError(f"{str(path)!r} must be an HDF5 trajectory, got a file that cannot be read") from error
        try:
            held = _require_layout(path, file, num_atoms, arrays_of(periodic, velocities))
            if held < num_frames:
                raise ValueError(f"{str(path)!r} must hold the {num_frames} frames up to the checkpoint, got {held}")
            for name in UNITS.keys() & file.keys():
                file[name].resize(num_frames, axis=0)
            file.flush()
        except BaseException:
            file.close()
            raise
        return cls(path, file)

    @property
    def num_frames(self) -> int:
        return self._written + len(self._frames)

    def append(self, frame: TrajectoryFrame) -> None:
        """Adds a frame, and flushes if the last flush is a second ago. Raises OSError."""
        turned = _turned(frame)
        self._frames.append({name: np.asarray(_value(name, frame, turned), dtype="<f4") for name in self._arrays})
        full = len(self._frames) * frame.positions.size * 8 > MOST_BUFFERED
        if full or time.monotonic() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes what is in memory. Raises OSError, before the file has changed if the disk is full."""
        self._failed = True  # until this has succeeded
        with naming_writes(self.path):
            if self._frames:
                self._reserve()
                start, end = self._written, self.num_frames
                last = "coordinates"  # its length is the number of frames
                for name in [*(name for name in self._arrays if name != last), last]:
                    if name == last:
                        self._file.flush()
                    array = self._arrays[name]
                    array.resize(end, axis=0)
                    array[start:end] = np.array([frame[name] for frame in self._frames])
                self._file.flush()
                self._written, self._frames = end, []
                os.truncate(self.path, self._file.id.get_filesize())  # what was reserved and not needed
            self._flushed, self._failed = time.monotonic(), False

    def sync(self) -> None:
        """Waits until all frames are on disk."""
        self.flush()
        with naming_writes(self.path), self.path.open("rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Closes the file, with the frames in memory unless a flush has failed before."""
        try:
            if self._file and not self._failed:
                self.flush()
        finally:
            with contextlib.suppress(*((OSError, RuntimeError, ValueError) if self._failed else ())):
                self._file.close()

    def _reserve(self) -> None:
        """Takes the space that a flush needs. Raises OSError of a full disk, before anything has changed."""
        if not hasattr(os, "posix_fallocate"):
            return
        each = sum(2 * array.dtype.itemsize * int(np.prod(array.chunks)) for array in self._arrays.values())
        frame = sum(4 * int(np.prod(array.shape[1:])) for array in self._arrays.values())
        with self.path.open("r+b") as file:
            size = self._file.id.get_filesize()
            try:
                os.posix_fallocate(file.fileno(), size, each + len(self._frames) * frame + SPARE_BYTES)
            except OSError:
                file.truncate(size)
                raise


def arrays_of(periodic: bool, velocities: bool) -> list[str]:
    """Names of the arrays with a value for each frame."""
    return [name for name in UNITS if (periodic or "cell" not in name) and (velocities or name != "velocities")]


def _access() -> Any:
    """Metadata is kept in memory between flushes, and the file is not locked."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    cache = access.get_mdc_config()
    cache.evictions_enabled = False
    cache.incr_mode = cache.decr_mode = cache.flash_incr_mode = 0  # required for the above
    access.set_mdc_config(cache)
    if hasattr(access, "set_file_locking"):
        access.set_file_locking(False, True)
    return access


def _shape(name: str, num_atoms: int) -> tuple[int, ...]:
    """Of the value of a frame."""
    if name in ("coordinates", "velocities"):
        return (num_atoms, 3)
    if name == "cell_vectors":
        return (3, 3)
    return (3,) if "cell" in name else ()


def _turned(frame: TrajectoryFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions and velocities [N,3] of a frame, turned as `standard` turns its cell."""
    assert frame.velocities is not None
    if frame.cell is None:
        return frame.positions, frame.velocities
    rotation = standard(frame.cell)[1]
    return frame.positions @ rotation.T, frame.velocities @ rotation.T


def _value(
    name: str, frame: TrajectoryFrame, turned: tuple[NDArray[np.float64], NDArray[np.float64]]
) -> float | NDArray[np.float64]:
    """The value of a frame in the units of the file. turned: its positions and velocities."""
    if name == "coordinates":
        return turned[0] / NANOMETER
    if name == "velocities":
        return turned[1] * NM_PER_PS
    if name == "time":
        return frame.time
    if name == "temperature":
        return frame.temperature
    if name in ("kineticEnergy", "potentialEnergy"):
        return (frame.kinetic if name == "kineticEnergy" else frame.potential) / KJ_PER_MOL
    assert frame.cell is not None
    if name == "cell_vectors":
        return frame.cell / NANOMETER
    lengths = np.linalg.norm(frame.cell, axis=1)
    if name == "cell_lengths":
        return lengths / NANOMETER
    cosines = [frame.cell[i] @ frame.cell[j] / (lengths[i] * lengths[j]) for i, j in ((1, 2), (0, 2), (0, 1))]
    return np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0)))


def _require_layout(path: Path, file: h5py.File, num_atoms: int, names: list[str]) -> int:
    """The number of frames. Raises ValueError for other arrays and numbers of atoms."""
    with naming(path):
        require_own(file)
        held = {name for name in UNITS if name in file}
        if held not in (set(names), set(names) - NEWER):
            raise ValueError(
                f"{str(path)!r} must hold the arrays {', '.join(sorted(names))}, got {', '.join(sorted(held))}"
            )
        for name in held:
            if file[name].shape[1:] != _shape(name, num_atoms):
                raise ValueError(f"{str(path)!r} must be a trajectory of {num_atoms} atoms written by `torchmdx md`")
        return int(min(len(file[name]) for name in held))
