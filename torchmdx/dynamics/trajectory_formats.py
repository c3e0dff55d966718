"""The formats of trajectories by name, and the names of atoms in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame
from torchmdx.runtime.optional_package import require_package

ENDINGS = {"dcd": ".dcd", "hdf5": ".h5"}


class TrajectoryFile(Protocol):
    """A file of frames, open for appending. All methods raise OSError that names the file if it cannot be written."""

    @property
    def num_frames(self) -> int:
        """Frames so far, with those that have not reached the file."""

    def append(self, frame: TrajectoryFrame) -> None:
        """Adds a frame; it may reach the file with later ones."""

    def sync(self) -> None:
        """Waits until all frames are on disk."""

    def close(self) -> None:
        """Closes the file, with what can still be written of it."""


@dataclass(frozen=True)
class TrajectoryFormat:
    """How the frames of a run are stored: "dcd", or "hdf5" in MDTraj's layout, the latter optionally with velocities.

    Raises:
        ValueError: For other names, and for velocities in a DCD.
        ImportError: Without h5py.
    """

    name: str = "dcd"
    velocities: bool = False

    def __post_init__(self) -> None:
        if self.name not in ENDINGS:
            raise ValueError(f"the format of trajectories must be one of {', '.join(ENDINGS)}, got {self.name!r}")
        if self.velocities and self.name != "hdf5":
            raise ValueError(f"velocities need a trajectory in the format 'hdf5', got {self.name!r}")
        if self.name == "hdf5":
            require_package("h5py", "HDF5 trajectories need", "hdf5")

    @property
    def ending(self) -> str:
        return ENDINGS[self.name]

    def create(
        self, path: Path, num_atoms: int, interval: int, periodic: bool, timestep: float, topology: str
    ) -> TrajectoryFile:
        """A new file without frames. interval: steps between frames; timestep: fs; topology: of `topology_of`."""
        if self.name == "dcd":
            return Trajectory.create(path, num_atoms, interval, periodic, timestep)
        from torchmdx.dynamics.hdf5_trajectory import Hdf5Trajectory

        return Hdf5Trajectory.create(path, num_atoms, interval, periodic, timestep, self.velocities, topology)

    def reopen(self, path: Path, num_atoms: int, interval: int, periodic: bool, num_frames: int) -> TrajectoryFile:
        """An existing file, cut to its first num_frames.

        Raises:
            ValueError: For a different or shorter file.
        """
        if self.name == "dcd":
            return Trajectory.reopen(path, num_atoms, interval, periodic, num_frames)
        from torchmdx.dynamics.hdf5_trajectory import Hdf5Trajectory

        return Hdf5Trajectory.reopen(path, num_atoms, periodic, self.velocities, num_frames)


@dataclass(frozen=True)
class AtomNames:
    """Names and residues of the atoms of a structure, each [N]: as in PDB files."""

    names: list[str]
    residues: list[str]
    residue_numbers: list[int]

    @classmethod
    def of_arrays(cls, arrays: dict[str, NDArray[np.generic]]) -> AtomNames | None:
        """From the arrays that ASE reads of a PDB file; None if some are missing."""
        if any(name not in arrays for name in ("atomtypes", "residuenames", "residuenumbers")):
            return None
        names, residues = ([str(text).strip() for text in arrays[name]] for name in ("atomtypes", "residuenames"))
        return cls(names, residues, [int(str(number)) for number in arrays["residuenumbers"]])


def topology_of(numbers: NDArray[np.int64], names: AtomNames | None = None) -> str:
    """The topology of a structure as MDTraj stores it, in JSON: one chain, its residues and atoms; no bonds.

    Args:
        numbers ([N]): Elements.
        names: Without them, atoms are C1, C2, H1 and so on in one residue.
    """
    from ase.data import chemical_symbols

    symbols = [chemical_symbols[z] for z in numbers.tolist()]
    if names is None:
        counts: dict[str, int] = {}
        labels = []
        for symbol in symbols:
            counts[symbol] = counts.get(symbol, 0) + 1
            labels.append(f"{symbol}{counts[symbol]}")
        names = AtomNames(labels, ["MOL"] * len(symbols), [1] * len(symbols))
    residues: list[dict[str, object]] = []
    before: tuple[str, int] | None = None
    atoms: list[dict[str, object]] = []
    for index, (symbol, name) in enumerate(zip(symbols, names.names, strict=True)):
        residue = names.residues[index], names.residue_numbers[index]
        if residue != before:
            before, atoms = residue, []
            here = {"index": len(residues), "name": residue[0], "resSeq": residue[1], "segmentID": "", "atoms": atoms}
            residues.append(here)
        atoms.append({"index": index, "name": name, "element": symbol})
    return json.dumps({"chains": [{"index": 0, "residues": residues}], "bonds": []})
