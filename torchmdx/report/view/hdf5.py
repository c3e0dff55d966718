"""HDF5 trajectories in MDTraj's layout: only the frames that are asked for are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.orientation import standard
from torchmdx.report.view.dcd import Dcd, cells_of, open_dcd
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.hdf5_content import require_own
from torchmdx.runtime.optional_package import require_package
from torchmdx.structures.units import NANOMETER, PICOSECOND

Floats = NDArray[np.float64]

ENDINGS = (".h5", ".hdf5")


@dataclass(frozen=True, eq=False)
class Hdf5:
    """A file, as `Dcd`. interval: steps between frames, 1 if unknown; timestep: fs, 0 if unknown."""

    path: Path
    num_atoms: int
    num_frames: int
    interval: int
    timestep: float

    def steps(self) -> NDArray[np.int64]:
        return self.interval * np.arange(self.num_frames)

    def read(self, indices: NDArray[np.int64]) -> tuple[Floats, Floats | None]:
        """Positions [F,N,3] Å and cells [F,3,3] Å, None without a cell, of the frames at ascending indices.

        In the orientation of the run, if the file says which that is.

        Raises:
            ValueError: For lengths and angles of no cell.
        """
        import h5py

        with naming(self.path), h5py.File(self.path, "r") as file:
            require_own(file)
            positions = NANOMETER * file["coordinates"][indices].astype(np.float64)
            if "cell_lengths" not in file:
                return positions, None
            lengths = NANOMETER * file["cell_lengths"][indices].astype(np.float64)
            angles = file["cell_angles"][indices].astype(np.float64)
            if "cell_vectors" not in file:
                return positions, cells_of(lengths, angles, indices)
            cells = NANOMETER * file["cell_vectors"][indices].astype(np.float64)
            rotations = [standard(cell)[1] for cell in cells]
        return positions @ np.array(rotations), cells


def open_hdf5(path: str | Path) -> Hdf5:
    """Reads sizes and times. Raises ValueError for files without coordinates, ImportError without h5py."""
    require_package("h5py", "HDF5 trajectories need", "hdf5")
    import h5py

    path = Path(path)
    if path.is_file() and not h5py.is_hdf5(path):
        raise ValueError(f"{str(path)!r} must be an HDF5 file, got other content")
    with naming(path), h5py.File(path, "r") as file:
        require_own(file)
        if "coordinates" not in file or file["coordinates"].ndim != 3:
            raise ValueError(f"{str(path)!r} must be a trajectory in MDTraj's layout, got other content")
        num_frames, num_atoms, _ = file["coordinates"].shape
        interval = int(file.attrs.get("stepsBetweenFrames", 1))
        timestep = float(file.attrs.get("timestepInFs", 0.0))
        if not timestep and num_frames > 1 and "time" in file:
            timestep = float(file["time"][1] - file["time"][0]) * PICOSECOND / interval
    return Hdf5(path, int(num_atoms), int(num_frames), interval, timestep)


def open_trajectory(path: str | Path) -> Dcd | Hdf5:
    """The reader of a file, by its ending."""
    return open_hdf5(path) if Path(path).suffix.lower() in ENDINGS else open_dcd(path)
