"""Work is isolated from inference mode, autocast, default devices and coarse products, and restores them."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import torchmdx
from torchmdx import System, evaluate
from torchmdx.evaluation.derivatives import differentiate
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime.isolation import TF32, float32_products, in_own_thread_state, isolated, products_are_exact
from torchmdx.step.captured_step import CapturedStep

MODES = [torch.no_grad, torch.inference_mode]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_step_that_is_made_and_called_in_any_mode(trained, ethanol, device, dtype, mode):
    potential = trained(device, dtype)
    wanted = CapturedStep(potential, System.from_ase(ethanol), stress=False)(ethanol.positions)
    with mode():
        step = CapturedStep(potential, System.from_ase(ethanol))
        for _ in range(4):  # the third may capture
            found = step(torch.tensor(ethanol.positions))
        step.assign(System.from_ase(ethanol))
        again = step(ethanol.positions)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for result in (found, again):
        np.testing.assert_allclose(result.forces, wanted.forces, atol=tolerance)
        assert float(result.energy[0]) == pytest.approx(float(wanted.energy[0]), abs=1e-4)
    assert np.abs(wanted.forces).max() > 0.01


@pytest.mark.nightly_for("no_grad")
@pytest.mark.parametrize("mode", MODES)
def test_a_potential_that_is_loaded_in_any_mode(ethanol, mode):
    wanted = evaluate(torchmdx.load(), System.from_ase(ethanol))
    with mode():
        potential = torchmdx.load()
        found = evaluate(potential, System.from_ase(ethanol))
        ethanol.calc = torchmdx.Calculator()
        forces = ethanol.get_forces()
    assert torch.equal(found.forces, wanted.forces)
    np.testing.assert_allclose(forces, wanted.forces.numpy(), atol=1e-4)
    assert all(not parameter.is_inference() for parameter in potential.parameters())
    weight = potential.network.readout.weight.requires_grad_()
    energy = evaluate(potential, System.from_ase(ethanol), create_graph=True).energy
    (gradient,) = torch.autograd.grad(energy.sum(), [weight])
    assert gradient.abs().max() > 0


def test_what_cannot_be_had_in_inference_mode_is_an_error(trained, ethanol):
    potential = trained("cpu", torch.float64)
    with torch.inference_mode():
        batch = torchmdx.Batch.of(System.from_ase(ethanol))
        edges = brute_force(batch, potential.search_cutoff(batch))
        with pytest.raises(RuntimeError, match="need gradients, got an energy made under torch.inference_mode"):
            differentiate(potential, batch, edges)


CUDA, CPU = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul


def precisions() -> tuple[str, ...]:
    """The newer settings, and the older one, which torch refuses to tell where it contradicts them."""
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:
        older = "refused"
    return CUDA.fp32_precision, CPU.fp32_precision, older


def allow_tf32() -> None:
    CUDA.allow_tf32 = True


def newer(*kinds: Any, precision: str) -> None:
    for kind in kinds:
        kind.fp32_precision = precision


COARSE = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": allow_tf32,
    "tf32 of CUDA": lambda: newer(CUDA, precision="tf32"),
    "bf16 of oneDNN": lambda: newer(CPU, precision="bf16"),
    "tf32 of all": lambda: newer(torch.backends, precision="tf32"),
}


@pytest.fixture(params=COARSE)
def coarse(request) -> Iterator[tuple[str, ...]]:
    """Coarse products, set in each way that torch has."""
    newer(CUDA, CPU, precision="none")
    COARSE[request.param]()
    yield precisions()
    newer(torch.backends, CUDA, CPU, precision="none")
    torch.set_float32_matmul_precision("highest")


def test_products_are_exact_in_isolated_work_and_as_set_after_it(coarse):
    assert not products_are_exact()

    @isolated
    def work(fail: bool) -> tuple[str, ...]:
        if fail:
            raise KeyboardInterrupt
        assert products_are_exact()
        return precisions()

    assert work(fail=False) == ("ieee", "ieee", "highest")
    assert precisions() == coarse
    with pytest.raises(KeyboardInterrupt):
        work(fail=True)
    assert precisions() == coarse


def test_what_is_inherited_is_inherited_after_isolated_work():
    try:
        newer(CUDA, CPU, precision="none")
        newer(torch.backends, precision="tf32")
        assert isolated(products_are_exact)()
        newer(torch.backends, precision="ieee")
        assert products_are_exact()
    finally:
        newer(torch.backends, CUDA, CPU, precision="none")


def test_products_stay_exact_until_the_last_thread_has_finished(coarse):
    begun, go_on, found = threading.Event(), threading.Event(), []

    @isolated
    def long() -> None:
        begun.set()
        assert go_on.wait(30)
        found.append(products_are_exact())

    @isolated
    def short() -> None:
        thread.start()
        assert begun.wait(30)

    thread = threading.Thread(target=long)
    short()
    assert products_are_exact()
    go_on.set()
    thread.join()
    assert found == [True]
    assert precisions() == coarse


def test_exact_products_prevail_over_tf32_which_is_asked_for():
    before = precisions()
    with float32_products(TF32):
        assert not products_are_exact()
        assert isolated(products_are_exact)()
        assert CUDA.fp32_precision == "tf32"
    assert products_are_exact()
    assert precisions() == before


def test_products_are_as_set_after_an_interrupt_at_the_end_of_isolated_work(coarse, monkeypatch):
    def interrupted(self, *_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(float32_products, "__exit__", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        isolated(products_are_exact)()
    gc.collect()
    assert precisions() == coarse


@pytest.mark.parametrize("decorator", [isolated, in_own_thread_state])
def test_isolated_work_leaves_the_state_of_its_thread(decorator):
    @decorator
    def work() -> tuple[Any, ...]:
        return torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), torch.empty(1).device.type

    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
        assert work() == (False, False, "cpu")
        assert (torch.is_autocast_enabled("cpu"), torch.empty(1).device.type) == (True, "meta")
        assert torch.is_inference_mode_enabled()
    assert work() == (False, False, "cpu")
