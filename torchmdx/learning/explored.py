"""What an exploration has found: frames with their uncertainties, and how each replica ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.learning.replicas import Replica
from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import whole_file

Floats = NDArray[np.float64]
# How a replica ended.
RUNS, WHOLE, THRESHOLD, FAILED = "runs", "whole", "threshold", "failed"


@dataclass(frozen=True, eq=False)
class FoundFrame:
    """A frame: place of its replica in the batch, step, uncertainty, positions [N,3] Å and cell [3,3] Å."""

    replica: int
    step: int
    uncertainty: float
    positions: Floats
    cell: Floats


@dataclass(eq=False)
class Explored:
    """The frames of a batch of replicas, in the order in which they were found.

    Attributes:
        endings: Of each replica.
        lasted: Steps of each, up to its end.
        branched: How often each continued from an earlier frame.
    """

    batch: Sequence[Replica]
    frames: list[FoundFrame] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    lasted: list[int] = field(default_factory=list)
    branched: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.batch)
        self.endings = self.endings or [RUNS] * count
        self.lasted, self.branched = self.lasted or [0] * count, self.branched or [0] * count

    def note(self, snapshot: Snapshot, uncertainties: Floats, replicas: Sequence[int]) -> None:
        """Takes the frames of these replicas."""
        starts = snapshot.particles.starts
        for k in replicas:
            atoms = slice(int(starts[k]), int(starts[k + 1]))
            positions, cell = snapshot.positions[atoms].copy(), snapshot.cell[k].copy()
            self.frames.append(FoundFrame(k, snapshot.step, float(uncertainties[k]), positions, cell))

    def structure(self, frame: FoundFrame, starts: Sequence[UnlabelledStructure]) -> UnlabelledStructure:
        """The structure of a frame. starts: those that the replicas began with."""
        begun = starts[self.batch[frame.replica].structure]
        cell = frame.cell if begun.pbc.any() else begun.cell
        return replace(begun, positions=frame.positions, cell=cell)

    def save(self, path: Path, **more: Any) -> None:
        """Writes the file atomically, with more arrays."""
        arrays: dict[str, Any] = {
            "replica": np.array([frame.replica for frame in self.frames], np.int64),
            "step": np.array([frame.step for frame in self.frames], np.int64),
            "uncertainty": np.array([frame.uncertainty for frame in self.frames], np.float64),
            "atoms": np.array([len(frame.positions) for frame in self.frames], np.int64),
            "positions": np.concatenate([np.zeros((0, 3)), *(frame.positions for frame in self.frames)]),
            "cell": np.stack([np.zeros((3, 3)), *(frame.cell for frame in self.frames)])[1:],
            "endings": np.array(self.endings),
            "lasted": np.array(self.lasted, np.int64),
            "branched": np.array(self.branched, np.int64),
        }
        with whole_file(path) as file:
            np.savez(file, **arrays, **more)

    @classmethod
    def load(cls, path: Path, batch: Sequence[Replica]) -> tuple[Explored, dict[str, NDArray[Any]]]:
        """Frames of a file, and the other arrays in it. Raises ValueError for a damaged file."""
        with naming(path), path.open("rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
        taken = [arrays.pop(name) for name in ("replica", "step", "uncertainty", "atoms", "positions", "cell")]
        replica, step, uncertainty, atoms, positions, cell = taken
        places = np.split(positions, np.cumsum(atoms)[:-1]) if len(atoms) else []
        frames = [
            FoundFrame(int(replica[k]), int(step[k]), float(uncertainty[k]), places[k], cell[k])
            for k in range(len(atoms))
        ]
        state = [arrays.pop(name).tolist() for name in ("endings", "lasted", "branched")]
        return cls(batch, frames, *state), arrays
