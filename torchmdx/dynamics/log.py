"""The log: a CSV file with a row of energies at regular intervals."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from torchmdx.runtime.damaged_file import naming
from torchmdx.runtime.files import naming_writes, write_all

COLUMNS = ("step", "time_ps", "potential_eV", "kinetic_eV", "total_eV", "temperature_K")
PERIODIC_COLUMNS = ("volume_A3", "density_g_per_cm3")
RESTRAINT = "restraint_eV"
PRESSURE = "pressure_bar"
THERMOSTAT = "thermostat_K"
ENSEMBLE_COLUMNS = ("energy_spread_eV", "force_spread_eV_per_A")
UNCERTAINTY_COLUMNS = ("energy_uncertainty_eV", "atom_uncertainty_eV")
SPEED = "ns_per_day"


def columns_of(
    *,
    periodic: bool,
    ensemble: bool,
    uncertainty: bool = False,
    restrained: bool = False,
    barostat: bool = False,
    exchange: bool = False,
) -> tuple[str, ...]:
    """Columns of the log.

    Args:
        ensemble: Whether the potential is an ensemble.
        uncertainty: Whether the run computes that of a single potential.
        exchange: Whether temperatures move.
    """
    return (
        *COLUMNS,
        *(PERIODIC_COLUMNS * periodic),
        *(ENSEMBLE_COLUMNS * ensemble),
        *(UNCERTAINTY_COLUMNS * uncertainty),
        *((RESTRAINT,) * restrained),
        *((PRESSURE,) * barostat),
        *((THERMOSTAT,) * exchange),
        SPEED,
    )


@dataclass(frozen=True)
class LogRow:
    """One row of the log.

    Energies in eV, time in ps, temperature in K. volume Å³ and density g/cm³ of periodic systems; spread of an
    ensemble: of the energy in eV, and the largest of the force on an atom in eV/Å; or uncertainty of a single
    potential: of the energy, and the largest of the energy of an atom, in eV; speed in ns/day since the last row;
    restraint: energy of restraints; pressure in bar, under a barostat; thermostat: its temperature in K, where that
    changes.
    """

    step: int
    time: float
    potential: float
    kinetic: float
    temperature: float
    volume: float | None = None
    density: float | None = None
    speed: float | None = None
    spread: tuple[float, float] | None = None
    uncertainty: tuple[float, float] | None = None
    restraint: float | None = None
    pressure: float | None = None
    thermostat: float | None = None

    @property
    def total(self) -> float:
        """The energy that constant-energy dynamics conserve."""
        return self.potential + (self.restraint or 0.0) + self.kinetic

    def with_speed(self, speed: float) -> LogRow:
        return replace(self, speed=speed)

    def text(self) -> str:
        fields = [
            str(self.step),
            f"{self.time:.6f}",
            *(f"{energy:.8f}" for energy in (self.potential, self.kinetic, self.total)),
            f"{self.temperature:.3f}",
        ]
        if self.volume is not None and self.density is not None:
            fields += [f"{self.volume:.4f}", f"{self.density:.6f}"]
        fields += [f"{value:.6f}" for value in (*(self.spread or ()), *(self.uncertainty or ()))]
        if self.restraint is not None:
            fields.append(f"{self.restraint:.8f}")
        if self.pressure is not None:
            fields.append(f"{self.pressure:.3f}")
        if self.thermostat is not None:
            fields.append(f"{self.thermostat:.3f}")
        fields.append("" if self.speed is None else f"{self.speed:.4g}")
        return ",".join(fields) + "\n"


class Log:
    """The CSV file, open for appending; num_rows: that are complete."""

    def __init__(self, file: BinaryIO, num_rows: int, num_bytes: int) -> None:
        self._file, self.num_rows, self._end = file, num_rows, num_bytes

    @classmethod
    def create(cls, path: Path, columns: tuple[str, ...]) -> Log:
        file = path.open("wb", buffering=0)
        title = _title(columns)
        with naming_writes(path):
            write_all(file, title)
        return cls(file, 0, len(title))

    @classmethod
    def reopen(cls, path: Path, num_bytes: int) -> Log:
        """An existing file, truncated to its first num_bytes."""
        file = path.open("r+b", buffering=0)
        file.truncate(num_bytes)
        file.seek(0)
        return cls(file, file.read().count(b"\n") - 1, num_bytes)

    @staticmethod
    def bytes_up_to(step: int, path: Path, columns: tuple[str, ...], interval: int) -> int:
        """Bytes of the rows up to a step. Raises ValueError if the file is not such a log or too short."""
        with naming(path):
            return Log._bytes_up_to(step, path, columns, interval)

    @staticmethod
    def _bytes_up_to(step: int, path: Path, columns: tuple[str, ...], interval: int) -> int:
        lines = path.read_bytes().splitlines(keepends=True)
        if not lines or lines[0] != _title(columns):
            raise ValueError(f"{str(path)!r} must be a log whose first line is {_title(columns).decode().strip()!r}")
        kept = 1
        while kept < len(lines) and lines[kept].endswith(b"\n") and int(lines[kept].split(b",")[0]) <= step:
            kept += 1
        expected = step // interval + 1
        if kept - 1 != expected:
            raise ValueError(f"{str(path)!r} must hold the {expected} rows up to step {step}, got {kept - 1}")
        return sum(len(line) for line in lines[:kept])

    def write(self, row: LogRow) -> None:
        """Appends a row. Raises OSError, and leaves the rows before it."""
        with naming_writes(self._file.name):
            data = row.text().encode()
            self._file.seek(self._end)
            try:
                write_all(self._file, data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(self._end)
                raise
        self._end, self.num_rows = self._end + len(data), self.num_rows + 1

    def sync(self) -> None:
        """Waits until the file is on disk."""
        with naming_writes(self._file.name):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_log(path: Path) -> dict[str, NDArray[np.float64]]:
    """Columns of a log by name; empty fields are NaN."""
    lines = path.read_text().splitlines()
    names = lines[0].split(",")
    rows = [[float(field or "nan") for field in line.split(",")] for line in lines[1:]]
    return dict(zip(names, np.array(rows, dtype=np.float64).reshape(len(rows), len(names)).T, strict=True))


def _title(columns: tuple[str, ...]) -> bytes:
    return (",".join(columns) + "\n").encode()
