"""StepPool: structures of many sizes, evaluated by captured steps of a few padded sizes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.engines.registry import require_engine
from torchmdx.models.ensemble import Ensemble, frozen
from torchmdx.models.potential import Potential
from torchmdx.runtime.thread_lock import ThreadLock, one_thread_at_a_time
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.device_memory import checked_memory
from torchmdx.step.kept_steps import chosen_limits, drop_for_one_more, drop_until_they_fit, require_limits
from torchmdx.step.padding import padded, padded_size
from torchmdx.step.report import StepReport
from torchmdx.step.results import OutOfDeviceMemory, StepResult
from torchmdx.step.standby import Standby, kernels_for, may_stand_by
from torchmdx.step.state import checked_precision
from torchmdx.structures.system import Batch, System

# Steps that are kept on the CPU, where making another costs little.
MOST_CPU_STEPS = 8
# Up to this number of atoms a GPU has a multiprocessor for each, and a step of twice the atoms takes hardly longer.
SHARED_UP_TO = 128
# A size that was asked for so often gets a step of its own: its capture then costs less than it saves.
OWN_AFTER = 4000

_Key = tuple[int, bool, bool]  # atoms with padding, whether periodic, whether partial charges are given


@dataclass(eq=False)
class _Slot:
    """A step, and the structure that it currently holds. system: the one that was given last."""

    step: CapturedStep
    system: System | None = None
    num_bytes: int = 0
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    pbc: np.ndarray = field(default_factory=lambda: np.zeros(3, dtype=bool))
    charge: float = 0.0
    partial_charges: np.ndarray | None = None

    def __post_init__(self) -> None:
        # Views of the step's own input: values that are written there are not copied once more.
        self.inputs = self.step.buffers.host_inputs
        self.positions, self.cell = (self.inputs[name].numpy() for name in ("positions", "cell"))

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

    Example::

        pool = StepPool(potential)
        for atoms in many:
            result = pool(System.from_ase(atoms))

    On a GPU a structure of up to LARGEST_PADDED atoms shares a step, and its graph, with others of about its size. Few
    atoms, up to SHARED_UP_TO, also use a step of up to twice their size if there is one, until their own size was
    requested OWN_AFTER times: a capture takes as long as thousands of evaluations. Padding atoms form a system of
    their own without neighbours, and change results by rounding at most.

    Steps are kept while together they take at most `most_memory` bytes of the GPU (None: a quarter of it), and at most
    `most_steps` of them (None: 8 on the CPU, any number on a GPU). The least recently used is dropped first; all others
    are if the GPU's memory runs out.

    With TORCHMDX_STANDBY=1 in the environment and mode="auto" on a GPU, the first result of up to 3,000 atoms does not
    wait for kernels that this machine has never compiled: it comes from the exact model, and `report().why` says so.

    Args:
        mode, stress, precision, audit_every, engine, uncertainty, max_memory: As for CapturedStep. Threads that share a
            pool take turns. A copy or a pickle of a pool has its potential and settings, without steps.
    """

    def __init__(
        self,
        potential: Potential | Ensemble,
        *,
        mode: str = "auto",
        stress: bool = False,
        precision: str | None = None,
        audit_every: int = 0,
        most_steps: int | None = None,
        most_memory: int | None = None,
        engine: str | None = None,
        uncertainty: bool = False,
        max_memory: int | None = None,
    ) -> None:
        require_engine(engine)
        self.max_memory = checked_memory(max_memory, potential.device)
        require_limits(most_steps, most_memory)
        self.lock = ThreadLock()
        self.potential = frozen(potential)
        self.most_steps, self.most_memory = chosen_limits(
            self.potential.device, most_steps, most_memory, MOST_CPU_STEPS
        )
        self.mode, self.stress, self.precision, self.audit_every = mode, stress, precision, audit_every
        self.engine, self.uncertainty = engine, uncertainty
        self._slots: OrderedDict[_Key, _Slot] = OrderedDict()
        self._asked: Counter[_Key] = Counter()  # evaluations of a size in a step of another
        self._standby = self._new_standby()

    def report(self) -> StepReport | None:
        """Of the last evaluation; None before the first."""
        if self._standby is not None and self._standby.report is not None:
            return self._standby.report
        return self.steps[-1].report() if self._slots else None

    def __call__(self, system: System, positions: NDArray[np.float64] | None = None) -> StepResult:
        """energy [1], energies [N], forces [N,3], optionally stress [1,3,3], spreads of an ensemble; as NumPy arrays.

        Args:
            system: On the CPU, in float64 so that no coordinate is rounded before the step has centred it.
            positions: Finite numbers [N,3] instead of the system's. A system that is given with them repeatedly is
                compared only once: its other values must not have changed. Raises what CapturedStep raises.
        """
        if positions is not None and positions.shape != system.positions.shape:
            raise ValueError(f"positions must have shape {list(system.positions.shape)}, got {list(positions.shape)}")
        key = self._key(system)
        try:
            return self._evaluate(system, positions, key)
        except OutOfDeviceMemory:
            if not self._slots.keys() - {key}:
                raise
        self.clear()
        return self._evaluate(system, positions, key)

    def _first(self, system: System, positions: NDArray[np.float64] | None, key: _Key) -> StepResult | None:
        """Results of the exact model, if the kernels of a size have to be compiled first; else None.

        Takes over a step that has been made meanwhile.
        """
        standby = self._standby
        if standby is None:
            return None
        standby.report = None
        if (made := standby.made()) is not None:
            drop_for_one_more(self._slots, self.most_steps)
            self._slots[made[0]] = made[1]
        if key in self._slots:
            return None
        given = system if positions is None else system.at(positions)
        batch = padded(given, key[0], self.potential.cutoff)
        precision = checked_precision(self.potential, self.precision)

        def kernels() -> str | None:
            return kernels_for(standby.potential, batch, stress=self.stress, precision=precision)

        if (name := standby.is_needed(kernels, system.num_atoms)) is None:
            return None
        if (found := standby.evaluate(given)) is not None:  # first, because threads that compile would slow it down
            standby.begin(key, name, lambda: self._prepared(given, key))
        return found

    def _prepared(self, system: System, key: _Key) -> _Slot:
        """A slot that holds a system and has evaluated it, so that its kernels are compiled."""
        slot = self._filled(None, system, key)
        slot.step(slot.inputs["positions"], slot.inputs["cell"], copy=False)
        return slot

    def _evaluate(self, system: System, positions: NDArray[np.float64] | None, key: _Key) -> StepResult:
        if (first := self._first(system, positions, key)) is not None:
            return first
        slot = self._slot(system, positions, key)
        count = system.num_atoms
        slot.positions[:count] = system.positions.numpy() if positions is None else positions
        slot.cell[0] = system.cell.numpy()
        result = slot.step(slot.inputs["positions"], slot.inputs["cell"], copy=False)
        drop_until_they_fit(self._slots, slot, self.most_memory)
        return StepResult(
            energy=result.energy[:1].copy(),
            forces=result.forces[:count].copy(),
            energies=result.energies[:count].copy(),
            stress=None if result.stress is None else result.stress[:1].copy(),
            energy_spread=None if result.energy_spread is None else result.energy_spread[:1].copy(),
            force_spread=None if result.force_spread is None else result.force_spread[:count].copy(),
            energy_uncertainty=None if result.energy_uncertainty is None else result.energy_uncertainty[:1].copy(),
            energies_uncertainty=(
                None if result.energies_uncertainty is None else result.energies_uncertainty[:count].copy()
            ),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_slots": OrderedDict(), "_asked": Counter(), "_standby": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._standby = self._new_standby()

    def _new_standby(self) -> Standby[_Key, _Slot] | None:
        if not may_stand_by(self.potential, self.mode, self.engine) or isinstance(self.potential, Ensemble):
            return None
        return Standby(self.potential, stress=self.stress)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def steps(self) -> list[CapturedStep]:
        """The current steps, the most recently used last."""
        return [slot.step for slot in self._slots.values()]

    def clear(self) -> None:
        """Drops every step and frees its memory."""
        self._slots.clear()
        if self._standby is not None:
            self._standby.forget()

    def _key(self, system: System) -> _Key:
        """Of the step that evaluates a structure: its own, or one of up to twice its size."""
        # A search without periodic directions is simpler, so periodic structures do not share steps with others.
        kind = bool(system.pbc.any()), system.partial_charges is not None
        own = (self._size(system.num_atoms), *kind)
        if own in self._slots or not self._pads or self._asked[own] >= OWN_AFTER:
            return own
        most = min(2 * own[0], SHARED_UP_TO)
        key = min((key for key in self._slots if key[1:] == kind and own[0] < key[0] <= most), default=own)
        self._asked[own] += key != own
        return key

    def _slot(self, system: System, positions: NDArray[np.float64] | None, key: _Key) -> _Slot:
        """The slot of a step that holds the system."""
        # Put back only once it holds the system: an interruption below drops the step.
        slot = self._slots.pop(key, None)
        if slot is None:
            drop_for_one_more(self._slots, self.most_steps)
        known = slot is not None and positions is not None and slot.system is system
        if slot is None or not (known or slot.holds(system)):
            slot = self._filled(slot, system if positions is None else system.at(positions), key)
        slot.system = system
        self._slots[key] = slot
        return slot

    def _filled(self, slot: _Slot | None, system: System, key: _Key) -> _Slot:
        """The slot, or a new one, after its step has taken the system."""
        batch = padded(system, key[0], self.potential.cutoff)
        if slot is None:
            slot = _Slot(self._make_step(batch))
        else:
            slot.step.assign(batch)
        slot.numbers, slot.pbc = system.atomic_numbers.numpy().copy(), system.pbc.numpy().copy()
        slot.charge = system.charge
        slot.partial_charges = None if system.partial_charges is None else system.partial_charges.numpy().copy()
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
            engine=self.engine,
            uncertainty=self.uncertainty,
            max_memory=self.max_memory,
        )

    @property
    def _pads(self) -> bool:
        return self.potential.device.type == "cuda"

    def _size(self, count: int) -> int:
        return padded_size(count) if self._pads else count


def _same(held: np.ndarray | None, given: Tensor | None) -> bool:
    if held is None or given is None:
        return held is None and given is None
    return np.array_equal(held, given.numpy())
