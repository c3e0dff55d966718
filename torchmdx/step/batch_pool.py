"""BatchPool: batches of changing composition, evaluated by captured steps of a few padded sizes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import padded_atoms, padded_batch
from torchmdx.step.results import StepResult
from torchmdx.system import Batch


@dataclass(eq=False)
class _Slot:
    """A step, and its own inputs on the potential's device, of the padded sizes."""

    step: CapturedStep
    positions: Tensor
    cell: Tensor


class BatchPool:
    """Evaluates batches of any composition with steps of a few padded sizes, which are created and dropped as needed.

        pool = BatchPool(potential, stress=True)
        pool.hold(batch)                          # when atoms or systems change
        result = pool(batch.positions, batch.cell)

    The first batch has a step of its own size. Those of other sizes have up to an eighth more atoms and systems, so
    that a batch that loses some systems and gains others keeps its step and, on a GPU, its graph. Padding atoms form
    systems of their own without neighbours. At most `most_steps` steps are kept; the least recently used is dropped.

    mode, stress, precision: as for CapturedStep.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        *,
        mode: str = "auto",
        stress: bool = False,
        precision: str | None = None,
        most_steps: int = 4,
    ) -> None:
        if most_steps < 1:
            raise ValueError(f"most_steps must be >= 1, got {most_steps}")
        self.potential, self.most_steps = frozen(potential), most_steps
        self.mode, self.stress, self.precision = mode, stress, precision
        self._slots: OrderedDict[tuple[int, int, bool, bool], _Slot] = OrderedDict()
        self._held: tuple[_Slot, int, int] | None = None

    @property
    def steps(self) -> list[CapturedStep]:
        """The current steps, the most recently used last."""
        return [slot.step for slot in self._slots.values()]

    @property
    def device(self) -> torch.device:
        return self.potential.device

    def hold(self, batch: Batch) -> None:
        """Takes a batch on the potential's device: the atoms, systems and charges of the evaluations that follow.

        Raises what CapturedStep and its `assign` raise; then the pool holds no batch.
        """
        self._held = None
        key = self._key(batch)
        filled = padded_batch(batch, key[0], key[1], self.potential.cutoff)
        # Put back only once it holds the batch: an interruption below drops the step.
        slot = self._slots.pop(key, None)
        if slot is None:
            while len(self._slots) >= self.most_steps:
                self._slots.popitem(last=False)
            slot = self._make(filled)
        else:
            slot.step.assign(filled)
            slot.positions.copy_(filled.positions)
            slot.cell.copy_(filled.cell)
        self._slots[key] = slot
        self._held = (slot, batch.num_atoms, batch.num_systems)

    def __call__(self, positions: Tensor, cell: Tensor | None, *, copy: bool = False) -> StepResult:
        """Results at positions [N,3] Å and cell [S,3,3] Å of the batch that it holds, on the potential's device.

        cell: None for that of the last call, or of the batch. energy [S], forces [N,3] and optionally stress and
        spreads, as tensors: without `copy`, views of the step's buffers, valid until the next call. Raises ValueError
        without a batch or for another size, and what CapturedStep raises.
        """
        if self._held is None:
            raise ValueError("a pool evaluates the batch that it holds: call hold before an evaluation")
        slot, num_atoms, num_systems = self._held
        if positions.shape != (num_atoms, 3) or (cell is not None and cell.shape != (num_systems, 3, 3)):
            raise ValueError(
                f"the pool holds {num_atoms} atoms in {num_systems} systems, got positions {list(positions.shape)} "
                f"and cell {None if cell is None else list(cell.shape)}"
            )
        slot.positions[:num_atoms].copy_(positions.detach())
        if cell is not None:
            slot.cell[:num_systems].copy_(cell.detach())
        result = slot.step(slot.positions, slot.cell, copy=copy)

        def part(values: Any, count: int) -> Tensor | None:
            return None if values is None else torch.as_tensor(values)[:count]

        return StepResult(
            energy=part(result.energy, num_systems),
            forces=part(result.forces, num_atoms),
            stress=part(result.stress, num_systems),
            energy_spread=part(result.energy_spread, num_systems),
            force_spread=part(result.force_spread, num_atoms),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_slots": OrderedDict(), "_held": None}

    def _key(self, batch: Batch) -> tuple[int, int, bool, bool]:
        # A search without periodic directions is simpler, so periodic structures do not share steps with others.
        kind = (bool(batch.pbc.any()), batch.partial_charges is not None)
        own = (batch.num_atoms, batch.num_systems, *kind)
        if own in self._slots or not self._slots:
            return own
        return (padded_atoms(batch.num_atoms), padded_atoms(batch.num_systems + 1), *kind)

    def _make(self, filled: Batch) -> _Slot:
        options = dict(mode=self.mode, stress=self.stress, precision=self.precision)
        step = CapturedStep(self.potential, filled, **options)  # type: ignore[arg-type]
        inputs = step.buffers.inputs  # without a GPU those of the host, too
        return _Slot(step, inputs["positions"], inputs["cell"])
