"""Frames that are read when they are needed, since trajectories may have very many."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from ase import Atoms


class CutShort(ValueError):
    """A file ends before the number of atoms that it states."""


class XyzFrames(Sequence["Atoms"]):
    """The frames of an XYZ file. Raises ValueError if it does not consist of frames, CutShort if one is cut."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._starts: list[int] = []
        with open(path, "rb") as file:
            start = 0
            for line in iter(file.readline, b""):
                if not line.strip():
                    if file.read().strip():
                        raise ValueError(f"a blank line in {path!r} where the number of atoms should be")
                    break
                count = int(line)
                if not 0 <= count < sys.maxsize:
                    raise ValueError(f"the number of atoms of a frame of {path!r} must be at least 0, got {count}")
                lines = list(islice(file, count + 1))
                if len(lines) <= count:
                    got = max(len(lines) - 1, 0)
                    raise CutShort(f"frame {len(self._starts)} of {path!r} must have {count} atoms, got {got}")
                self._starts.append(start)
                start += len(line) + sum(map(len, lines))
            self._starts.append(start)

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, number: int) -> Atoms: ...

    @overload
    def __getitem__(self, number: slice) -> list[Atoms]: ...

    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[k] for k in range(len(self))[number]]
        import ase.io

        k = range(len(self))[number]
        with open(self._path, "rb") as file:
            file.seek(self._starts[k])
            text = file.read(self._starts[k + 1] - self._starts[k]).decode(errors="replace")
        return ase.io.read(io.StringIO(text), format="extxyz")


class TrajectoryFrames(Sequence["Atoms"]):
    """The frames of a trajectory of ASE (.traj)."""

    def __init__(self, path: str) -> None:
        from ase.io.trajectory import Trajectory

        self._path = path
        with Trajectory(path) as trajectory:
            self._count = len(trajectory)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> Atoms: ...

    @overload
    def __getitem__(self, number: slice) -> list[Atoms]: ...

    def __getitem__(self, number: int | slice) -> Any:
        from ase.io.trajectory import Trajectory

        with Trajectory(self._path) as trajectory:
            if isinstance(number, slice):
                return [trajectory[k] for k in range(self._count)[number]]
            return trajectory[range(self._count)[number]]
