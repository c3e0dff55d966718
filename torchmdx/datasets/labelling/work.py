"""The work of workers: label a structure, or sample a molecule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmdx.datasets.labelling.calculators import Choice, Labeller
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.datasets.labelling.sampling import Molecule, Sampling, sample


@dataclass(frozen=True)
class LabelWork:
    """Turns a Geometry into Labels and, with `sampling`, a Molecule into Sampled.

    Attributes:
        folder: Of the files that calculators write; each worker has one of its own in it.
    """

    choice: Choice
    folder: Path
    sampling: Sampling | None = None

    def prepare(self, number: int) -> Callable[[Any, Callable[[], None]], Any]:
        """Makes the calculator. Raises ValueError that names it if that fails."""
        self.choice.require()
        try:
            labeller = Labeller(self.choice, self.folder / str(number))
        except Exception as error:
            raise ValueError(
                f"calculator {self.choice.name} could not be made with options {self.choice.options}: "
                f"{type(error).__name__}: {error}"
            ) from error

        def do(task: UnlabelledStructure | Molecule, pulse: Callable[[], None]) -> Any:
            if isinstance(task, UnlabelledStructure):
                return labeller.labels(task)
            assert self.sampling is not None
            return sample(task, self.sampling, labeller, pulse)

        return do
