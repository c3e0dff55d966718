"""Results of the exact model while a thread makes the step of a pool; on a CPU, that pretends to compile."""

import copy
import threading
from concurrent.futures import Future

import numpy as np
import pytest
import torch
from ase.build import molecule

from torchmdx import Calculator, Ensemble, Potential, System, evaluate
from torchmdx.step import pool as pools
from torchmdx.step import standby
from torchmdx.step.pool import StepPool


@pytest.fixture
def compiling(monkeypatch, tmp_path):
    """Steps are made once this event is set; `compiling.made` counts them."""
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    monkeypatch.setattr(pools, "may_stand_by", lambda potential, mode, engine: mode == "auto" and engine is None)
    monkeypatch.setattr(pools, "kernels_for", lambda potential, batch, **_: f"{batch.num_atoms > 100} kernels")
    event, original = threading.Event(), StepPool._prepared
    event.made = 0

    def prepared(self, system, key):
        assert event.wait(60)
        event.made += 1
        return original(self, system, key)

    monkeypatch.setattr(StepPool, "_prepared", prepared)
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name == "torchmdx-compile":
            thread.join()


def joined() -> None:
    for thread in threading.enumerate():
        if thread.name == "torchmdx-compile":
            thread.join()


def test_first_forces_do_not_wait_and_the_next_do(potential, ethanol, compiling):
    pool = StepPool(potential, stress=False)
    system = System.from_ase(ethanol)
    exact = evaluate(copy.deepcopy(potential).double(), system)
    found = pool(system)
    np.testing.assert_allclose(found.forces, exact.forces.numpy(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.energies, exact.energies.numpy(), rtol=0, atol=1e-9)
    assert pool.report().why == standby.WHY
    assert pool.report().engine == "exact"
    assert (len(pool), compiling.made) == (0, 0)
    threading.Timer(0.2, compiling.set).start()
    found = pool(system)
    np.testing.assert_allclose(found.forces, exact.forces.numpy(), rtol=0, atol=1e-4)
    assert (len(pool), compiling.made) == (1, 1)
    assert standby.WHY not in pool.report().why
    assert "exact" not in str(pool.report())


def test_a_machine_that_has_the_kernels_does_not_stand_by(potential, ethanol, compiling):
    compiling.set()
    first = StepPool(potential)
    first(System.from_ase(ethanol))
    joined()
    for pool in (StepPool(potential), copy.deepcopy(first)):
        pool(System.from_ase(ethanol))
        assert len(pool) == 1
        assert standby.WHY not in pool.report().why


def test_other_sizes_with_the_same_kernels_wait_for_them(potential, ethanol, compiling):
    pool = StepPool(potential)
    pool(System.from_ase(ethanol))
    threading.Timer(0.2, compiling.set).start()
    pool(System.from_ase(molecule("H2O")))
    assert standby.WHY not in pool.report().why
    assert len(pool) == 2  # also the step that the thread has made


def test_an_interruption_while_waiting_loses_nothing(potential, ethanol, compiling, monkeypatch):
    pool, system = StepPool(potential), System.from_ase(ethanol)
    pool(system)

    def interrupted(self, timeout=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "exception", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool(system)
    compiling.set()
    pool(system)
    assert (len(pool), compiling.made) == (1, 1)


def test_a_cleared_pool_forgets_what_is_being_made(potential, ethanol, compiling):
    pool, system = StepPool(potential), System.from_ase(ethanol)
    pool(system)
    pool.clear()
    assert pool.report() is None
    pool(system)  # kernels that a thread compiles already are waited for
    assert standby.WHY not in pool.report().why
    pool.clear()
    compiling.set()
    joined()
    pool(system)
    assert standby.WHY not in pool.report().why


def test_without_another_thread_the_next_evaluation_compiles(potential, ethanol, compiling, monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    pool, system = StepPool(potential), System.from_ase(ethanol)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        pool(system)
    assert pool.report().why == standby.WHY
    pool(system)
    assert standby.WHY not in pool.report().why
    assert (len(pool), compiling.made) == (1, 0)


def test_positions_that_are_given_count(potential, ethanol, compiling):
    pool, system = StepPool(potential, stress=True), System.from_ase(ethanol)
    moved = ethanol.positions + np.random.default_rng(0).normal(0, 0.05, ethanol.positions.shape)
    found = pool(system, moved)
    ethanol.positions = moved
    exact = evaluate(copy.deepcopy(potential).double(), System.from_ase(ethanol))
    np.testing.assert_allclose(found.forces, exact.forces.numpy(), rtol=0, atol=1e-9)
    assert np.isnan(found.stress).all()  # of a molecule


def test_a_step_that_cannot_be_made_says_so_when_it_is_needed(potential, ethanol, compiling, monkeypatch):
    def failing(self, batch):
        raise MemoryError("no room")

    pool = StepPool(potential)
    monkeypatch.setattr(StepPool, "_make_step", failing)
    pool(System.from_ase(ethanol))
    compiling.set()
    joined()
    with pytest.raises(MemoryError, match="no room"):
        pool(System.from_ase(ethanol))


@pytest.mark.parametrize("failure", [None, torch.cuda.OutOfMemoryError("full"), ValueError("atoms together")])
def test_what_the_exact_model_has_no_results_for_is_left_to_the_step(
    potential, ethanol, compiling, monkeypatch, failure
):
    """It says which atoms are to blame, or repeats the evaluation."""
    pool, system = StepPool(potential), System.from_ase(ethanol)
    wanted = evaluate(copy.deepcopy(potential).double(), system).forces.numpy()

    def exact(*_, **__):
        if failure is not None:
            raise failure
        return {"energy": torch.tensor([1.0]), "forces": torch.full((9, 3), torch.nan)}

    monkeypatch.setattr(standby, "exact_results", exact)
    compiling.set()
    np.testing.assert_allclose(pool(system).forces, wanted, rtol=0, atol=1e-4)
    assert standby.WHY not in pool.report().why
    assert compiling.made == 0  # no thread


def test_large_structures_wait(potential, ethanol, compiling, monkeypatch):
    monkeypatch.setattr(standby, "MOST_ATOMS", 8)
    pool = StepPool(potential)
    pool(System.from_ase(ethanol))
    assert (len(pool), compiling.made) == (1, 0)


def test_a_calculator_says_what_it_did(potential, ethanol, compiling):
    ethanol.calc = Calculator(potential)
    assert ethanol.calc.report() is None
    ethanol.get_forces()
    assert ethanol.calc.report().why == standby.WHY
    compiling.set()
    joined()
    ethanol.rattle(0.01)
    ethanol.get_forces()
    assert standby.WHY not in ethanol.calc.report().why


def test_what_stands_by(potential, monkeypatch):
    monkeypatch.setenv(standby.VARIABLE, "1")
    assert not standby.may_stand_by(potential, "auto", None)  # on a CPU

    class OnGpu(Potential):
        device = type("device", (), {"type": "cuda"})()

    made = copy.copy(potential)
    made.__class__ = OnGpu
    assert standby.may_stand_by(made, "auto", None)
    assert not standby.may_stand_by(made, "graph", None)
    assert not standby.may_stand_by(made, "auto", "fused")
    assert not standby.may_stand_by(Ensemble([potential, potential]), "auto", None)
    monkeypatch.delenv(standby.VARIABLE)
    assert not standby.may_stand_by(made, "auto", None)


@pytest.mark.gpu
def test_kernels_take_over_on_a_gpu(potential, ethanol, monkeypatch, tmp_path):
    """In a folder without kernels the first forces are those of the exact model, and then those of the kernels."""
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    monkeypatch.setenv(standby.VARIABLE, "1")
    potential = copy.deepcopy(potential).float().cuda()
    pool, system = StepPool(potential, stress=True), System.from_ase(ethanol)
    exact = evaluate(copy.deepcopy(potential).double(), system).forces.cpu().numpy()
    np.testing.assert_allclose(pool(system).forces, exact, rtol=0, atol=1e-9 * np.abs(exact).max())
    assert pool.report().why == standby.WHY
    for _ in range(4):
        found = pool(system).forces
        np.testing.assert_allclose(found, exact, rtol=0, atol=3e-6 * np.abs(exact).max())
        assert pool.report().engine != "exact"
    again = StepPool(potential, stress=True)
    again(system)
    assert again.report().why != standby.WHY
