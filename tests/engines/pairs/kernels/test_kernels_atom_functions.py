"""Kernels of functions of the tensors of one atom, to the third derivative, and the network that uses them."""

import pytest
import torch
from atom_algebra import ATOMS, CHANNELS, FUNCTIONS, by_matrices, derivatives, evaluated, random
from interpreter import DEVICE, needs_kernels
from pair_lists import CUTOFF, listed, systems

from torchmdx import Batch, Potential, TensorNetConfig
from torchmdx.engines.pairs import atom_functions
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.evaluation.derivatives import differentiate


@pytest.fixture
def kernels(monkeypatch):
    from torchmdx.engines.pairs.kernels import atom_functions as kernels

    monkeypatch.setattr(atom_functions, "atom_kernels_of", lambda x: kernels)


@needs_kernels
@pytest.mark.parametrize("has_factor", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_have_the_derivatives_of_the_definition(kernels, name, order, has_factor):
    inputs = [random(ATOMS, 9, CHANNELS, seed=k) for k in range(FUNCTIONS[name])]
    factor = random(ATOMS, 1, seed=9).detach() if has_factor else None
    found = derivatives(lambda given: evaluated(name, given, factor), inputs, order)
    wanted = derivatives(lambda given: by_matrices(name, given, factor), inputs, order)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


@needs_kernels
@pytest.mark.parametrize("has_factor", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_higher_derivatives_of_a_function_of_the_result(kernels, name, has_factor):
    """Gradients that come back depend on the inputs themselves."""
    factor, found = random(ATOMS, 1, seed=9).detach() if has_factor else None, []
    for function in (evaluated, by_matrices):
        inputs = [random(ATOMS, 9, CHANNELS, seed=k) for k in range(FUNCTIONS[name])]
        gradients = [(function(name, inputs, factor) ** 3).sum()]
        for _ in range(3):
            gradients = torch.autograd.grad(sum((x**2).sum() for x in gradients), inputs, create_graph=True)
            found.append(gradients)
    for ours, plain in zip(found[:3], found[3:], strict=True):
        for one, other in zip(ours, plain, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * float(other.detach().abs().max()))


@pytest.mark.nightly_for("SO(3)")
@needs_kernels
@pytest.mark.parametrize("group", ["O(3)", "SO(3)"])
def test_gradients_of_a_loss_on_forces_are_those_of_the_plain_network(kernels, group):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=4, num_radial=4, cutoff=CUTOFF, group=group)).double().to(DEVICE)
    batch = Batch.from_systems(systems()).to(DEVICE)
    edges, reverse = listed(batch)
    results = [
        differentiate_pairwise(potential, batch, edges, reverse),
        differentiate(potential, batch, edges, forces=True, create_graph=True),
    ]
    weights = [p for p in potential.parameters() if p.requires_grad]
    losses = [(x.energy**2).sum() + (x.forces**2).sum() for x in results]
    ours, plain = (torch.autograd.grad(x, weights, allow_unused=True, materialize_grads=True) for x in losses)
    torch.testing.assert_close(results[0].forces, results[1].forces, rtol=1e-11, atol=1e-11)
    for one, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * float(other.abs().max()) + 1e-300)
