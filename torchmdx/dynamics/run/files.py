"""The files of a run: names, checks before writing, and checkpoints that are replaced atomically."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.run.restore import sealed
from torchmdx.dynamics.run.settings import Dynamics, PotentialSettings, Schedule
from torchmdx.dynamics.run.simulation import Checkpoint
from torchmdx.dynamics.run.structure import SUFFIXES, Structure
from torchmdx.dynamics.run_files import UNCERTAIN
from torchmdx.runtime.damaged_file import WRONG_VALUES, naming, parse_json
from torchmdx.runtime.files import require_new, write_whole

FORMAT = 1
FIXED, NONE = "fixed atoms", "none"
CELL, DECIMALS = "cell in Å", 6


@dataclass(frozen=True)
class Files:
    """Paths with a common prefix."""

    prefix: str
    suffix: str

    def __post_init__(self) -> None:
        folder = Path(self.prefix).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"--output must be in an existing directory, got {self.prefix!r}: no {folder}")
        if not Path(self.prefix).name or self.prefix.endswith(("/", os.sep)) or Path(self.prefix).is_dir():
            raise ValueError(f"--output must be a prefix of file names, got the directory {self.prefix!r}")

    def path(self, ending: str) -> Path:
        return Path(self.prefix + ending)

    @property
    def trajectory(self) -> Path:
        return self.path(".dcd")

    @property
    def log(self) -> Path:
        return self.path(".log")

    @property
    def exact(self) -> Path:
        return self.path(".chk")

    @property
    def portable(self) -> Path:
        return self.path(".xml")

    @property
    def settings(self) -> Path:
        return self.path(".json")

    @property
    def final(self) -> Path:
        return self.path(f".final{self.suffix}")

    @property
    def plot(self) -> Path:
        return self.path(".png")

    @property
    def page(self) -> Path:
        return self.path(".html")

    @property
    def uncertain(self) -> Path:
        return self.path(UNCERTAIN)

    def all(self) -> list[Path]:
        """All files that a run with this prefix can write, for any structure."""
        final = [self.path(f".final{suffix}") for suffix in SUFFIXES]
        pictures = [self.plot, self.page]
        return [self.trajectory, self.log, self.exact, self.portable, self.settings, *final, *pictures, self.uncertain]

    def require_new(self) -> None:
        """Raises FileExistsError if files of an earlier run exist."""
        require_new(*self.all(), remedy="--restart continues the run, --overwrite replaces them")

    def remove(self) -> None:
        """Deletes the files of an earlier run."""
        for path in self.all():
            path.unlink(missing_ok=True)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replaces both checkpoint files, each atomically: they stay complete even if the process is killed."""
        write_whole(self.portable, checkpoint.portable.encode())
        write_whole(self.exact, sealed(checkpoint.exact))

    def read_checkpoint(self) -> tuple[bytes | None, str | None]:
        """The exact and the portable checkpoint, None for a missing one. Raises FileNotFoundError without either."""
        if not (self.exact.is_file() or self.portable.is_file()):
            raise FileNotFoundError(f"--restart needs a checkpoint, but {str(self.exact)!r} does not exist")
        with naming(self.portable):
            portable = self.portable.read_text() if self.portable.is_file() else None
        return self.exact.read_bytes() if self.exact.is_file() else None, portable

    def write_settings(self, settings: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **settings}, indent=1)
        write_whole(self.settings, (text + "\n").encode())

    def read_settings(self) -> dict[str, Any]:
        """The settings that `write_settings` wrote. Raises FileNotFoundError or ValueError."""
        if not self.settings.is_file():
            raise FileNotFoundError(
                f"--restart needs the settings of the run, but {str(self.settings)!r} does not exist"
            )
        try:
            settings: dict[str, Any] = parse_json(self.settings.read_text())
            found = settings.pop("format")
        except (ValueError, *WRONG_VALUES) as error:
            raise ValueError(f"{str(self.settings)!r} must hold the settings of a run, got something else") from error
        if found != FORMAT:
            raise ValueError(f"{str(self.settings)!r} must have format {FORMAT}, got {found!r}")
        return settings


def settings_of(
    structure: Structure, dynamics: Dynamics, schedule: Schedule, potential_settings: PotentialSettings
) -> dict[str, Any]:
    """Settings that a run and its restart must share, by their names in error messages."""
    atoms = structure.atomic_numbers.tobytes() + structure.masses.tobytes()
    models = []
    for path in potential_settings.models:
        with path.open("rb") as file:
            models.append(hashlib.file_digest(file, "sha256").hexdigest())
    return {
        "model (SHA-256)": " ".join(models),
        "formula": structure.formula,
        "atoms (SHA-256 of elements and masses in order)": hashlib.sha256(atoms).hexdigest(),
        FIXED: ranges_of(np.flatnonzero(structure.fixed)),
        "charge in e": structure.charge,
        "periodic": structure.cell is not None,
        CELL: None if structure.cell is None else structure.cell.round(DECIMALS).tolist(),
        "ensemble": dynamics.ensemble,
        "timestep in fs": dynamics.timestep,
        "temperature in K": dynamics.temperature,
        "friction in 1/ps": dynamics.friction,
        "hydrogen mass in amu": dynamics.hydrogen_mass,
        "pressure in bar": dynamics.pressure,
        "barostat": dynamics.barostat,
        "seed": dynamics.seed,
        "steps between frames": schedule.save_every,
        "steps between log rows": schedule.log_every,
        "Coulomb cutoff in Å": potential_settings.coulomb_cutoff,
        "Coulomb energy": potential_settings.coulomb,
    }


def ranges_of(numbers: NDArray[np.int64]) -> str:
    """Numbers as "0-3 7", "none" without any."""
    starts = [k for k, number in enumerate(numbers) if k == 0 or numbers[k - 1] + 1 != number]
    runs = [numbers[a:b] for a, b in pairwise([*starts, len(numbers)])]
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or NONE


def require_same(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raises ValueError with the settings that differ between a run and its restart. path: of the settings."""
    if CELL not in before:
        warnings.warn(
            f"{str(path)!r} is of an earlier version, which did not write the cell: it is not compared", stacklevel=2
        )
    before = {FIXED: NONE, CELL: now[CELL]} | before  # which earlier versions did not write
    differing = [f"{name} {now[name]}, was {before.get(name)}" for name in now if now[name] != before.get(name)]
    if differing:
        raise ValueError(f"--restart needs the settings of the run, got {'; '.join(differing)}")
