"""The limit on the force spread of an ensemble: checking it, and writing frames that exceed it to a file."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.buffer_storage import UNCERTAIN
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.results import Frame, SpreadError, StepResult
from torchmdx.structures.system import Batch, System

DEFAULT_FILE = "uncertain.xyz"


def checked_limit(potential: Potential | Ensemble, most: float | None) -> float | None:
    """A limit in eV/Å. Raises ValueError for one that is not > 0, or for a single potential."""
    if most is None:
        return None
    if not (most > 0 and math.isfinite(most)):
        raise ValueError(f"max_force_spread must be > 0 eV/Å and finite, got {most}")
    if not isinstance(potential, Ensemble):
        raise ValueError(f"max_force_spread needs an ensemble, got {most} eV/Å with a single potential")
    return float(most)


def require_agreement(flags: Any, batch: Batch, buffers: StepBuffers) -> None:
    """Raises SpreadError, with the frame, if the flags of an evaluation say that an atom exceeds the limit."""
    if not flags[UNCERTAIN]:
        return
    out = {name: value.cpu().numpy() for name, value in buffers.outputs.items()}
    worst = int(out["force_spread"].argmax())
    system = int(batch.system_index[worst])
    own = (batch.system_index == system).cpu().numpy()
    frame = Frame(
        batch.atomic_numbers.cpu().numpy()[own],
        buffers.inputs["positions"].cpu().numpy()[own],
        buffers.inputs["cell"][system].cpu().numpy().copy(),
        batch.pbc[system].cpu().numpy().copy(),
        float(batch.charge[system]),
        float(out["energy"][system]),
        float(out["energy_spread"][system]),
        out["forces"][own],
        out["force_spread"][own],
    )
    raise _error(frame, worst, float(buffers.most_spread), system)


def _error(frame: Frame, atom: int, most: float, structure: int = 0) -> SpreadError:
    return SpreadError(_text(frame, most, f"atom {atom}"), frame, atom, most=most, structure=structure)


def _text(frame: Frame, most: float, where: str) -> str:
    worst = float(frame.force_spread.max())
    return f"the force spread of the ensemble must be at most {most:g} eV/Å, got {worst:.4g} eV/Å at {where}"


def at_step(error: SpreadError, step: int, starts: NDArray[np.int64]) -> SpreadError:
    """The error of a run: its text names the step, the atom within its structure, and the structure if several run.

    Args:
        error: With the index of the atom in the batch.
        starts ([S+1]): Where the atoms of each structure begin.
    """
    assert error.frame is not None
    structure = int(np.searchsorted(starts, error.atom, side="right")) - 1
    where = f"atom {error.atom - int(starts[structure])}" + f" of structure {structure}" * (len(starts) > 2)
    text = f"step {step}: {_text(error.frame, error.most, where)}"
    return SpreadError(text, error.frame, error.atom, most=error.most, step=step, structure=structure)


class SpreadLimit:
    """A limit in eV/Å, and the file (extended XYZ) to which frames that exceed it are appended."""

    def __init__(self, most: float, file: str | Path | None = None) -> None:
        """Raises FileNotFoundError if the file's folder does not exist, IsADirectoryError if `file` is a folder."""
        self.most, self.file = most, Path(DEFAULT_FILE if file is None else file)
        if self.file.is_dir():
            raise IsADirectoryError(f"spread_file must be a file, got the folder {str(self.file)!r}")
        if not self.file.absolute().parent.is_dir():
            raise FileNotFoundError(f"spread_file must be in an existing folder, got {str(self.file)!r}")
        self._last: NDArray[np.float64] | None = None

    @classmethod
    def of(cls, potential: Potential | Ensemble, most: float | None, file: str | Path | None) -> SpreadLimit | None:
        """The limit, None if `most` is None. Raises as `checked_limit`, and ValueError for a file without a limit."""
        limit = checked_limit(potential, most)
        if limit is None:
            if file is not None:
                raise ValueError(f"spread_file needs max_force_spread, got {str(file)!r} without it")
            return None
        return cls(limit, file)

    def require(self, system: System, result: StepResult) -> None:
        """Raises SpreadError if a result of one system, in NumPy arrays, exceeds the limit; writes its frame first."""
        worst = int(np.argmax(result.force_spread)) if len(result.force_spread) else 0
        if not (len(result.force_spread) and result.force_spread[worst] > self.most):
            return
        frame = Frame(
            system.atomic_numbers.numpy(),
            system.positions.double().numpy(),
            system.cell.double().numpy(),
            system.pbc.numpy(),
            float(system.charge),
            float(result.energy[0]),
            float(result.energy_spread[0]),
            result.forces,
            result.force_spread,
        )
        raise self.written(_error(frame, worst, self.most))

    def written(self, error: SpreadError, note: str = "") -> SpreadError:
        """Appends the frame of an error to the file; returns the error, whose text then names the file or the failure.

        A frame with the positions of the one before, from a repeated evaluation, is written only once.
        """
        assert error.frame is not None
        if self._last is not None and np.array_equal(self._last, error.frame.positions):
            where = _where(self.file)
        else:
            where, was_written = appended(self.file, error.frame)
            self._last = error.frame.positions.copy() if was_written else self._last
        text = f"{error}{note}; {where}"
        return SpreadError(text, error.frame, error.atom, most=error.most, step=error.step, structure=error.structure)


def appended(path: Path, frame: Frame) -> tuple[str, bool]:
    """Appends a frame to a file; returns what an error can say of it, and whether it is there."""
    try:
        append(path, frame)
    except OSError as failure:
        return f"its frame could not be appended to {str(path)!r}: {failure}", False
    return _where(path), True


def _where(path: Path) -> str:
    return f"its frame was appended to {str(path)!r}"


def append(path: Path, frame: Frame) -> None:
    """Appends a frame to a file in a single write, and flushes it to disk."""
    import ase.io

    text = io.StringIO()
    ase.io.write(text, frame.to_ase(), format="extxyz")
    with path.open("a") as file:
        file.write(text.getvalue())
        file.flush()
        os.fsync(file.fileno())
