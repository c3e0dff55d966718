from types import SimpleNamespace

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms

from torchmdx import relax
from torchmdx.dynamics.relaxation.batches import PROBE_ATOMS, SHARE, RelaxationBatches, probe_tasks, scaled
from torchmdx.dynamics.relaxation.evaluations import Evaluations
from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.tasks import groups_of, task_of
from torchmdx.neighbors.capacity import CapacityError
from torchmdx.step.results import OutOfDeviceMemory

SETTINGS = FireSettings(fmax=0.3)


def tasks_of(potential, names=("CH3CH2OH", "H2O", "NH3", "CH4", "C2H6", "H2CO", "H2O", "NH3")) -> list:
    structures = [ase.build.molecule(name) for name in names]
    for k, atoms in enumerate(structures):
        atoms.rattle(0.03, seed=k)
    return groups_of([task_of(k, atoms, potential, SETTINGS, None) for k, atoms in enumerate(structures)])[0]


def test_structures_that_end_are_replaced_in_the_same_step(potential, monkeypatch):
    monkeypatch.setitem(RelaxationBatches.__init__.__globals__["SHRUNK_SHARE"], "cpu", 0.0)
    batches = RelaxationBatches(potential, tasks_of(potential), SETTINGS, precision="float64", batch_atoms=20)
    found = list(batches.run())
    assert sorted(one.index for one in found) == list(range(8))
    assert batches.num_batches == 1
    assert batches.num_swaps >= 2
    assert max(len(one.atoms) for one in found) == 9


def test_a_batch_shrinks_at_the_end(potential):
    batches = RelaxationBatches(potential, tasks_of(potential), SETTINGS, precision="float64")
    assert len(list(batches.run())) == 8
    assert batches.num_batches > 1


def test_out_of_memory_halves_the_batch(potential, monkeypatch):
    sizes, original = [], Evaluations.__init__

    def limited(self, model, batch, *rest) -> None:
        sizes.append(batch.num_atoms)
        if batch.num_atoms > 16:
            raise OutOfDeviceMemory("no memory")
        original(self, model, batch, *rest)

    monkeypatch.setattr(Evaluations, "__init__", limited)
    lines: list[str] = []
    batches = RelaxationBatches(potential, tasks_of(potential), SETTINGS, precision="float64", report=lines.append)
    found = list(batches.run())
    assert sizes[0] > 32
    assert sum(size > 16 for size in sizes) == 2
    assert all(one.converged for one in found)
    assert "did not fit" in lines[0]


def test_a_structure_that_never_fits_fails_alone(potential, monkeypatch):
    original = Evaluations.__init__

    def limited(self, model, batch, *rest) -> None:
        if int(batch.counts()[:-1].max()) > 8:
            raise OutOfDeviceMemory("no memory for nine atoms")
        original(self, model, batch, *rest)

    monkeypatch.setattr(Evaluations, "__init__", limited)
    found = list(RelaxationBatches(potential, tasks_of(potential), SETTINGS, precision="float64").run())
    assert len(found) == 8
    failures = [one for one in found if not one.converged]
    assert [(one.index, one.reason) for one in failures] == [(0, "no memory for nine atoms")]


def test_a_neighbour_list_that_cannot_be_made_fails_its_structure(potential, monkeypatch):
    original = Evaluations.run

    def limited(self, count: int) -> None:
        if any(task.index == 3 for task in batches._tasks()):
            raise CapacityError("too many neighbours")
        original(self, count)

    monkeypatch.setattr(Evaluations, "run", limited)
    tasks = tasks_of(potential)
    monkeypatch.setattr("torchmdx.dynamics.relaxation.batches.searchable", lambda task, model: task.index != 3)
    batches = RelaxationBatches(potential, tasks, SETTINGS, precision="float64")
    found = list(batches.run())
    assert sorted(one.index for one in found) == list(range(8))
    assert [(one.index, one.reason) for one in found if not one.converged] == [(3, "too many neighbours")]


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_what_is_searchable(potential, scale):
    from torchmdx.dynamics.relaxation.endings import searchable

    atoms = Atoms("C2", [[0, 0, 0], [1, 1, 1]], cell=[3, 3, 3], pbc=True)
    task = task_of(0, atoms, potential, SETTINGS, None)
    task.values["cell"] = task.values["cell"] * scale
    assert searchable(task, potential) == (scale == 1.0)


@pytest.mark.gpu
# L-BFGS divides by differences of forces, so its paths in float32 and float64 part sooner than those of FIRE.
@pytest.mark.parametrize(("optimizer", "steps", "apart"), [("fire", 12, 2e-3), ("lbfgs", 6, 1e-2)])
@pytest.mark.parametrize("cell", [False, True])
def test_a_gpu_replays_graphs_and_takes_the_same_steps(trained, cell, optimizer, steps, apart):
    settings = FireSettings(fmax=1e-6, steps=steps, cell=cell, optimizer=optimizer)
    structures = []
    for k in range(60):
        atoms = ase.build.bulk("C", "diamond", a=3.6, cubic=k % 2 == 0) * (1, 1, 1 + k % 3)
        atoms.rattle(0.05, seed=k)
        structures.append(atoms)
    potential = trained("cuda", torch.float32)
    tasks = [task_of(k, atoms, potential, settings, None) for k, atoms in enumerate(structures)]
    batches = RelaxationBatches(
        potential, groups_of(tasks)[0], settings, precision="float32", batch_atoms=128, mode="graph"
    )
    replayed, found = 0, []
    for one in batches.run():
        replayed = max(replayed, batches._evaluations.num_replayed)
        found.append(one)
    assert replayed > 0
    assert batches.num_swaps > 0
    options = dict(fmax=1e-6, steps=steps, cell=cell, optimizer=optimizer)
    expected = relax(structures, trained("cuda", torch.float64), dtype="float64", **options)
    for one in found:
        other = expected[one.index]
        assert one.num_steps == other.num_steps
        np.testing.assert_allclose(one.atoms.positions, other.atoms.positions, atol=apart)
        assert one.atoms.get_potential_energy() == pytest.approx(other.atoms.get_potential_energy(), abs=0.02)


def tasks(sizes) -> list:
    return [SimpleNamespace(num_atoms=size) for size in sizes]


def test_a_probe_holds_some_atoms_of_all_sizes():
    found = probe_tasks(tasks(sorted(list(range(8, 41)) * 30, reverse=True)))
    sizes = [task.num_atoms for task in found]
    assert PROBE_ATOMS / 2 < sum(sizes) < 2 * PROBE_ATOMS
    assert max(sizes) - min(sizes) > 20
    assert [task.num_atoms for task in probe_tasks(tasks([5000]))] == [5000]
    assert sum(task.num_atoms for task in probe_tasks(tasks([3000, 2, 2, 2]))) in (3000, 2, 4, 6)


def test_an_estimate_is_proportional_and_never_below_the_largest():
    assert scaled(1000, 10, 10**6, largest=5) == int(SHARE * 10**4)
    assert scaled(1000, 10, 100, largest=7) == 7
