"""The relaxation of a group of structures: batches of a fixed shape, which converged structures leave for new ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchmdx.dynamics.relaxation.endings import failed, relaxed, searchable
from torchmdx.dynamics.relaxation.evaluations import Evaluations, stress_needed
from torchmdx.dynamics.relaxation.fire import RUNNING, Fire, FireSettings
from torchmdx.dynamics.relaxation.lbfgs import Lbfgs
from torchmdx.dynamics.relaxation.slots import Slots
from torchmdx.dynamics.relaxation.tasks import RelaxationTask, Relaxed
from torchmdx.models.digest import origin_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.neighbors.capacity import CapacityError
from torchmdx.step.captured_step import CapturedStep
from torchmdx.step.padding import padded_atoms
from torchmdx.step.results import OutOfDeviceMemory
from torchmdx.structures.system import Batch

log = logging.getLogger(__name__)

# Atoms in a batch. More are hardly faster per atom, by benchmarks/relax.py.
BATCH_ATOMS = {"cuda": 4096, "cpu": 256}
# Steps between looks at what has ended. On a CPU looking costs nothing.
STEPS_A_LOOK = {"cuda": 5, "cpu": 1}
# New structures enter once more than this share of the atoms has ended.
IDLE_SHARE = {"cuda": 1 / 16, "cpu": 0.0}
# Looks after which those that have ended leave, however few they are.
MOST_LOOKS = 20
# A batch shrinks to what is left of it below this share, where nothing waits; a GPU has to capture a smaller step.
SHRUNK_SHARE = {"cuda": 1 / 8, "cpu": 0.75}
# The rows of the update, number of systems times atoms of the largest, in atoms of the batch.
MOST_ROWS = 16


class RelaxationBatches:
    """Relaxes tasks of one group; iterate over `run` once."""

    def __init__(
        self,
        potential: Potential | Ensemble,
        tasks: Sequence[RelaxationTask],
        settings: FireSettings,
        *,
        precision: str,
        mode: str = "auto",
        batch_atoms: int | None = None,
        stop: Callable[[], bool] = lambda: False,
        report: Callable[[str], None] = log.info,
    ) -> None:
        self.potential, self.settings, self.precision, self.mode = potential, settings, precision, mode
        self.queue, self.stop, self.kind = deque(tasks), stop, potential.device.type
        self.origin = origin_of(potential)
        self.wanted = batch_atoms or BATCH_ATOMS[self.kind]
        self.num_steps = self.num_batches = self.num_swaps = 0
        self.report = report
        self._looks = 0
        self._current = False  # whether the buffers hold the tasks of the slots
        self._slots: Slots | None = None
        self._evaluations: Evaluations | None = None

    def run(self) -> Iterator[Relaxed]:
        """Each structure when it has ended; stops early, between two steps, once `stop` says so."""
        if self.queue and self.kind == "cuda":
            self._limit_to_memory()
        while (self.queue or self._tasks()) and not self.stop():
            try:
                self._prepare()
                assert self._evaluations is not None
                self._evaluations.run(STEPS_A_LOOK[self.kind])
            except (OutOfDeviceMemory, CapacityError) as error:
                yield from self._divide(error)
                continue
            self.num_steps += STEPS_A_LOOK[self.kind]
            yield from self._finished()

    def _tasks(self) -> list[RelaxationTask]:
        return [] if self._slots is None else self._slots.tasks

    def _limit_to_memory(self) -> None:
        fitting = most_atoms(self.potential, list(self.queue), self.settings, self.precision)
        self.report(f"memory: batches of up to {fitting:,} atoms fit, by an estimate from a small batch")
        self.wanted = min(self.wanted, fitting)

    def _prepare(self) -> None:
        """After structures have left: lets new ones enter, or makes a smaller batch where nothing waits."""
        slots = self._slots
        if slots is None:
            self._make()
        elif not self._current:
            slots.take(self.queue)
            small = not self.queue and slots.used <= SHRUNK_SHARE[self.kind] * slots.num_atoms
            if not slots.tasks or (small and padded_atoms(slots.used) < slots.num_atoms):
                self._make()
            else:
                assert self._evaluations is not None
                self._evaluations.step.assign(slots.batch())
                self._current = True
                self.num_swaps += 1

    def _make(self) -> None:
        """A batch of a new shape, for the current structures and those that wait."""
        tasks = deque([*self._tasks(), *self.queue])
        sizes = [task.num_atoms for task in tasks]
        total, largest = sum(sizes), max(sizes)
        num_atoms = padded_atoms(total if total < self.wanted else max(self.wanted, largest))
        num_slots = min(len(tasks), num_atoms // min(sizes), max(1, MOST_ROWS * num_atoms // largest))
        self._evaluations = None  # frees its memory first
        kind = Lbfgs if self.settings.optimizer == "lbfgs" else Fire
        fire = kind(num_atoms, num_slots + 1, largest, self.potential.device, self.settings)
        slots = Slots(num_atoms, num_slots, fire, self.potential.cutoff)
        slots.take(tasks)
        self._slots, self.queue, self._current = slots, tasks, False
        self._evaluations = Evaluations(self.potential, slots.batch(), fire, self.precision, self.mode)
        self._current = True
        self.num_batches += 1
        if self.num_batches > 1 and self.kind == "cpu":
            return  # shrunk, which costs nothing there
        memory = self._evaluations.step.memory_bytes()
        text = f", {memory / 2**30:.2f} GiB" if memory else ""
        self.report(f"batch of {num_atoms:,} atoms in up to {num_slots:,} structures{text}")

    def _finished(self) -> Iterator[Relaxed]:
        """Takes structures that have ended out of the batch, once there are enough of them or some time has passed."""
        slots, evaluations = self._slots, self._evaluations
        assert slots is not None
        assert evaluations is not None
        status = slots.fire.status.tolist()
        ended = sum(task.num_atoms for task, state in zip(slots.tasks, status, strict=False) if state != RUNNING)
        self._looks += 1
        enough = ended > IDLE_SHARE[self.kind] * slots.num_atoms or ended == slots.used
        if not ended or not (enough or self._looks >= MOST_LOOKS):
            return
        self._looks = 0
        slots.store()
        results: dict[str, Any] = {name: value.numpy() for name, value in evaluations.results().items()}
        found = slots.pop_finished()
        self._current = False
        for slot, first, task in found:
            yield relaxed(task, self.settings, results, slot, first, self.origin)

    def _divide(self, error: Exception) -> Iterator[Relaxed]:
        """After a batch did not fit: fails structures that do not fit alone, or continues with half as many atoms."""
        slots = self._slots
        assert slots is not None
        if self._current:
            slots.store()
        tasks = slots.tasks
        alone = [task for task in tasks if not searchable(task, self.potential)]
        if not alone:
            largest = max(tasks, key=lambda task: task.num_atoms)
            if len(tasks) == 1 or self.wanted <= largest.num_atoms:
                alone = [largest]
            else:
                self.wanted = min(self.wanted, slots.num_atoms) // 2
                self.report(f"a batch of {slots.num_atoms:,} atoms did not fit, {self.wanted:,} follow: {error}")
        self.queue.extendleft(reversed([task for task in tasks if task not in alone]))
        self._slots = self._evaluations = None
        for task in alone:
            yield failed(task.index, task.atoms, str(error))


# Atoms in the small batch; fewer say little about a large one, since some buffers have a least size.
PROBE_ATOMS = 256
# Of the free memory: a list of neighbours can grow, and a capture needs memory besides.
SHARE = 0.6


def most_atoms(
    potential: Potential | Ensemble, tasks: Sequence[RelaxationTask], settings: FireSettings, precision: str
) -> int:
    """Atoms of a batch that fits, at least those of the largest task. The potential must be on a GPU."""
    probe = probe_tasks(tasks)
    device = potential.device
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    batch = Batch.from_systems([task.system for task in probe])
    step = CapturedStep(potential, batch, mode="eager", stress=stress_needed(batch, settings), precision=precision)
    step(batch.positions, batch.cell)
    taken = torch.cuda.max_memory_allocated(device) - before
    del step
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return scaled(taken, batch.num_atoms, free + cached, largest=max(task.num_atoms for task in tasks))


def probe_tasks(tasks: Sequence[RelaxationTask]) -> list[RelaxationTask]:
    """Some of the tasks, evenly spread over all, with about PROBE_ATOMS atoms; at least one."""
    mean = sum(task.num_atoms for task in tasks) / len(tasks)
    wanted = max(1, min(len(tasks), round(PROBE_ATOMS / mean)))
    chosen = [tasks[k * len(tasks) // wanted] for k in range(wanted)]
    while len(chosen) > 1 and sum(task.num_atoms for task in chosen) > 2 * PROBE_ATOMS:
        chosen = chosen[1:]  # the largest come first
    return chosen


def scaled(taken: int, num_atoms: int, free: int, *, largest: int) -> int:
    """Atoms that fit into SHARE of the free bytes, if num_atoms atoms took `taken`; at least `largest`."""
    return max(largest, int(SHARE * free / max(taken / num_atoms, 1)))
