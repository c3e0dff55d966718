"""StepPool: structures of many sizes, evaluated by captured steps of a few padded sizes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import padded, padded_size
from torchmdx.step.results import StepResult
from torchmdx.system import Batch, System


@dataclass(eq=False)
class _Slot:
    """A step, and the structure that it currently holds."""

    step: CapturedStep
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    pbc: np.ndarray = field(default_factory=lambda: np.zeros(3, dtype=bool))
    charge: float = 0.0
    partial_charges: np.ndarray | None = None
    positions: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))

    def holds(self, system: System) -> bool:
        return (
            len(self.numbers) == system.num_atoms
            and self.charge == system.charge
            and np.array_equal(self.numbers, system.atomic_numbers.numpy())
            and np.array_equal(self.pbc, system.pbc.numpy())
            and _same(self.partial_charges, system.partial_charges)
        )


@one_thread_at_a_time("__call__", "clear")
class StepPool:
    """Evaluates structures of any size with steps of a few padded sizes; creates and drops steps as needed.

        pool = StepPool(potential)
        for atoms in many:
            result = pool(System.from_ase(atoms))

    On a GPU a structure of up to LARGEST_PADDED atoms shares a step, and its graph, with others of about its size.
    Padding atoms form a system of their own without neighbours, and do not change any result. Steps hold device memory;
    at most `most_steps` are kept, and the least recently used is dropped first.

    mode, stress, precision, audit_every: as for CapturedStep. Threads that share a pool take turns. A copy or a
    pickle of a pool has its potential and settings, without steps.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        *,
        mode: str = "auto",
        stress: bool = False,
        precision: str | None = None,
        audit_every: int = 0,
        most_steps: int = 8,
    ) -> None:
        if most_steps < 1:
            raise ValueError(f"most_steps must be >= 1, got {most_steps}")
        self.lock = ThreadLock()
        self.potential, self.most_steps = frozen(potential), most_steps
        self.mode, self.stress, self.precision, self.audit_every = mode, stress, precision, audit_every
        self._slots: OrderedDict[tuple[int, bool, bool], _Slot] = OrderedDict()

    def __call__(self, system: System) -> StepResult:
        """energy [1], energies [N], forces [N,3], optionally stress [1,3,3], spreads of an ensemble; as NumPy arrays.

        system: on the CPU, in float64 so that no coordinate is rounded before the step has centred it. Raises what
        CapturedStep raises.
        """
        slot = self._slot(system)
        count = system.num_atoms
        slot.positions[:count] = system.positions.numpy()
        cell = np.zeros((slot.step.batch.num_systems, 3, 3))
        cell[0] = system.cell.numpy()
        result = slot.step(slot.positions, cell)
        return StepResult(
            energy=result.energy[:1],
            forces=result.forces[:count],
            energies=result.energies[:count],
            stress=None if result.stress is None else result.stress[:1],
            energy_spread=None if result.energy_spread is None else result.energy_spread[:1],
            force_spread=None if result.force_spread is None else result.force_spread[:count],
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_slots": OrderedDict()}

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def steps(self) -> list[CapturedStep]:
        """The current steps, the most recently used last."""
        return [slot.step for slot in self._slots.values()]

    def clear(self) -> None:
        """Drops every step and frees its memory."""
        self._slots.clear()

    def _slot(self, system: System) -> _Slot:
        # A search without periodic directions is simpler, so periodic structures do not share steps with others.
        key = (self._size(system.num_atoms), bool(system.pbc.any()), system.partial_charges is not None)
        # Put back only once it holds the system: an interruption below drops the step.
        slot = self._slots.pop(key, None)
        if slot is not None and slot.holds(system):
            self._slots[key] = slot
            return slot
        batch = padded(system, key[0], self.potential.cutoff)
        if slot is None:
            while len(self._slots) >= self.most_steps:
                self._slots.popitem(last=False)
            slot = _Slot(self._make_step(batch))
        else:
            slot.step.assign(batch)
        slot.numbers, slot.pbc = system.atomic_numbers.numpy().copy(), system.pbc.numpy().copy()
        slot.charge, slot.positions = system.charge, batch.positions.numpy().copy()
        slot.partial_charges = None if system.partial_charges is None else system.partial_charges.numpy().copy()
        self._slots[key] = slot
        return slot

    def _make_step(self, batch: Batch) -> CapturedStep:
        return CapturedStep(
            self.potential,
            batch,
            mode=self.mode,
            stress=self.stress,
            energies=True,
            precision=self.precision,
            audit_every=self.audit_every,
        )

    def _size(self, count: int) -> int:
        return padded_size(count) if self.potential.device.type == "cuda" else count


def _same(held: np.ndarray | None, given: Tensor | None) -> bool:
    if held is None or given is None:
        return held is None and given is None
    return np.array_equal(held, given.numpy())
