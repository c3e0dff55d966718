"""Uncertainties of a whole step and of steps of dynamics in one launch, emulated on the CPU."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from emulated import Emulator
from test_whole_step import Case, Run
from uncertain import expected, uncertain

from torchmdx import Potential, TensorNetConfig, evaluate
from torchmdx.engines.plan.clusters import AtomClusters
from torchmdx.step.buffer_storage import UNCERTAIN, UNCERTAINTIES
from torchmdx.step.buffers import StepBuffers

pytest.importorskip("triton")
pytestmark = pytest.mark.nightly  # a few seconds to compile each kernel, and a second for each launch

PLAN = AtomClusters(4, 4, 2, 4, True)


@pytest.fixture(scope="module")
def potential():
    torch.manual_seed(3)
    made = Potential(TensorNetConfig(num_layers=1, cutoff=4.0)).requires_grad_(False)
    made.scale.fill_(2.0)
    return uncertain(made)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    return Emulator(tmp_path_factory.mktemp("whole"), UNCERTAINTY_TOO=1, NETWORK_LAYERS=1)


@pytest.fixture(scope="module")
def mover(tmp_path_factory):
    return Emulator(tmp_path_factory.mktemp("moving"), UNCERTAINTY_TOO=1, NETWORK_LAYERS=1, STEPS_INSIDE=1)


def molecules(several):
    return [molecule("CH3CH2OH"), Atoms("O"), molecule("CH4")] if several else [molecule("CH3CH2OH")]


def with_room(case):
    """The same with room for uncertainties among the results."""
    old = case.buffers
    case.buffers = new = StepBuffers(case.batch, torch.float32, stress=False, energies=False, doubts=UNCERTAINTIES)
    new.fill(case.batch)
    for name in ("order", "images", "origin", "far"):
        getattr(new, name).copy_(getattr(old, name))
    new.host_output = torch.full_like(new.output, torch.nan)
    return case


@pytest.mark.parametrize("several", [False, True])
def test_results_are_in_the_order_of_the_caller_and_those_above_the_limit_are_counted(potential, kernel, several):
    case = with_room(Case(kernel, potential, molecules(several), PLAN))
    of_systems, of_atoms = expected(copy.deepcopy(potential).double(), case.batch)
    limit = float(np.sort(of_atoms)[-3:].mean())
    case.buffers.most.fill_(limit)
    case.run("host")
    out = case.buffers.outputs
    np.testing.assert_allclose(out["energy_uncertainty"], of_systems, rtol=2e-5)
    np.testing.assert_allclose(out["energies_uncertainty"], of_atoms, rtol=2e-5)
    assert int(out["flags"][UNCERTAIN]) == (of_atoms > limit).sum() > 0
    assert torch.equal(case.buffers.host_output, case.buffers.output)
    case.buffers.host_output.fill_(torch.nan)
    case.run("device")
    first = case.buffers._first_out
    assert torch.equal(case.buffers.host_output[:first], case.buffers.output[:first])
    assert case.buffers.host_output[first:].isnan().all()


def run_of(mover, potential, several):
    run = Run(mover, potential, molecules(several), PLAN)
    with_room(run.case)
    return run


def doubts_at(potential, run, positions):
    """(σ(E) [S], largest σ_i [S], σ_i [N]) by the exact model."""
    batch = run.case.batch
    moved = replace(batch, positions=torch.as_tensor(np.asarray(positions)))
    found = evaluate(copy.deepcopy(potential).double(), moved, forces=False)
    of_atoms = found.energies_uncertainty
    largest = [float(of_atoms[batch.system_index == s].max()) for s in range(batch.num_systems)]
    return found.energy_uncertainty, torch.tensor(largest, dtype=torch.float64), of_atoms


@pytest.mark.parametrize("several", [False, True])
def test_steps_of_dynamics_keep_those_of_the_last_step(potential, mover, several):
    run = run_of(mover, potential, several)
    run.launch(2)
    assert run.done() == [2, 0]
    of_systems, largest, of_atoms = doubts_at(potential, run, run.state.positions)
    torch.testing.assert_close(run.state.energy_doubt, of_systems, rtol=2e-5, atol=0)
    torch.testing.assert_close(run.state.largest_doubt, largest, rtol=2e-5, atol=0)
    torch.testing.assert_close(run.case.buffers.outputs["energies_uncertainty"], of_atoms, rtol=2e-5, atol=0)


def fast_run(mover, potential, several):
    """A run whose atoms move to where the largest uncertainty grows."""
    run = run_of(mover, potential, several)
    positions = run.state.positions

    def growth(velocities):
        first, second = (float(doubts_at(potential, run, positions + 0.5 * k * velocities)[1].max()) for k in (1, 2))
        return second / first

    random = np.random.default_rng(0)
    candidates = [torch.from_numpy(0.3 * random.normal(size=positions.shape)) for _ in range(20)]
    run.state.velocities.copy_(max(candidates, key=growth))
    return run


@pytest.mark.parametrize("several", [False, True])
def test_a_step_above_the_limit_halts_all_blocks_at_the_step_before(potential, mover, several):
    before, after = (fast_run(mover, potential, several) for _ in range(2))
    before.launch(1)
    after.launch(2)
    values = [float(run.state.largest_doubt.max()) for run in (before, after)]
    assert values[1] > values[0]
    run = fast_run(mover, potential, several)
    run.case.buffers.most.fill_(sum(values) / 2)
    run.launch(4)
    assert run.done() == [1, 1]
    assert torch.equal(run.state.block[2:], before.state.block[2:])
    out, count = run.case.buffers.outputs, int(run.case.buffers.outputs["flags"][UNCERTAIN])
    assert torch.equal(out["energies_uncertainty"], after.case.buffers.outputs["energies_uncertainty"])
    assert count == int((out["energies_uncertainty"] > run.case.buffers.most).sum()) > 0
