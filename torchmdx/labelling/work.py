"""The two things that workers do: label a structure, and sample a molecule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchmdx.labelling.calculators import Choice, Evaluator
from torchmdx.labelling.sampling import Sampling, sample


@dataclass(frozen=True)
class LabelWork:
    """Geometry to Labels."""

    choice: Choice

    def prepare(self) -> Callable[[Any, Callable[[], None]], Any]:
        """Makes the calculator. Raises ValueError that names it when that fails."""
        evaluator = _evaluator(self.choice)
        return lambda geometry, pulse: evaluator.labels(geometry)


@dataclass(frozen=True)
class SampleWork:
    """Molecule to Sampled."""

    choice: Choice
    sampling: Sampling

    def prepare(self) -> Callable[[Any, Callable[[], None]], Any]:
        """Makes the calculator. Raises ValueError that names it when that fails."""
        evaluator = _evaluator(self.choice)
        return lambda molecule, pulse: sample(molecule, self.sampling, evaluator, pulse)


def _evaluator(choice: Choice) -> Evaluator:
    choice.require()
    try:
        return Evaluator(choice)
    except Exception as error:
        raise ValueError(
            f"calculator {choice.name} could not be made with options {choice.options}: {type(error).__name__}: {error}"
        ) from error
