"""The work of workers: label a structure, or sample a molecule."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torchmdx
from torchmdx.datasets.labelling.calculators import Choice
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.labeller import Labeller
from torchmdx.datasets.labelling.ledger import Key
from torchmdx.datasets.labelling.sampling import Molecule, Sampling, sample


@dataclass(frozen=True, eq=False)
class FrameToLabel:
    """A structure to label, and its key among all frames."""

    key: Key
    structure: UnlabelledStructure

    @property
    def folder(self) -> str:
        """Of the files of calculators: number of the source, then of the frame in it."""
        return "-".join(str(number) for number in self.key)


@dataclass(frozen=True)
class LabelWork:
    """Turns a FrameToLabel into Labels and, with `sampling`, a Molecule into Sampled.

    Attributes:
        folder: Of the files that calculators write, with a folder for each frame and molecule.
        keep_labelled: Whether files of labelled frames are kept.
        place: Working directory.
        agreed: Settings and versions that the process must have, None for those that it has.
    """

    choice: Choice
    folder: Path
    sampling: Sampling | None = None
    keep_labelled: bool = True
    place: Path | None = None
    agreed: dict[str, Any] | None = None

    def prepare(self, number: int) -> Callable[[Any, Callable[[], None]], Any]:
        """Makes the calculator. Raises ValueError that names it if that fails, and if it is not what was agreed."""
        if self.place is not None:
            os.chdir(self.place)
        self.choice.settle(number)
        self.choice.require()
        self._require_agreed()
        try:
            labeller = Labeller(self.choice, self.folder, keep_labelled=self.keep_labelled)
        except Exception as error:
            raise ValueError(
                f"calculator {self.choice.name} could not be made with options {self.choice.options}: "
                f"{type(error).__name__}: {error}"
            ) from error

        def do(task: FrameToLabel | Molecule, pulse: Callable[[], None]) -> Any:
            if isinstance(task, FrameToLabel):
                return labeller.labels(task.structure, task.folder)
            assert self.sampling is not None
            return sample(task, self.sampling, labeller, pulse)

        return do

    def _require_agreed(self) -> None:
        here = conditions(self.choice)
        wrong = [
            f"{name} {here[name]}, not {value}" for name, value in (self.agreed or here).items() if here[name] != value
        ]
        if wrong:
            raise ValueError(f"all processes must label with the same settings and versions, got {'; '.join(wrong)}")


def conditions(choice: Choice) -> dict[str, Any]:
    """What all processes of a run must have in common, by names for messages."""
    return {"version of torchmdx": torchmdx.__version__, **choice.settings()}
