"""A batch of a fixed number of atoms and systems, whose structures change: the last system is padding."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from torchmdx.dynamics.relaxation.fire import EMPTY, RUNNING, Fire
from torchmdx.dynamics.relaxation.tasks import RelaxationTask
from torchmdx.step.padding import padding_positions
from torchmdx.structures.system import Batch

# Structures that a search for one that fits looks at.
LOOK_AHEAD = 200


class Slots:
    """Tasks in the slots of a batch of num_atoms atoms and num_slots systems, with a system of padding atoms."""

    def __init__(self, num_atoms: int, num_slots: int, fire: Fire, cutoff: float) -> None:
        self.num_atoms, self.num_slots, self.fire = num_atoms, num_slots, fire
        self.tasks: list[RelaxationTask] = []
        self._padding = padding_positions(num_atoms, cutoff)

    @property
    def used(self) -> int:
        """Atoms of the tasks."""
        return sum(task.num_atoms for task in self.tasks)

    def take(self, queue: deque[RelaxationTask]) -> int:
        """Moves tasks that fit from a queue into free slots; returns how many."""
        room, slots = self.num_atoms - self.used, self.num_slots - len(self.tasks)
        passed: list[RelaxationTask] = []
        taken = 0
        while queue and room and taken < slots and len(passed) < LOOK_AHEAD:
            task = queue.popleft()
            if task.num_atoms <= room:
                self.tasks.append(task)
                room, taken = room - task.num_atoms, taken + 1
            else:
                passed.append(task)
        queue.extendleft(reversed(passed))
        return taken

    def batch(self) -> Batch:
        """The structures at their current positions, on the CPU; fills the buffers of `fire` with their state."""
        tasks, empty = self.tasks, self.num_slots + 1 - len(self.tasks)
        counts = [task.num_atoms for task in tasks]
        missing = self.num_atoms - sum(counts)
        index = np.repeat(np.append(np.arange(len(tasks)), self.num_slots), [*counts, missing])
        values = {name: self._of_systems(name, empty) for name in self.fire.OF_SYSTEMS}
        for name in self.fire.OF_ATOMS:
            buffer = getattr(self.fire, name)
            shape, kind = tuple(buffer.shape[1:]), bool if name == "free" else np.float64
            rest = self._padding[:missing].numpy() if name == "positions" else np.zeros((missing, *shape), kind)
            parts = [task.values.get(name, np.zeros((task.num_atoms, *shape), kind)) for task in tasks]
            values[name] = torch.from_numpy(np.concatenate([*parts, rest]))
        values["system_index"] = torch.from_numpy(index)
        values["rows"] = self._rows(counts)
        self.fire.load(values)
        return self._batch_of(values, missing)

    def _of_systems(self, name: str, empty: int) -> torch.Tensor:
        """A value of each slot; tasks that have not begun may lack it, which is zero then."""
        buffer = getattr(self.fire, name)
        none = np.zeros(tuple(buffer.shape[1:]))
        filling = EMPTY if name == "status" else none
        found = [task.values.get(name, none) for task in self.tasks]
        return torch.from_numpy(np.asarray([*found, *[filling] * empty]))

    def _batch_of(self, values: dict[str, torch.Tensor], missing: int) -> Batch:
        systems = [task.system for task in self.tasks]
        empty = self.num_slots + 1 - len(systems)
        filling = systems[0].atomic_numbers[:1].expand(missing)
        given = None
        if systems[0].partial_charges is not None:
            charges = [system.partial_charges for system in systems if system.partial_charges is not None]
            given = torch.cat([*charges, charges[0].new_zeros(missing)])
        return Batch(
            positions=values["positions"],
            atomic_numbers=torch.cat([*(system.atomic_numbers for system in systems), filling]),
            system_index=values["system_index"],
            cell=values["cell"],
            pbc=torch.stack([*(system.pbc for system in systems), *[torch.zeros_like(systems[0].pbc)] * empty]),
            charge=values["positions"].new_tensor([*(system.charge for system in systems), *[0.0] * empty]),
            partial_charges=given,
        )

    def _rows(self, counts: Sequence[int]) -> torch.Tensor:
        """The atoms of each system [S,M], filled up with N."""
        rows = np.full(tuple(self.fire.rows.shape), self.num_atoms)
        first = 0
        for slot, count in enumerate(counts):
            rows[slot, :count] = np.arange(first, first + count)
            first += count
        return torch.from_numpy(rows)

    def store(self) -> None:
        """Copies the state in the buffers of `fire` back into the tasks."""
        fire = self.fire
        held = {name: getattr(fire, name).cpu().numpy() for name in (*fire.OF_ATOMS, *fire.OF_SYSTEMS)}
        first = 0
        for slot, task in enumerate(self.tasks):
            last = first + task.num_atoms
            for name in fire.OF_ATOMS:
                task.values[name] = held[name][first:last].copy()
            for name in fire.OF_SYSTEMS:
                task.values[name] = held[name][slot].copy()
            first = last

    def pop_finished(self) -> list[tuple[int, int, RelaxationTask]]:
        """(slot, first atom, task) of the stored tasks that have ended, which leave."""
        found, kept, first = [], [], 0
        for slot, task in enumerate(self.tasks):
            if task.values["status"] == RUNNING:
                kept.append(task)
            else:
                found.append((slot, first, task))
            first += task.num_atoms
        self.tasks = kept
        return found
