"""What a step gives, and what it raises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchmdx.step.spread_limit import Frame


class StepError(RuntimeError):
    """A step that cannot be made or trusted; the subclasses say why."""


class OutOfDeviceMemory(StepError):
    """The GPU has too little memory for a step; says how much there was and what to change."""


class NonFiniteError(ArithmeticError):
    """Positions, energies or forces that are NaN or infinite; names the evaluation and the atoms."""


class AuditError(StepError):
    """The fast path and the exact model disagree."""


class GraphRefused(StepError):
    """mode="graph" was asked for and cannot be had; says why."""


class SpreadError(StepError):
    """An ensemble whose members lie further apart than allowed.

    frame: the structure, and what the ensemble gave for it. atom: the worst, as the step, or its caller, counts atoms.
    """

    def __init__(self, text: str, frame: Frame | None = None, atom: int = -1) -> None:
        super().__init__(text)
        self.frame, self.atom = frame, atom


@dataclass(frozen=True, eq=False)
class StepResult:
    """energy [S] eV, forces [N,3] eV/Å, energies [N] eV, stress [S,3,3] eV/Å³ (NaN without a volume), all float64.

    Of an ensemble these are means; energy_spread [S] eV and force_spread [N] eV/Å say how far its members lie apart.
    NumPy arrays where positions came as an array or a CPU tensor, CUDA tensors where they came as one.
    """

    energy: Any
    forces: Any
    energies: Any = None
    stress: Any = None
    energy_spread: Any = None
    force_spread: Any = None
