"""Launched evaluations: one thread queues those of all devices; what needs more than a replay is left to the steps.

Without a GPU the graphs of these tests launch the work that they would have recorded.
"""

import threading

import numpy as np
import pytest
import torch

from torchmdx import CapturedStep, DividedStep, System
from torchmdx.lammps.example import water
from torchmdx.step import launched
from torchmdx.step.buffer_storage import FAR, NOT_FINITE, OVERFLOW, UNCERTAIN
from torchmdx.step.divided_structure import DividedStructure
from torchmdx.step.launched import landed, launch, may_launch

RESULTS = ("energy", "forces", "energies", "stress")


class Graph:
    """Launches the evaluation of a step when it is replayed. after: is called then."""

    num_bytes = num_nodes = 0
    seconds = 0.0

    def __init__(self, step: CapturedStep) -> None:
        self.step, self.replays, self.after = step, 0, lambda: None

    def replay(self) -> None:
        self.replays += 1
        self.step._launch("device")
        self.after()


def graphs_of(step: DividedStep) -> list[Graph]:
    """Gives the domains' steps graphs."""
    found = []
    for domain in step._taken.domains:
        found.append(Graph(domain.step.step))
        domain.step.step.policy.graphs["device"] = found[-1]
    return found


def divided(potential, atoms, **options) -> DividedStep:
    options = {**dict(devices=["cpu", "cpu"], grid=(2, 1, 1), stress=True, energies=True), **options}
    return DividedStep(potential, System.from_ase(atoms), **options)


def require_equal(found, wanted, names=RESULTS) -> None:
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))


@pytest.fixture
def threads(monkeypatch) -> list:
    """Names an evaluation of a divided structure by the steps themselves."""
    found, original = [], DividedStructure.works
    monkeypatch.setattr(DividedStructure, "works", lambda self: found.append(self) or original(self))
    return found


@pytest.mark.nightly_for("grid1-True")
@pytest.mark.parametrize("pbc", [True, (True, False, True)])
@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 2, 2)])
def test_results_are_those_of_steps_in_threads(potential, threads, pbc, grid):
    atoms, devices = water(27), ["cpu"] * 4
    atoms.pbc = pbc
    step, other = (divided(potential, atoms, grid=grid, devices=devices) for _ in range(2))
    for each in (step, other):
        each(atoms.positions)
    graphs = graphs_of(step)
    for seed in range(3):
        atoms.rattle(0.02, seed=seed)
        wanted = other(atoms.positions, atoms.cell.array)
        threads.clear()
        require_equal(step(atoms.positions, atoms.cell.array), wanted)
        assert not threads
    atoms.set_cell(atoms.cell.array * 1.01, scale_atoms=True)
    require_equal(step(atoms.positions, atoms.cell.array), other(atoms.positions, atoms.cell.array))
    assert [graph.replays for graph in graphs] == [4] * len(graphs)
    assert [part.evaluations for part in step.report().steps] == [5] * len(graphs)
    assert step.num_assignments == 1


def test_atoms_that_have_moved_too_far_change_hands(potential, threads):
    """A single atom, which the sample before an evaluation does not see, is noticed by what was launched."""
    atoms = water(27)
    step, other = divided(potential, atoms), divided(potential, atoms)
    step(atoms.positions)
    graphs = graphs_of(step)
    threads.clear()
    atoms.positions[40, 1] += 0.8
    found = step._taken
    found.take_in(atoms.positions, None, 2)
    parts, _ = found.launched(energies=True)
    assert [part.held for part in parts].count(False) == 1
    assert [graph.replays for graph in graphs] == [1, 1]
    require_equal(step(atoms.positions), other(atoms.positions))
    assert step.num_assignments == other.num_assignments == 2


@pytest.mark.parametrize("flag", [OVERFLOW, FAR, NOT_FINITE, UNCERTAIN])
def test_steps_repeat_what_was_launched_in_vain(potential, threads, flag):
    atoms = water(27)
    step, other = divided(potential, atoms), divided(potential, atoms)
    step(atoms.positions)
    graph = graphs_of(step)[1]
    for launches in (1, 2):
        graph.after = lambda: graph.step.buffers.host_arrays["flags"].__setitem__(flag, 1)
        threads.clear()
        require_equal(step(atoms.positions), other(atoms.positions))
        assert len(threads) == 2  # of both
        graph.after = lambda: None
        threads.clear()
        require_equal(step(atoms.positions), other(atoms.positions))
        assert len(threads) == 1
        assert graph.replays == 2 * launches


def test_coinciding_atoms_are_named_as_by_the_steps(potential):
    atoms = water(27)
    step, other = divided(potential, atoms), divided(potential, atoms)
    step(atoms.positions)
    graphs_of(step)
    wrong = atoms.positions.copy()
    wrong[40] = wrong[41] + 5e-5
    with pytest.raises(ValueError, match="atoms must not coincide, got atoms 40 and 41 at the same position"):
        step(wrong)
    require_equal(step(atoms.positions), other(atoms.positions))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_after_an_interruption_results_are_right(potential, error):
    atoms = water(27)
    step, other = divided(potential, atoms), divided(potential, atoms)
    step(atoms.positions)
    for graph in graphs_of(step):
        graph.after = lambda: (_ for _ in ()).throw(error)
        with pytest.raises(error):
            step(atoms.positions + 0.1, atoms.cell.array * 1.01)
        graph.after = lambda: None
        require_equal(step(atoms.positions, atoms.cell.array), other(atoms.positions, atoms.cell.array))


def test_results_are_the_callers_own(potential):
    atoms = water(27)
    step = divided(potential, atoms)
    step(atoms.positions)
    graphs_of(step)
    first = step(atoms.positions)
    kept = {name: getattr(first, name).copy() for name in RESULTS}
    step(atoms.positions + np.linspace(0, 0.1, 243).reshape(-1, 3))
    for name in RESULTS:
        np.testing.assert_array_equal(getattr(first, name), kept[name])


def test_only_what_is_wanted_is_given(potential):
    atoms = water(27)
    step = divided(potential, atoms, stress=False, energies=False)
    step(atoms.positions)
    graphs_of(step)
    result = step(atoms.positions)
    assert result.stress is None
    assert result.energies is None


def test_domains_without_atoms_are_left_to_the_steps(potential, threads):
    atoms = water(1)
    atoms.pbc = False
    step = divided(potential, atoms, grid=(4, 1, 1), devices=["cpu"] * 4)
    step(atoms.positions)
    assert 0 in step.report().owned
    for domain in step._taken.domains:
        if domain.step.step is not None:
            domain.step.step.policy.graphs["device"] = Graph(domain.step.step)
    threads.clear()
    step(atoms.positions)
    assert threads


def test_a_step_tells_when_a_replay_is_not_enough(potential, monkeypatch):
    monkeypatch.setattr(launched, "REFRESH_EVERY", 5)
    step = CapturedStep(potential, System.from_ase(water(8)), audit_every=3)
    assert not may_launch(None)
    assert not may_launch(step)  # no graph
    step.policy.graphs["device"] = Graph(step)
    found = []
    for _ in range(6):
        found.append(may_launch(step))
        step.num_evaluations += 1
    assert found == [True, True, False, True, False, False]
    step.num_evaluations = 0
    for name in ("unsettled", "assigning", "audit_owed"):
        setattr(step, name, True)
        assert not may_launch(step)
        setattr(step, name, False)
    assert may_launch(step)


def test_a_launch_is_an_evaluation_in_its_cell(potential):
    atoms = water(8)
    step, plain = (CapturedStep(potential, System.from_ase(atoms), stress=True) for _ in range(2))
    step.policy.graphs["device"] = Graph(step)
    step.buffers.inputs["positions"].copy_(torch.from_numpy(atoms.positions * 1.01))
    launch(step, atoms.cell.array * 1.01)
    assert landed(step)
    wanted = plain(atoms.positions * 1.01, atoms.cell.array * 1.01)
    for name in ("energy", "forces", "stress"):
        np.testing.assert_array_equal(step.buffers.outputs[name], getattr(wanted, name))
    assert step.num_evaluations == 1
    step.buffers.inputs["positions"][3] = np.nan
    launch(step, atoms.cell.array)
    assert not landed(step)


def test_no_thread_is_started(potential):
    atoms = water(27)
    step = divided(potential, atoms)
    step(atoms.positions)
    graphs_of(step)
    before = threading.active_count()
    step(atoms.positions)
    assert threading.active_count() == before


@pytest.mark.gpu
@pytest.mark.parametrize("second", ["cuda:0", pytest.param("cuda:1", marks=pytest.mark.two_gpus)])
def test_replays_on_gpus_give_the_bits_of_steps_in_threads(make_potential, threads, monkeypatch, second):
    """Also in a stream of the caller's own, with positions from a GPU, and while the cell changes."""
    atoms, model = water(729), make_potential(torch.float32).to("cuda:0")
    step = divided(model, atoms, devices=["cuda:0", second], grid=(1, 1, 2), mode="graph")
    step(atoms.positions)
    for seed in range(4):
        atoms.rattle(0.01, seed=seed)
        atoms.set_cell(atoms.cell.array * 1.001, scale_atoms=True)
        with monkeypatch.context() as other:
            other.setattr(DividedStructure, "launched", lambda *_, **__: None)
            wanted = step(atoms.positions, atoms.cell.array)
        threads.clear()
        require_equal(step(atoms.positions), wanted, ("energy", "forces", "energies"))
        with torch.cuda.stream(torch.cuda.Stream("cuda:0")):
            found = step(torch.from_numpy(atoms.positions).cuda())
            require_equal(step(atoms.positions), wanted, ("energy", "forces", "energies"))
        np.testing.assert_array_equal(found.forces.cpu(), wanted.forces)
        np.testing.assert_allclose(found.stress.cpu(), wanted.stress, rtol=1e-12, atol=1e-15)
        assert not threads
    assert [part.mode for part in step.report().steps] == ["graph", "graph"]
    assert step.num_assignments == 1
