"""Multiple time steps at constant energy, against analytic results."""

import numpy as np
import pytest
import torch
from ase.build import molecule

from torchmdx import Potential, System, TensorNetConfig
from torchmdx.dynamics import Dynamics
from torchmdx.training.distillation import outer_steps
from torchmdx.training.distillation.outer_steps import Speed, Trial

WATER, METHANE = (System.from_ase(molecule(name)) for name in ("H2O", "CH4"))
START = dict(temperature=300.0, seed=5)


def test_energies_are_those_of_the_dynamics(organic):
    taken = dict(hydrogen=3.0, inner=0.5, num_outer=5, **START)
    single = outer_steps.energies(organic, None, [WATER, METHANE], count=1, **taken)
    found = outer_steps.energies(organic, organic, [WATER, METHANE], count=3, **taken)
    given = dict(integrator="verlet", timestep=0.5, hydrogen_mass=3.0, **START)
    dynamics = Dynamics(organic, [WATER, METHANE], **given)
    expected = [one.energy + one.kinetic_energy for one in dynamics.snapshots(15, every=1)]
    assert single.energies[1:] == pytest.approx(np.array(expected[:5]), abs=2e-5)
    assert found.energies[1:] == pytest.approx(np.array(expected[2::3]), abs=2e-5), "the potential is its own fast one"
    assert found.times == pytest.approx(1.5e-3 * np.arange(6))
    assert (found.sizes.tolist(), found.failed) == ([3, 5], "")


@pytest.mark.parametrize("fast", ["none", "useless"])
def test_a_step_that_is_too_long_fails(organic, fast):
    nothing = Potential(TensorNetConfig(num_channels=2, num_layers=0, max_z=10)).to(torch.float32).eval()
    nothing.scale.fill_(0.0)
    taken = dict(hydrogen=None, inner=6.0, count=1 if fast == "none" else 2)
    found = outer_steps.energies(organic, None if fast == "none" else nothing, [WATER], num_outer=100, **START, **taken)
    assert found.failed
    assert (len(found.times) > 1) == (fast == "none"), "what was before is kept; the other one disagrees at once"
    assert len(found.times) < 101
    trial = outer_steps.trial_of(found, **taken)
    assert not trial.is_stable
    assert outer_steps.plain([trial])[0]["drift"] is None


def test_a_run_stops_for_a_signal(organic):
    taken = dict(hydrogen=None, inner=0.5, count=1, num_outer=5, **START)
    assert outer_steps.energies(organic, None, [WATER], interrupted=lambda: True, **taken).failed == "interrupted"


def test_deviation_and_drift_are_those_of_the_energies():
    times = np.arange(201) * 4e-3  # ps
    energies = np.stack([-5 + 0.03 * times, 7 - 0.03 * times], 1)
    run = outer_steps.Course(times, energies, np.array([3, 3]))
    found = outer_steps.trial_of(run, hydrogen=None, inner=1.0, count=4)
    assert found.drift == pytest.approx(0.01)  # per atom, of three; signs do not cancel
    assert not found.is_stable
    assert found.deviation == pytest.approx(1e3 * 0.03 * times.std())
    assert found.length == pytest.approx(0.8)


def test_the_error_of_a_drift_counts_correlations_and_resonance_is_no_drift():
    random = np.random.default_rng(1)
    times = np.arange(401) * 2e-3
    runs = np.zeros((401, 300))
    for k in range(1, 401):  # correlated over 20 steps
        runs[k] = 0.95 * runs[k - 1] + random.normal(size=300)
    slopes = np.polyfit(times, runs, 1)[0]
    errors = [
        outer_steps.trial_of(outer_steps.Course(times, run[:, None], np.ones(1)), hydrogen=None, inner=1.0, count=2)
        for run in runs.T
    ]
    assert np.mean([one.uncertainty for one in errors]) == pytest.approx(slopes.std(), rel=0.4)
    assert Trial(None, 1.0, 2, 1.0, 1.0, 4e-4, uncertainty=2.5e-4).is_stable
    assert not Trial(None, 1.0, 2, 1.0, 1.0, 4e-4, uncertainty=1e-4).is_stable
    assert not Trial(None, 1.0, 2, 1.0, 3.1, 0.0, most_deviation=3.0).is_stable


def trial(count, drift, hydrogen=None, failed=""):
    return Trial(hydrogen, 1.0, count, 1.0, 1.0, drift, failed)


def test_the_largest_stable_outer_step_is_by_mass_of_hydrogens():
    found = [trial(1, 1e-6), trial(2, 1e-6), trial(3, 1.9e-4), trial(4, 2.1e-4)]
    found += [trial(1, 1e-6, 3.0), trial(2, 1.0, 3.0)]
    assert outer_steps.largest(found, None) is found[2]
    assert outer_steps.largest(found, 3.0) is None


def test_longer_steps_are_tried_until_one_is_unstable(organic, monkeypatch):
    def energies(potential, fast, systems, *, inner, count, num_outer, hydrogen, **start):
        wrong = 1.0 if inner * count >= (5 if hydrogen else 3) else 0.0
        times = np.arange(num_outer + 1) * inner * count / 1000
        return outer_steps.Course(times, np.linspace(0, wrong, num_outer + 1)[:, None], np.array([3]))

    monkeypatch.setattr(outer_steps, "energies", energies)
    said: list = []
    found = outer_steps.trials(
        organic, organic, [WATER], Speed(1e-2, 1e-3), inner=1.0, seconds=100.0, note=said.append, **START
    )
    assert [(one.hydrogen, one.inner, one.count) for one in found] == [
        (None, 1.0, 1), (None, 1.0, 2), (None, 1.0, 3),
        (3.0, 2.0, 1), (3.0, 1.0, 2), (3.0, 1.0, 3), (3.0, 1.0, 4), (3.0, 1.0, 5),
    ]  # fmt: skip
    assert said == found
    assert outer_steps.largest(found, 3.0).outer == 4.0


def test_hydrogens_stay_light_where_their_neighbours_have_no_mass_to_give(organic, monkeypatch):
    failed = outer_steps.Course(*[np.ones(1)] * 3, "failed")
    monkeypatch.setattr(outer_steps, "energies", lambda *given, **taken: failed)
    lithium = System.create([[0.0, 0.0, 0.0], [1.6, 0.0, 0.0], [-1.6, 0.0, 0.0]], [3, 1, 1])
    found = outer_steps.trials(organic, organic, [lithium], Speed(1.0, 0.1), inner=1.0, seconds=1.0, **START)
    assert {one.hydrogen for one in found} == {None}


def test_the_gain_counts_both_models():
    speed = Speed(whole=10.0, fast=2.0)
    assert speed.ratio == 0.2
    assert speed.gain(inner=1.0, count=5, single=1.0) == pytest.approx(5 * 10 / 20)
    assert speed.gain(inner=1.0, count=4, single=2.0) == pytest.approx(2 * 10 / 18)


def test_crystals_without_hydrogens_have_longer_inner_steps():
    silicon = System.create([[0.0, 0.0, 0.0]], [14])
    assert (outer_steps.default_inner([silicon]), outer_steps.default_inner([silicon, WATER])) == (2.0, 1.0)
