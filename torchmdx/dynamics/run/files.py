"""The files of a run with either engine: their names, and the settings that a continuation must share."""

from __future__ import annotations

import json
import resource
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmdx.dynamics.run.continuation import differences
from torchmdx.dynamics.trajectory_formats import ENDINGS
from torchmdx.runtime.damaged_file import WRONG_VALUES, parse_json
from torchmdx.runtime.files import require_new, write_whole
from torchmdx.runtime.precisions import saved_precision
from torchmdx.step.results import SpreadError
from torchmdx.step.spread_limit import appended

# Of the settings of a run, by engine: each continues its own runs alone.
FORMATS: dict[str, str | int] = {"torchmdx": "torchmdx dynamics 1", "openmm": 1}
RESTARTS = {"torchmdx": (".restart.npz",), "openmm": (".chk", ".xml")}
FINALS = {"torchmdx": (".xyz",), "openmm": (".pdb", ".cif", ".xyz")}
SPARE_FILES = 64  # open files of everything else in the process
UNCERTAIN = ".uncertain.xyz"  # ending of the file of frames with a large force spread


@dataclass(frozen=True)
class RunFiles:
    """Paths with a common prefix, for a number of structures: PREFIX.dcd, or PREFIX.0.dcd, PREFIX.1.dcd and so on.

    Attributes:
        trajectory: The ending of trajectories.
        engine: One of FORMATS.

    Raises:
        FileNotFoundError: If the folder of the prefix does not exist.
        ValueError: If the prefix is a folder.
    """

    prefix: str
    num_structures: int = 1
    trajectory: str = ".dcd"
    engine: str = "torchmdx"

    def __post_init__(self) -> None:
        folder = Path(self.prefix).parent
        if not folder.is_dir():
            raise FileNotFoundError(f"the output must be in an existing directory, got {self.prefix!r}: no {folder}")
        if not Path(self.prefix).name or self.prefix.endswith("/") or Path(self.prefix).is_dir():
            raise ValueError(f"the output must be a prefix of file names, got the directory {self.prefix!r}")

    def path(self, ending: str) -> Path:
        return Path(self.prefix + ending)

    def of_structure(self, number: int, ending: str) -> Path:
        """A file of one structure."""
        if self.num_structures == 1:
            return self.path(ending)
        return self.path(f".{number:0{len(str(self.num_structures - 1))}d}{ending}")

    @property
    def trajectories(self) -> list[Path]:
        return self._of_all(self.trajectory)

    @property
    def logs(self) -> list[Path]:
        return self._of_all(".log")

    @property
    def uncertain(self) -> list[Path]:
        """Of frames with a large force spread."""
        return self._of_all(UNCERTAIN)

    @property
    def restart(self) -> Path:
        return self.path(".restart.npz")

    @property
    def restarts(self) -> list[Path]:
        """What a run of the engine continues from."""
        return [self.path(ending) for ending in RESTARTS[self.engine]]

    @property
    def settings(self) -> Path:
        return self.path(".json")

    @property
    def plot(self) -> Path:
        return self.path(".png")

    @property
    def page(self) -> Path:
        return self.path(".html")

    def final(self, suffix: str = ".xyz") -> Path:
        """Of the last structures, in the format of a suffix."""
        return self.path(f".final{suffix}")

    def all(self) -> list[Path]:
        """All files that a run with this prefix and engine can write, with trajectories of any format."""
        trajectories = [path for ending in ENDINGS.values() for path in self._of_all(ending)]
        own = [*trajectories, *self.logs, *self.restarts, self.settings, *map(self.final, FINALS[self.engine])]
        return [*own, self.plot, self.page, *self.uncertain]

    def keep_frame(self, error: SpreadError) -> str:
        """Appends the frame of an error to the file of its structure; returns what the error is to say of that."""
        assert error.frame is not None
        where, _ = appended(self.of_structure(error.structure, UNCERTAIN), error.frame)
        return f"; {where}"

    def _of_all(self, ending: str) -> list[Path]:
        return [self.of_structure(number, ending) for number in range(self.num_structures)]

    def require_new(self) -> None:
        """Raises FileExistsError if files of an earlier run exist."""
        require_new(*self.all(), remedy="--restart continues the run, --overwrite replaces them")

    def require_there(self, *paths: Path) -> None:
        """Raises FileNotFoundError for the first file that a continuation lacks, trajectories and logs included."""
        for path in (*paths, *self.trajectories, *self.logs):
            if not path.is_file():
                raise FileNotFoundError(f"a restart continues {str(path)!r}, which does not exist")

    def remove(self) -> None:
        """Deletes the files of an earlier run."""
        for path in self.all():
            path.unlink(missing_ok=True)

    def write_settings(self, settings: dict[str, Any]) -> None:
        text = json.dumps({"format": FORMATS[self.engine], **settings}, indent=1)
        write_whole(self.settings, (text + "\n").encode())

    def read_settings(self) -> dict[str, Any]:
        """What `write_settings` wrote. Raises FileNotFoundError or ValueError."""
        if not self.settings.is_file():
            raise FileNotFoundError(f"a restart needs the run's settings, but {str(self.settings)!r} does not exist")
        try:
            settings: dict[str, Any] = parse_json(self.settings.read_text())
            found = settings.pop("format")
        except (ValueError, *WRONG_VALUES) as error:
            raise ValueError(f"{str(self.settings)!r} must hold the settings of a run, got something else") from error
        if found != FORMATS[self.engine]:
            other = next((f", of --engine {name}" for name, value in FORMATS.items() if value == found), "")
            raise ValueError(
                f"{str(self.settings)!r} must have format {FORMATS[self.engine]!r} of --engine {self.engine}, "
                f"got {found!r}{other}"
            )
        return settings

    def require_settings(self, now: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> list[str]:
        """Raises ValueError with the settings that differ between a run and its continuation.

        Args:
            defaults: What earlier versions did, by names that they did not write. Returns other names that they did not
                write, after a warning.
        """
        before = {**(defaults or {}), **self.read_settings()}
        if "precision" in before:
            before["precision"] = saved_precision(before["precision"])
        differing, missing = differences(json.loads(json.dumps(now)), before)
        if differing:
            raise ValueError(f"a restart needs the settings of the run, got {'; '.join(differing)}")
        if missing:
            warnings.warn(
                f"{str(self.settings)!r} is of an earlier version, which did not write {', '.join(missing)}: whether "
                "they are those of the run is not checked",
                stacklevel=3,
            )
        return missing


def allow_open_files(num_structures: int) -> None:
    """Lets this process open the files of all structures at once. Raises OSError if it may not."""
    needed = 2 * num_structures + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise OSError(f"{num_structures} structures need {needed} open files, but this process may have {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
