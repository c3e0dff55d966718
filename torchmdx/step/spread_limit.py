"""The limit on the force spread of an ensemble, or on the uncertainty of a single potential.

Checking it, and writing frames that exceed it to a file.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.step.buffer_storage import SPREADS, UNCERTAIN, UNCERTAINTIES, Doubts
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.results import Frame, SpreadError, StepResult, UncertaintyError
from torchmdx.structures.system import Batch, System

DEFAULT_FILE = "uncertain.xyz"


@dataclass(frozen=True)
class Measure:
    """What a limit is of: the names of its values of systems and atoms, as of `Doubts`, its unit, words and error."""

    option: str
    names: Doubts
    unit: str
    what: str
    error: type[SpreadError]

    def of(self, frame: Frame) -> NDArray[np.float64]:
        """The values of the atoms of a frame."""
        values: NDArray[np.float64] = getattr(frame, self.names[1])
        return values

    def frame(self, out: Mapping[str, NDArray[np.float64]], system: int, own: Any, **structure: Any) -> Frame:
        """The frame of a system with the results of its atoms `own`. structure: what of a `Frame` is no result."""
        of_system, of_atoms = self.names
        doubts: dict[str, Any] = {of_system: float(out[of_system][system]), of_atoms: out[of_atoms][own]}
        return Frame(**structure, energy=float(out["energy"][system]), forces=out["forces"][own], **doubts)


SPREAD = Measure("max_force_spread", SPREADS, "eV/Å", "the force spread of the ensemble", SpreadError)
UNCERTAINTY = Measure(
    "max_uncertainty", UNCERTAINTIES, "eV", "the uncertainty of the energy of an atom", UncertaintyError
)


def measure_of(potential: Potential | Ensemble) -> Measure:
    """What can be limited for this potential."""
    return SPREAD if isinstance(potential, Ensemble) else UNCERTAINTY


def checked_limit(
    potential: Potential | Ensemble, most_spread: float | None, most_uncertainty: float | None = None
) -> float | None:
    """The limit in eV/Å of an ensemble's spread, or in eV of a single potential's uncertainty; None for none.

    Raises:
        ValueError: For one that is not > 0, for that of a spread with a single potential, and for that of an
            uncertainty with an ensemble or with a potential that does not know it.
    """
    for measure, most in ((SPREAD, most_spread), (UNCERTAINTY, most_uncertainty)):
        if most is not None and not (most > 0 and math.isfinite(most)):
            raise ValueError(f"{measure.option} must be > 0 {measure.unit} and finite, got {most}")
    if most_spread is not None and not isinstance(potential, Ensemble):
        raise ValueError(f"max_force_spread needs an ensemble, got {most_spread} eV/Å with a single potential")
    if most_uncertainty is None:
        return None if most_spread is None else float(most_spread)
    if isinstance(potential, Ensemble):
        raise ValueError(
            f"max_uncertainty needs a single potential, got {most_uncertainty} eV with an ensemble: limit its spread, "
            "by max_force_spread"
        )
    if potential.uncertainty is None:
        raise ValueError(
            f"max_uncertainty needs a potential that knows its uncertainty, got {most_uncertainty} eV with "
            f"{potential.card.title}: `torchmdx uncertainty FILE DATA` adds it"
        )
    return float(most_uncertainty)


def require_agreement(flags: Any, batch: Batch, buffers: StepBuffers) -> None:
    """Raises SpreadError or UncertaintyError, with the frame, if flags of an evaluation say that an atom is beyond."""
    if not flags[UNCERTAIN]:
        return
    measure = UNCERTAINTY if buffers.doubts == UNCERTAINTIES else SPREAD
    out = {name: value.cpu().numpy() for name, value in buffers.outputs.items()}
    worst = int(out[measure.names[1]].argmax())
    system = int(batch.system_index[worst])
    own = (batch.system_index == system).cpu().numpy()
    frame = measure.frame(
        out,
        system,
        own,
        numbers=batch.atomic_numbers.cpu().numpy()[own],
        positions=buffers.inputs["positions"].cpu().numpy()[own],
        cell=buffers.inputs["cell"][system].cpu().numpy().copy(),
        pbc=batch.pbc[system].cpu().numpy().copy(),
        charge=float(batch.charge[system]),
    )
    raise _error(measure, frame, worst, float(buffers.most), system)


def _error(measure: Measure, frame: Frame, atom: int, most: float, structure: int = 0) -> SpreadError:
    return measure.error(_text(measure, frame, most, f"atom {atom}"), frame, atom, most=most, structure=structure)


def _text(measure: Measure, frame: Frame, most: float, where: str) -> str:
    worst = float(measure.of(frame).max())
    return f"{measure.what} must be at most {most:g} {measure.unit}, got {worst:.4g} {measure.unit} at {where}"


def at_step(error: SpreadError, step: int, starts: NDArray[np.int64]) -> SpreadError:
    """The error of a run: its text names the step, the atom within its structure, and the structure if several run.

    Args:
        error: With the index of the atom in the batch.
        starts ([S+1]): Where the atoms of each structure begin.
    """
    assert error.frame is not None
    structure = int(np.searchsorted(starts, error.atom, side="right")) - 1
    where = f"atom {error.atom - int(starts[structure])}" + f" of structure {structure}" * (len(starts) > 2)
    measure = UNCERTAINTY if isinstance(error, UncertaintyError) else SPREAD
    text = f"step {step}: {_text(measure, error.frame, error.most, where)}"
    return type(error)(text, error.frame, error.atom, most=error.most, step=step, structure=structure)


class SpreadLimit:
    """A limit on a spread or an uncertainty, and the file (extended XYZ) to which frames that exceed it are appended.

    Args:
        most: In the unit of the measure.
    """

    def __init__(self, most: float, file: str | Path | None = None, measure: Measure = SPREAD) -> None:
        """Raises FileNotFoundError if the file's folder does not exist, IsADirectoryError if `file` is a folder."""
        self.most, self.measure, self.file = most, measure, Path(DEFAULT_FILE if file is None else file)
        if self.file.is_dir():
            raise IsADirectoryError(f"spread_file must be a file, got the folder {str(self.file)!r}")
        if not self.file.absolute().parent.is_dir():
            raise FileNotFoundError(f"spread_file must be in an existing folder, got {str(self.file)!r}")
        self._last: NDArray[np.float64] | None = None

    @classmethod
    def of(
        cls,
        potential: Potential | Ensemble,
        most_spread: float | None,
        file: str | Path | None,
        most_uncertainty: float | None = None,
    ) -> SpreadLimit | None:
        """The limit, None if there is none. Raises as `checked_limit`, and ValueError for a file without a limit."""
        limit = checked_limit(potential, most_spread, most_uncertainty)
        if limit is None:
            if file is not None:
                raise ValueError(f"spread_file needs {measure_of(potential).option}, got {str(file)!r} without it")
            return None
        return cls(limit, file, measure_of(potential))

    def require(self, system: System, result: StepResult) -> None:
        """Raises the error if a result of one system, in NumPy arrays, exceeds the limit; writes its frame first."""
        values = getattr(result, self.measure.names[1])
        worst = int(np.argmax(values)) if len(values) else 0
        if not (len(values) and values[worst] > self.most):
            return
        frame = self.measure.frame(
            vars(result),
            0,
            slice(None),
            numbers=system.atomic_numbers.numpy(),
            positions=system.positions.double().numpy(),
            cell=system.cell.double().numpy(),
            pbc=system.pbc.numpy(),
            charge=float(system.charge),
        )
        raise self.written(_error(self.measure, frame, worst, self.most))

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
        at = (error.frame, error.atom)
        return type(error)(text, *at, most=error.most, step=error.step, structure=error.structure)


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
