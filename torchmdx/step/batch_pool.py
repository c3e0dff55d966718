"""BatchPool: batches of changing composition, evaluated by captured steps of a few padded sizes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.runtime.isolation import isolated
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.kept_steps import chosen_limits, drop_for_one_more, drop_until_they_fit, require_limits
from torchmdx.step.padding import padded_atoms, padded_batch, without_padding
from torchmdx.step.results import OutOfDeviceMemory, StepResult
from torchmdx.structures.system import Batch

# Steps that are kept on the CPU, where making another costs little.
MOST_CPU_STEPS = 4
# On a GPU a batch also takes a step of up to MOST_PADDING times its atoms and systems, for OWN_AFTER evaluations of its
# size: a capture takes longer than these lose.
MOST_PADDING, OWN_AFTER = 1.25, 1000

# Atoms and systems with padding, whether periodic, whether partial charges are given.
_Key = tuple[int, int, bool, bool]


@dataclass(eq=False)
class _BatchSlot:
    """A step, and its own inputs on the potential's device, of the padded sizes."""

    step: CapturedStep
    positions: Tensor
    cell: Tensor
    num_bytes: int = 0


@dataclass(eq=False)
class _Held:
    """The batch of a pool: the slot whose step holds it, its sizes, and the key of the step of its own size."""

    slot: _BatchSlot
    num_atoms: int
    num_systems: int
    own: _Key


class BatchPool:
    """Evaluates batches of any composition with steps of a few padded sizes, which are created and dropped as needed.

    Example::

        pool = BatchPool(potential, stress=True)
        pool.hold(batch)  # when atoms or systems change
        result = pool(batch.positions, batch.cell)

    The first batch has a step of its own size. Those of other sizes have up to an eighth more atoms and systems, so
    that a batch that loses some systems and gains others keeps its step and, on a GPU, its graph. On a GPU a batch may
    also use a step of up to MOST_PADDING times its size, until its own size was evaluated OWN_AFTER times. Padding
    atoms form systems of their own without neighbours.

    Steps are kept while together they take at most `most_memory` bytes of the GPU (None: a quarter of it), and at most
    `most_steps` of them (None: 4 on the CPU, any number on a GPU). The least recently used is dropped first; all others
    are if the GPU's memory runs out.

    Args:
        mode, stress, precision: As for CapturedStep.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        *,
        mode: str = "auto",
        stress: bool = False,
        precision: str | None = None,
        most_steps: int | None = None,
        most_memory: int | None = None,
    ) -> None:
        require_limits(most_steps, most_memory)
        self.potential = frozen(potential)
        self.most_steps, self.most_memory = chosen_limits(
            self.potential.device, most_steps, most_memory, MOST_CPU_STEPS
        )
        self.mode, self.stress, self.precision = mode, stress, precision
        self._slots: OrderedDict[_Key, _BatchSlot] = OrderedDict()
        self._asked: Counter[_Key] = Counter()  # evaluations of a size in a step of another
        self._held: _Held | None = None

    @property
    def steps(self) -> list[CapturedStep]:
        """The current steps, the most recently used last."""
        return [slot.step for slot in self._slots.values()]

    @property
    def device(self) -> torch.device:
        return self.potential.device

    @isolated
    def hold(self, batch: Batch) -> None:
        """Takes a batch on the potential's device: the atoms, systems and charges of the evaluations that follow.

        Raises what CapturedStep and its `assign` raise; then the pool holds no batch.
        """
        self._held = None
        own = self._own_key(batch)
        self._hold(batch, own, self._shared_key(own))

    def _hold(self, batch: Batch, own: _Key, key: _Key) -> _Held:
        try:
            slot = self._filled(batch, key)
        except OutOfDeviceMemory:
            if not self._slots:
                raise
            slot = None
        if slot is None:  # outside the handler, whose error refers to the memory
            self._slots.clear()
            slot = self._filled(batch, key)
        self._held = _Held(slot, batch.num_atoms, batch.num_systems, own)
        return self._held

    def _filled(self, batch: Batch, key: _Key) -> _BatchSlot:
        """The slot of this key, once its step holds the batch."""
        filled = padded_batch(batch, key[0], key[1], self.potential.cutoff)
        # Put back only once it holds the batch: an interruption below drops the step.
        slot = self._slots.pop(key, None)
        if slot is None:
            drop_for_one_more(self._slots, self.most_steps)
            slot = self._make(filled)
        else:
            slot.step.assign(filled)
            slot.positions.copy_(filled.positions)
            slot.cell.copy_(filled.cell)
        self._slots[key] = slot
        return slot

    @isolated
    def __call__(self, positions: Tensor, cell: Tensor | None, *, copy: bool = False) -> StepResult:
        """Results at positions [N,3] Å and cell [S,3,3] Å of the batch that it holds, on the potential's device.

        Args:
            cell: None for that of the last call, or of the batch. energy [S], forces [N,3] and optionally stress and
                spreads, as tensors: without `copy`, views of the step's buffers, valid until the next call.

        Raises:
            ValueError: Without a batch or for another size, and what CapturedStep raises.
        """
        if self._held is None:
            raise ValueError("a pool evaluates the batch that it holds: call hold before an evaluation")
        num_atoms, num_systems = self._held.num_atoms, self._held.num_systems
        if positions.shape != (num_atoms, 3) or (cell is not None and cell.shape != (num_systems, 3, 3)):
            raise ValueError(
                f"the pool holds {num_atoms} atoms in {num_systems} systems, got positions {list(positions.shape)} "
                f"and cell {None if cell is None else list(cell.shape)}"
            )
        slot = self._slot_of(self._held)
        slot.positions[:num_atoms].copy_(positions.detach())
        if cell is not None:
            slot.cell[:num_systems].copy_(cell.detach())
        result = self._evaluated(slot, copy)
        drop_until_they_fit(self._slots, slot, self.most_memory)

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
        return {**vars(self), "_slots": OrderedDict(), "_asked": Counter(), "_held": None}

    def _slot_of(self, held: _Held) -> _BatchSlot:
        """The slot for an evaluation: after OWN_AFTER evaluations, one of the batch's own size."""
        if self._slots.get(held.own) is held.slot:
            return held.slot
        self._asked[held.own] += 1
        if self._asked[held.own] <= OWN_AFTER:
            return held.slot
        batch = without_padding(held.slot.step.batch, held.num_atoms, held.num_systems)
        of_last_call = replace(batch, cell=held.slot.cell[: held.num_systems]).clone()
        own, self._held = held.own, None
        del held, batch  # if memory runs out, nothing else may refer to the step
        return self._hold(of_last_call, own, own).slot

    def _evaluated(self, slot: _BatchSlot, copy: bool) -> StepResult:
        try:
            return slot.step(slot.positions, slot.cell, copy=copy)
        except OutOfDeviceMemory:
            if len(self._slots) == 1:
                raise
        for key in [key for key, other in self._slots.items() if other is not slot]:
            del self._slots[key]
        return slot.step(slot.positions, slot.cell, copy=copy)

    def _own_key(self, batch: Batch) -> _Key:
        # A search without periodic directions is simpler, so periodic structures do not share steps with others.
        kind = (bool(batch.pbc.any()), batch.partial_charges is not None)
        exact = (batch.num_atoms, batch.num_systems, *kind)
        if exact in self._slots or not self._slots:
            return exact
        return (padded_atoms(batch.num_atoms), padded_atoms(batch.num_systems + 1), *kind)

    def _shared_key(self, own: _Key) -> _Key:
        """The key of the smallest step that serves batches of this one."""
        if own in self._slots or not self._shares or self._asked[own] >= OWN_AFTER:
            return own
        most = [MOST_PADDING * size for size in own[:2]]
        fits = [
            key
            for key in self._slots
            if key[2:] == own[2:] and own[0] <= key[0] <= most[0] and own[1] <= key[1] <= most[1]
        ]
        return min(fits, default=own)

    @property
    def _shares(self) -> bool:
        return self.potential.device.type == "cuda"

    def _make(self, filled: Batch) -> _BatchSlot:
        options = dict(mode=self.mode, stress=self.stress, precision=self.precision)
        step = CapturedStep(self.potential, filled, **options)  # type: ignore[arg-type]
        inputs = step.buffers.inputs  # without a GPU those of the host, too
        return _BatchSlot(step, inputs["positions"], inputs["cell"])
