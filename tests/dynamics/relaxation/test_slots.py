from collections import deque

import ase.build
import numpy as np
import torch
from ase import Atoms

from torchmdx.dynamics.relaxation.fire import CONVERGED, EMPTY, RUNNING, Fire, FireSettings
from torchmdx.dynamics.relaxation.slots import Slots
from torchmdx.dynamics.relaxation.tasks import RelaxationTask, task_of


def tasks_of(potential, sizes) -> deque[RelaxationTask]:
    settings = FireSettings()
    structures = [Atoms(f"C{n}", 2.0 * np.arange(3 * n).reshape(n, 3)) for n in sizes]
    return deque(task_of(k, atoms, potential, settings, None) for k, atoms in enumerate(structures))


def slots_of(num_atoms: int, num_slots: int, most_rows: int = 8) -> Slots:
    fire = Fire(num_atoms, num_slots + 1, most_rows, torch.device("cpu"), FireSettings())
    return Slots(num_atoms, num_slots, fire, 4.0)


def test_tasks_enter_as_long_as_atoms_and_slots_remain(potential):
    slots, queue = slots_of(12, 3), tasks_of(potential, [8, 6, 3, 2, 1])
    assert slots.take(queue) == 3
    assert [task.index for task in slots.tasks] == [0, 2, 4]
    assert [task.index for task in queue] == [1, 3]  # those that were too large keep their places
    assert slots.used == 12
    assert slots.take(queue) == 0
    slots.tasks.pop(0)
    assert slots.take(queue) == 1  # there is room for another atom pair, but no slot
    assert [task.index for task in queue] == [3]


def test_the_batch_has_its_shape_whatever_it_holds(potential):
    slots, queue = slots_of(12, 4), tasks_of(potential, [3, 5])
    slots.take(queue)
    batch = slots.batch()
    assert (batch.num_atoms, batch.num_systems) == (12, 5)
    assert batch.counts().tolist() == [3, 5, 0, 0, 4]
    assert slots.fire.status.tolist() == [RUNNING, RUNNING, EMPTY, EMPTY, EMPTY]
    assert slots.fire.rows.tolist()[:2] == [[0, 1, 2, 12, 12, 12, 12, 12], [3, 4, 5, 6, 7, 12, 12, 12]]
    assert (slots.fire.rows[2:] == 12).all()
    padding = batch.positions[8:]
    distances = torch.cdist(padding, padding) + 100 * torch.eye(4)
    assert distances.min() > 4.0


def test_state_moves_with_its_task(potential):
    slots, queue = slots_of(10, 3), tasks_of(potential, [4, 3, 2])
    slots.take(queue)
    slots.batch()
    fire = slots.fire
    fire.velocities.copy_(torch.arange(30.0).reshape(10, 3))
    fire.steps.copy_(torch.tensor([7, 8, 9, 0]))
    fire.status.copy_(torch.tensor([RUNNING, CONVERGED, RUNNING, EMPTY]))
    slots.store()
    ((slot, first, task),) = slots.pop_finished()
    assert (slot, first, task.index) == (1, 4, 1)
    assert task.values["steps"] == 8
    slots.batch()
    assert fire.steps.tolist() == [7, 9, 0, 0]
    assert fire.velocities[4:6].tolist() == [[21.0, 22.0, 23.0], [24.0, 25.0, 26.0]]
    assert (fire.velocities[6:] == 0).all()


def test_periodicity_and_charge_are_those_of_each_task(potential):
    crystal = ase.build.bulk("C", "fcc", a=3.0)
    ion = Atoms("C", [[0, 0, 0]], info={"charge": -1})
    settings = FireSettings()
    slots = slots_of(8, 2)
    slots.tasks = [task_of(k, atoms, potential, settings, None) for k, atoms in enumerate((crystal, ion))]
    batch = slots.batch()
    assert batch.pbc.all(-1).tolist() == [True, False, False]
    assert batch.charge.tolist() == [0.0, -1.0, 0.0]
    torch.testing.assert_close(batch.cell[0], torch.from_numpy(crystal.cell.array))
