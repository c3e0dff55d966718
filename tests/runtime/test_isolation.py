"""Energies and forces are the same in torch.inference_mode, and never silently zero."""

import numpy as np
import pytest
import torch

import torchmdx
from torchmdx import System, evaluate
from torchmdx.evaluate import differentiate
from torchmdx.neighbors.brute_force import brute_force
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
