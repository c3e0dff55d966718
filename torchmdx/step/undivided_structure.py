"""A structure that several devices would not evaluate faster than one: a plain step evaluates it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchmdx.models.potential import Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.divided_structure import changed_cell, potential_on, require_finite_positions
from torchmdx.step.division import Grid
from torchmdx.step.results import NonFiniteError, StepResult
from torchmdx.structures.system import Batch


class UndividedStructure:
    """A structure with its current cell, and the `CapturedStep` that evaluates it, made at the first evaluation.

    Args:
        options: Of `CapturedStep`.
    """

    grid: Grid = (1, 1, 1)

    def __init__(self, batch: Batch, potential: Potential, device: torch.device, options: dict[str, Any]) -> None:
        self.batch, self.cell = batch, batch.cell.double().clone()
        self.device, self.options = device, options
        self.potential = potential_on(potential, device)
        self.step: CapturedStep | None = None

    def __call__(self, positions: Any, cell: Any, evaluation: int) -> StepResult:
        """Results at positions [N,3] and cell [3,3], None for the last, of the evaluation with this number.

        After an error or an interruption the last cell is kept. CUDA tensors may be on any GPU, where the results then
        are too.
        """
        given = changed_cell(self.cell, cell, self.batch)
        if self.step is None:
            self.step = CapturedStep(self.potential, self.batch, **self.options)
        away = isinstance(positions, Tensor) and positions.device.type == "cuda" and positions.device != self.device
        place = positions.to(self.device) if away else positions
        try:
            result = self.step(place, given)
        except NonFiniteError:
            require_finite_positions(evaluation, torch.as_tensor(place).detach().cpu().numpy())
            raise
        self.cell = given
        return result

    def parts(self) -> list[tuple[torch.device, int, int, CapturedStep | None]]:
        """(device, owned atoms, ghosts, step), of the only device."""
        return [(self.device, self.batch.num_atoms, 0, self.step)]
