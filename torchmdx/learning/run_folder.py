"""The folder of a run: a folder for each round and stage, the configuration, and what rounds have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchmdx.checkpoints.locate import origin_at
from torchmdx.checkpoints.save_load import load
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.stage import StageFolder, read_json, write_json
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.training.config_file import write_text
from torchmdx.training.state import flatten

CONFIG, SETTINGS, POTENTIAL, PAGE = "learn.yaml", "settings.json", "potential.safetensors", "learn.html"
STRUCTURES, CHOSEN, LABELLED = "structures.extxyz", "chosen.extxyz", "labelled.extxyz"
# Settings that may change in a run that continues: they decide when it ends and how fast it is, and no number.
FREE = (
    "stop.", "output.", "label.workers", "label.timeout", "label.dask", "explore.save_every", "explore.dask",
    "train.training.device", "train.training.prefetch", "train.report",
)  # fmt: skip


class StoppedBySignal(Exception):
    """A signal has come, and what is done is kept."""


@dataclass(eq=False)
class RunFolder:
    """A run: its settings and its stages.

    Attributes:
        say: Prints a line.
    """

    config: LearnConfig
    interrupts: Interrupts
    say: Callable[[str], None]
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.config.output.directory)
        asked = self.config.train.training.device
        self.device = choose_device(None if asked == "auto" else asked, "train.training.device")

    def open(self) -> bool:
        """Writes the configuration, or checks that it is that of the run in the folder; whether there was one.

        Raises:
            FileExistsError: For other settings than those of the run; names them.
        """
        path, settings = self.folder / SETTINGS, self.settings()
        there = path.exists()
        if there:
            before = read_json(path)
            for key in sorted(before.keys() | settings.keys()):
                if before.get(key) != settings.get(key):
                    raise FileExistsError(
                        f"{str(self.folder)!r} holds a run with {key}: {before.get(key, 'nothing')!r}, got "
                        f"{settings.get(key, 'nothing')!r}; "
                        "only stop, output, and settings of workers and devices may change: choose another "
                        "output.directory"
                    )
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(write_text(self.config, defaults_as_comments=True), encoding="utf-8")
        if not there:
            write_json(path, settings)
        return there

    def settings(self, *sections: str) -> dict[str, Any]:
        """Settings that results depend on, by dotted names: of all sections, or of these."""
        found = dict(flatten(self.config.plain()))
        if self.config.start.checkpoint is not None:
            found["start.checkpoint (SHA-256)"] = origin_at(self.config.start.checkpoint).sha256
        chosen = tuple(name for name in sections) or ("",)
        return {name: value for name, value in found.items() if name.startswith(chosen) and not name.startswith(FREE)}

    # Places

    def place(self, number: int, stage: str) -> Path:
        """The folder of a stage of a round; round 0 is what happens before exploration."""
        return self.folder / f"round-{number:03d}" / stage

    def stage(self, number: int, name: str, settings: dict[str, Any], files: dict[str, Path]) -> StageFolder:
        """A stage of a round, begun. files: by the names that errors have."""
        stage = StageFolder(self.place(number, name), settings, files)
        stage.begin()
        return stage

    def labelled(self, before: int) -> dict[str, Path]:
        """The labelled files of all rounds before this one, by their paths in the folder of the run."""
        places = [self.place(number, "label") / LABELLED for number in range(before)]
        return {str(path.relative_to(self.folder)): path for path in places if path.exists()}

    def potential(self, before: int) -> Path | str | None:
        """The file of the potential that was trained last before this round; else the base; None if there is none."""
        for number in reversed(range(before)):
            if (path := self.place(number, "train") / POTENTIAL).exists():
                return path
        return self.config.start.checkpoint

    def hashed(self, potential: Path | str | None) -> dict[str, Path]:
        """A potential as a file that a stage reads; the base is among the settings."""
        return {str(potential.relative_to(self.folder)): potential} if isinstance(potential, Path) else {}

    def load(self, potential: Path | str) -> Potential | Ensemble:
        """A potential on the device of the run, ready for evaluations."""
        dtype = torch.float64 if self.config.train.training.precision == "float64" else torch.float32
        found = load(potential, dtype=dtype, device=self.device)
        return found.eval().requires_grad_(False)

    def interrupted(self) -> bool:
        """Whether a signal has come."""
        return self.interrupts.received is not None

    def check(self) -> None:
        """Raises StoppedBySignal if a signal has come."""
        if self.interrupted():
            raise StoppedBySignal
