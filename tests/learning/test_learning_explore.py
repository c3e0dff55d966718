"""A batch of replicas: frames, ends and branches at the threshold, failures, and continuation to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.learning.conftest import start_file
from torchmdx.learning import explore as exploring
from torchmdx.learning.explore import PARKED, BatchRun
from torchmdx.learning.explored import FAILED, THRESHOLD, WHOLE, Explored
from torchmdx.learning.replicas import dynamics_of, replicas_of
from torchmdx.learning.sections import ExploreSection
from torchmdx.learning.structures import read_structures, system_of
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.step.results import NonFiniteError

EXPLORE = {"temperatures": [300.0, 900.0], "steps": 60, "every": 10, "timestep": 2.0}


def ensemble():
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        potential = Potential(TensorNetConfig(num_channels=4, num_layers=0, num_radial=4, cutoff=3.5), [])
        potential.scale.fill_(0.3)
        members.append(potential.eval().requires_grad_(False))
    return Ensemble(members)


@pytest.fixture
def make(tmp_path):
    """Makes the run of a batch, and its dynamics."""
    start_file(tmp_path / "start.extxyz")
    systems = [system_of(one) for one in read_structures(tmp_path / "start.extxyz")]
    potential = ensemble()

    def made(name, threshold=1e3, **settings):
        explore = ExploreSection(**EXPLORE | settings)
        batch = replicas_of(explore, 1, 0, 1)
        path = tmp_path / f"{name}.npz"
        return BatchRun(explore, threshold, batch, path, lambda: dynamics_of(explore, potential, systems, batch))

    return made


def run(one, stop=lambda: False):
    return one.run(stop, lambda step: None, lambda: None)


def loaded(one):
    return Explored.load(one.path, one.batch)[0]


def test_frames_are_those_of_the_dynamics(make):
    one = make("whole")
    assert run(one)
    found = loaded(one)
    assert found.endings == [WHOLE, WHOLE]
    assert found.lasted == [60, 60]
    assert [(frame.step, frame.replica) for frame in found.frames] == [(10 * k, r) for k in range(1, 7) for r in (0, 1)]
    dynamics = one._make()
    last = dynamics.run(60)
    np.testing.assert_array_equal(found.frames[-1].positions, last.positions[4:])
    np.testing.assert_array_equal(found.frames[-2].uncertainty, last.largest_force_spread[0])


@pytest.mark.parametrize("over", ["end", "branch"])
def test_a_run_that_is_stopped_anywhere_gives_the_same_file(make, over):
    whole = make("whole", 0.5, over=over)
    assert run(whole)
    values = sorted(frame.uncertainty for frame in loaded(whole).frames)
    threshold = float(np.mean(values[len(values) // 2 : len(values) // 2 + 2]))  # so that some are over it
    whole = make("other", threshold, over=over, save_every=0.0)
    assert run(whole)
    assert len(set(loaded(whole).endings) | {THRESHOLD}) <= 2 or sum(loaded(whole).branched)
    calls = 0

    def sometimes():
        nonlocal calls
        calls += 1
        return calls % 13 == 0

    for _ in range(40):
        if run(make("stopped", threshold, over=over), sometimes):
            break
    else:
        pytest.fail("the run does not come to its end")
    assert make("stopped").path.read_bytes() == whole.path.read_bytes()
    assert [path.name for path in whole.path.parent.glob("stopped*")] == ["stopped.npz"]


def made_uncertain(monkeypatch, at):
    """Makes replicas uncertain from steps on: {replica: step}."""

    def values(snapshot):
        found = np.full(len(snapshot.energy), 0.1)
        for replica, step in at.items():
            if snapshot.step >= step:
                found[replica] = 5.0
        return found

    monkeypatch.setattr(exploring, "uncertainties", values)


def test_a_replica_over_the_threshold_ends_with_its_frame_and_leaves_the_others_alone(make, monkeypatch):
    free = make("free")
    assert run(free)
    made_uncertain(monkeypatch, {1: 30})
    one = make("one", 1.0)
    assert run(one)
    found, others = loaded(one), [frame for frame in loaded(free).frames if frame.replica == 0]
    assert found.endings == [WHOLE, THRESHOLD]
    assert found.lasted == [60, 30]
    assert [frame.step for frame in found.frames if frame.replica == 1] == [10, 20, 30]
    mine = [frame for frame in found.frames if frame.replica == 0]
    assert len(mine) == 6
    np.testing.assert_allclose(mine[-1].positions, others[-1].positions, atol=1e-6)


def test_a_replica_that_ended_stays_cold_where_it_was_trusted(make, monkeypatch):
    made_uncertain(monkeypatch, {1: 30})
    one = make("one", 1.0)
    assert run(one)
    snapshot = one.dynamics.snapshot()
    assert snapshot.temperatures.tolist() == [300.0, PARKED]
    trusted = next(frame for frame in loaded(one).frames if frame.replica == 1 and frame.step == 20)
    assert np.abs(snapshot.positions[4:] - trusted.positions).max() < 0.3


def test_a_branch_goes_on_from_a_trusted_frame_with_other_velocities(make, monkeypatch):
    made_uncertain(monkeypatch, {})
    before = make("before", 1.0)
    assert run(before)
    calls = []

    def values(snapshot):
        calls.append(snapshot.step)
        return np.array([0.1, 5.0 if snapshot.step == 30 else 0.1])

    monkeypatch.setattr(exploring, "uncertainties", values)
    one = make("one", 1.0, over="branch")
    assert run(one)
    found = loaded(one)
    assert found.endings == [WHOLE, WHOLE]
    assert found.branched == [0, 1]
    other = [frame for frame in loaded(before).frames if frame.replica == 1]
    mine = [frame for frame in found.frames if frame.replica == 1]
    assert len(mine) == 6
    assert np.abs(mine[3].positions - other[3].positions).max() > 1e-3
    np.testing.assert_array_equal(mine[2].positions, other[2].positions)


def test_branches_are_counted(make, monkeypatch):
    made_uncertain(monkeypatch, {1: 30})
    one = make("one", 1.0, over="branch", branches=2)
    assert run(one)
    assert loaded(one).branched == [0, 2]
    assert loaded(one).endings == [WHOLE, THRESHOLD]


def test_an_evaluation_that_fails_ends_one_replica_only(make, monkeypatch):
    one = make("one")
    make_dynamics, failed = one._make, []

    def failing():
        dynamics = make_dynamics()
        evaluate = dynamics.loop._evaluation

        def sometimes(number, positions, cell):
            if number == 25 and not failed:
                failed.append(number)
                raise NonFiniteError("evaluation 25: forces of 4 atoms are not finite")
            return evaluate(number, positions, cell)

        dynamics.loop._evaluation = sometimes
        return dynamics

    one._make = failing
    assert run(one)
    found = loaded(one)
    assert failed == [25]
    assert sorted(found.endings) == sorted([WHOLE, FAILED])
    lost = found.endings.index(FAILED)
    assert found.lasted[lost] == 24
    assert [f.step for f in found.frames if f.replica == lost] == [10, 20, 24]
    assert [frame.step for frame in found.frames if frame.replica != lost] == [10, 20, 30, 40, 50, 60]


def test_a_batch_whose_first_evaluation_fails_has_no_frames_and_says_why(make):
    one = make("one")

    def failing():
        raise NonFiniteError("evaluation 0: energies of 8 atoms are not finite")

    one._make = failing
    assert run(one)
    found, more = Explored.load(one.path, one.batch)
    assert found.frames == []
    assert found.endings == [FAILED, FAILED]
    assert "evaluation 0" in str(more["error"])


def test_states_of_two_snapshots_are_joined_atom_by_atom(make):
    dynamics = make("one")._make()
    first, last = dynamics.snapshot(), dynamics.run(20)
    joined = last.with_states(first, np.array([True, False]))
    np.testing.assert_array_equal(joined.positions[:4], first.positions[:4])
    np.testing.assert_array_equal(joined.positions[4:], last.positions[4:])
    assert joined.step == 20
    assert joined.energy.tolist() == [first.energy[0], last.energy[1]]
    dynamics.restore(joined)
    again = dynamics.snapshot()
    np.testing.assert_array_equal(again.positions, joined.positions)
    moved = replace(first, frame=first.frame | {"images": first.frame["images"] + 1})
    images = moved.with_states(first, np.array([False, True])).frame["images"]
    of = first.particles.system[first.frame["order"]]
    np.testing.assert_array_equal(images, first.frame["images"] + (of == 0)[:, None])
