"""The files of a run: their names, whether they may be written, checkpoints that are whole whatever happens."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmdx.md.restore import sealed
from torchmdx.md.settings import UNCERTAIN, Dynamics, Evaluation, Schedule
from torchmdx.md.simulation import Checkpoint
from torchmdx.md.structure import SUFFIXES, Structure
from torchmdx.runtime.damaged_file import WRONG_VALUES, naming, parse_json
from torchmdx.runtime.files import write_whole

FORMAT = 1


@dataclass(frozen=True)
class Files:
    """Paths that start with one prefix."""

    prefix: str
    suffix: str

    def __post_init__(self) -> None:
        folder = Path(self.prefix).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"--output must be in a folder that is there, got {self.prefix!r}: no {folder}")
        if not Path(self.prefix).name or self.prefix.endswith(("/", os.sep)) or Path(self.prefix).is_dir():
            raise ValueError(f"--output must be the beginning of file names, got the folder {self.prefix!r}")

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
    def uncertain(self) -> Path:
        return self.path(UNCERTAIN)

    def all(self) -> list[Path]:
        """Every file that a run with this prefix may have left, of whatever structure."""
        final = [self.path(f".final{suffix}") for suffix in SUFFIXES]
        return [self.trajectory, self.log, self.exact, self.portable, self.settings, *final, self.plot, self.uncertain]

    def require_new(self) -> None:
        """Raises FileExistsError if a run was here before."""
        there = [str(path) for path in self.all() if path.exists()]
        if there:
            raise FileExistsError(
                f"outputs must be new, got {', '.join(there)}; --restart goes on from there, --overwrite replaces them"
            )

    def remove(self) -> None:
        """Deletes what an earlier run left."""
        for path in self.all():
            path.unlink(missing_ok=True)

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replaces both forms, each in one go: a kill at any moment leaves whole files."""
        write_whole(self.portable, checkpoint.portable.encode())
        write_whole(self.exact, sealed(checkpoint.exact))

    def read_checkpoint(self) -> tuple[bytes | None, str | None]:
        """Both forms, None for one that is missing. Raises FileNotFoundError without either."""
        if not (self.exact.is_file() or self.portable.is_file()):
            raise FileNotFoundError(f"--restart needs a checkpoint, got none at {str(self.exact)!r}")
        with naming(self.portable):
            portable = self.portable.read_text() if self.portable.is_file() else None
        return self.exact.read_bytes() if self.exact.is_file() else None, portable

    def write_settings(self, settings: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMAT, **settings}, indent=1)
        write_whole(self.settings, (text + "\n").encode())

    def read_settings(self) -> dict[str, Any]:
        """What `write_settings` wrote. Raises FileNotFoundError or ValueError."""
        if not self.settings.is_file():
            raise FileNotFoundError(f"--restart needs the settings of the run, got no {str(self.settings)!r}")
        try:
            settings: dict[str, Any] = parse_json(self.settings.read_text())
            found = settings.pop("format")
        except (ValueError, *WRONG_VALUES) as error:
            raise ValueError(f"{str(self.settings)!r} must hold the settings of a run, got something else") from error
        if found != FORMAT:
            raise ValueError(f"{str(self.settings)!r} must have format {FORMAT}, got {found!r}")
        return settings


def settings_of(structure: Structure, dynamics: Dynamics, schedule: Schedule, evaluation: Evaluation) -> dict[str, Any]:
    """What a run and its continuation must have in common, by the name that an error gives it."""
    atoms = structure.atomic_numbers.tobytes() + structure.masses.tobytes()
    models = []
    for path in evaluation.models:
        with path.open("rb") as file:
            models.append(hashlib.file_digest(file, "sha256").hexdigest())
    return {
        "model (SHA-256)": " ".join(models),
        "formula": structure.formula,
        "atoms (SHA-256 of elements and masses in order)": hashlib.sha256(atoms).hexdigest(),
        "charge in e": structure.charge,
        "periodic": structure.cell is not None,
        "ensemble": dynamics.ensemble,
        "timestep in fs": dynamics.timestep,
        "temperature in K": dynamics.temperature,
        "friction in 1/ps": dynamics.friction,
        "pressure in bar": dynamics.pressure,
        "barostat": dynamics.barostat,
        "seed": dynamics.seed,
        "steps between frames": schedule.save_every,
        "steps between log rows": schedule.log_every,
    }


def require_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises ValueError that says what differs between a run and its continuation."""
    differing = [f"{name} {now[name]}, was {before.get(name)}" for name in now if now[name] != before.get(name)]
    if differing:
        raise ValueError(f"--restart needs the settings of the run it continues, got {'; '.join(differing)}")
