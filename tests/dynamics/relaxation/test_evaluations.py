import ase.build
import numpy as np
import pytest
import torch

from torchmdx.dynamics.relaxation import evaluations as module
from torchmdx.dynamics.relaxation.evaluations import Evaluations
from torchmdx.dynamics.relaxation.fire import NOT_FINITE, RUNNING, Fire, FireSettings
from torchmdx.dynamics.relaxation.slots import Slots
from torchmdx.dynamics.relaxation.tasks import task_of
from torchmdx.step import capture_policy


class Recorded:
    """Stands for a CUDA graph on a CPU: runs its work as a recording does, and again at every replay."""

    def __init__(self, work, device) -> None:
        self.work, self.device = work, device
        for _ in range(3):
            work()

    def replay(self) -> None:
        self.work()


def evaluations_of(potential, structures, **settings) -> tuple[Evaluations, Slots]:
    chosen = FireSettings(**{"fmax": 0.05, **settings})
    tasks = [task_of(k, atoms, potential, chosen, None) for k, atoms in enumerate(structures)]
    total = sum(task.num_atoms for task in tasks) + 5
    fire = Fire(total, len(tasks) + 2, max(task.num_atoms for task in tasks), torch.device("cpu"), chosen)
    slots = Slots(total, len(tasks) + 1, fire, potential.cutoff)
    slots.tasks = tasks
    return Evaluations(potential, slots.batch(), fire, "float64", "auto"), slots


def molecules() -> list:
    found = [ase.build.molecule(name) for name in ("CH3CH2OH", "H2O", "NH3")]
    for k, atoms in enumerate(found):
        atoms.rattle(0.05, seed=k)
    return found


def with_graph(evaluations: Evaluations, monkeypatch) -> Evaluations:
    """As after a capture: what is replayed is what a GPU would."""
    monkeypatch.setattr(module, "Graph", Recorded)
    monkeypatch.setattr(capture_policy, "Graph", Recorded)
    step = evaluations.step
    step.policy.graphs["device"] = Recorded(lambda: step._launch("device"), step.device)
    return evaluations


def test_replays_are_the_same_steps_as_launches(potential, monkeypatch):
    launched, _ = evaluations_of(potential, molecules())
    replayed, _ = evaluations_of(potential, molecules())
    with_graph(replayed, monkeypatch)
    for _ in range(3):
        launched.run(4)
        replayed.run(4)
    assert (launched.num_replayed, replayed.num_replayed) == (0, 12)
    for name in ("positions", "velocities", "energy", "steps", "status", "dt"):
        torch.testing.assert_close(getattr(replayed.fire, name), getattr(launched.fire, name))


def test_an_overflow_between_two_looks_repeats_the_steps_with_a_longer_list(potential, monkeypatch):
    close = molecules()
    close[0].positions *= 1.4
    found, _ = evaluations_of(potential, close)
    search = found.step.search
    search.allocate(found.step.ordered, capacity=int(search.edges.num_edges) + 1)
    found.step.engine.reserve(search.capacity)
    with_graph(found, monkeypatch)
    expected, _ = evaluations_of(potential, close)
    for each in (found, expected):  # contracts: neighbours appear
        each.fire.positions[:9] *= 0.7
    found.run(4)
    expected.run(4)
    assert found.num_replayed == 0
    assert found.step.num_recoveries == 1
    torch.testing.assert_close(found.fire.positions, expected.fire.positions)
    torch.testing.assert_close(found.fire.energy, expected.fire.energy)


def test_padding_and_empty_slots_change_nothing(potential):
    evaluations, slots = evaluations_of(potential, molecules())
    padding = evaluations.fire.positions[slots.used :].clone()
    evaluations.run(5)
    torch.testing.assert_close(evaluations.fire.positions[slots.used :], padding, rtol=0, atol=0)
    assert evaluations.fire.steps.tolist() == [5, 5, 5, 0, 0]


@pytest.mark.parametrize("replays", [False, True])
def test_a_system_that_is_not_finite_ends_alone(potential, monkeypatch, replays):
    structures = molecules()
    structures[1].positions[1] = structures[1].positions[0]
    evaluations, _ = evaluations_of(potential, structures)
    if replays:
        with_graph(evaluations, monkeypatch)
    evaluations.run(3)
    assert evaluations.fire.status.tolist()[:3] == [RUNNING, NOT_FINITE, RUNNING]
    assert evaluations.fire.steps.tolist()[:3] == [3, 0, 3]
    assert np.isfinite(evaluations.fire.positions.numpy()).all()


def test_results_are_copies(potential):
    evaluations, _ = evaluations_of(potential, molecules())
    evaluations.run(1)
    first = evaluations.results()["forces"]
    kept = first.clone()
    evaluations.run(3)
    torch.testing.assert_close(first, kept, rtol=0, atol=0)
    assert "stress" not in evaluations.results()
