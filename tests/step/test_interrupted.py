"""Ctrl-C at any line of a step, a pool or a calculator: later results are right, or an error is raised."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule

import torchmdx
from torchmdx import Calculator, System
from torchmdx.step import change
from torchmdx.step.captured_step import REFRESH_EVERY, CapturedStep
from torchmdx.step.pool import StepPool

PACKAGE = Path(torchmdx.__file__).parent
WATCHED = {
    str(PACKAGE / name)
    for name in (
        "ase/calculator.py", "step/pool.py", "step/captured_step.py", "step/state.py", "step/buffer_storage.py",
        "step/buffers.py", "step/change.py", "step/capture_policy.py", "engines/ensemble.py", "neighbors/search.py",
        "neighbors/single_pass.py", "neighbors/backends/frame.py",
    )
}  # fmt: skip
STEP = {
    "captured_step.py", "state.py", "buffers.py", "change.py", "capture_policy.py", "search.py", "single_pass.py",
    "frame.py",
}  # fmt: skip


def test_watched_files_exist():
    assert not [path for path in WATCHED if not Path(path).is_file()]
    assert {Path(path).name for path in WATCHED} >= STEP


class Interrupter:
    """Notes each watched line that runs, once, in order; raises KeyboardInterrupt before one of them."""

    def __init__(self, at=None):
        self.at, self.lines = at, []

    def __enter__(self):
        self.seen, self.before = set(), sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(self.before)

    def _trace(self, frame, event, arg):
        if frame.f_code.co_filename not in WATCHED:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place not in self.seen:
            self.seen.add(place)
            self.lines.append(place)
            if place == self.at:
                raise KeyboardInterrupt
        return self._trace


def interruptions(prepare, act, device, files):
    """Runs act(prepare()) once for every fourth line of some files, interrupted there; gives what was prepared."""
    prepared = prepare()
    with Interrupter() as whole:
        act(prepared)
    lines = [place for place in whole.lines if Path(place[0]).name in files]
    assert len(lines) > 20
    for place in lines[:: 4 if device == "cpu" else 8]:
        prepared = prepare()
        with pytest.raises(KeyboardInterrupt), Interrupter(place):
            act(prepared)
        yield place, prepared


def same(found, wanted):
    assert abs(found - wanted) < 1e-4


@pytest.fixture
def water():
    return molecule("H2O")


@pytest.fixture
def dioxide():
    return molecule("CO2")


def insist(device):
    return "graph" if device == "cuda" else "auto"


def test_a_pool_interrupted_while_it_takes_in_another_structure(trained, water, dioxide, device):
    potential = trained(device)
    first, second = (System.from_ase(atoms) for atoms in (water, dioxide))
    wanted = [StepPool(potential)(system).energy[0] for system in (first, second)]
    assert abs(wanted[0] - wanted[1]) > 0.1

    def prepare():
        pool = StepPool(potential, mode=insist(device))
        pool(first)
        return pool

    for _, pool in interruptions(prepare, lambda pool: pool(second), device, {"pool.py", "change.py"}):
        same(pool(first).energy[0], wanted[0])
        same(pool(second).energy[0], wanted[1])


@pytest.mark.nightly
def test_a_step_interrupted_while_its_list_grows_and_its_order_changes(trained, device, monkeypatch):
    potential = trained(device)
    numbers = [1, 6, 8] * 9
    grid = np.array([(i, j, k) for i in range(3) for j in range(3) for k in range(3)], dtype=float)
    loose, tight = 4.0 * grid, 1.6 * grid
    system = System.create(loose, numbers)
    wanted = [CapturedStep(potential, System.create(x, numbers))(x).energy[0] for x in (loose, tight)]

    def other_order(batch, positions, cell):
        last = orders[-1].roll(1)
        orders.append(last)
        return last.to(positions.device)

    orders = [torch.arange(27, dtype=torch.int32)]
    monkeypatch.setattr(change, "choose_order", other_order)

    def prepare():
        step = CapturedStep(potential, system, mode=insist(device))
        step(loose)
        step.num_evaluations = REFRESH_EVERY - 1
        return step

    for _, step in interruptions(prepare, lambda step: step(tight), device, STEP):
        same(step(loose).energy[0], wanted[0])
        same(step(tight).energy[0], wanted[1])
        same(step(loose).energy[0], wanted[0])


def test_an_assignment_that_is_interrupted_is_made_again_or_refused(trained, water, dioxide, device):
    potential = trained(device)
    first, second = (System.from_ase(atoms) for atoms in (water, dioxide))
    at = dioxide.positions
    allowed = [CapturedStep(potential, system)(at).energy[0] for system in (first, second)]
    refused = 0

    def prepare():
        step = CapturedStep(potential, first, mode=insist(device))
        step(water.positions)
        return step

    for _, step in interruptions(prepare, lambda step: step.assign(second), device, STEP):
        if step.assigning:
            with pytest.raises(RuntimeError, match="the last assign did not finish: call assign again before an eval"):
                step(at)
            refused += 1
        else:
            assert min(abs(step(at).energy[0] - energy) for energy in allowed) < 1e-4
        step.assign(second)
        same(step(at).energy[0], allowed[1])
    assert refused > 2


@pytest.mark.nightly
def test_a_calculator_that_is_interrupted_keeps_no_results_of_other_atoms(trained, device):
    potential = trained(device)
    atoms = [molecule("H2O", vacuum=2.0), molecule("CO2", vacuum=2.0)]
    wanted = []
    for each in atoms:
        calculator = Calculator(potential, device=device)
        calculator.calculate(each, ["energy", "stress"])
        wanted.append((calculator.results["energy"], calculator.results["stress"]))

    def prepare():
        calculator = Calculator(potential, device=device, mode=insist(device))
        calculator.calculate(atoms[0])
        return calculator

    def act(calculator):
        calculator.calculate(atoms[1], ["energy", "stress"])

    for place, calculator in interruptions(prepare, act, device, {"calculator.py"}):
        for each, (energy, stress) in [*zip(atoms, wanted, strict=True)][::-1]:
            same(calculator.get_potential_energy(each), energy)
            np.testing.assert_allclose(calculator.get_stress(each), stress, atol=1e-5, err_msg=str(place))
