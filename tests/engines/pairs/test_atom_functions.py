"""Functions of the tensors of one atom, by kernels and composed of forms, against the algebra of the model."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from pair_lists import CUTOFF, listed, systems

from torchmdx import Batch, Potential, TensorNetConfig
from torchmdx.engines.pairs import atom_functions
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.evaluate import differentiate
from torchmdx.models.tensors import product, squared_norm

ATOMS, CHANNELS = 3, 5
FUNCTIONS = {"normalised": 1, "product": 2, "updated": 2}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(DEVICE).requires_grad_()


@pytest.fixture
def kernels(monkeypatch):
    from torchmdx.engines.pairs.kernels import atom_functions as kernels

    monkeypatch.setattr(atom_functions, "atom_kernels_of", lambda x: kernels)


def evaluated(name: str, inputs: list[torch.Tensor], factor: torch.Tensor | None) -> torch.Tensor:
    return getattr(atom_functions, name)(*inputs, *([] if name == "normalised" else [factor]))


def by_matrices(name: str, inputs: list[torch.Tensor], factor: torch.Tensor | None) -> torch.Tensor:
    """From the definitions, with the algebra of the reference model."""
    f = 1.0 if factor is None else factor[:, :, None]
    if name == "normalised":
        return inputs[0] / (squared_norm(inputs[0]) + 1)[:, None]
    x, y = inputs
    if name == "product":
        return f * (product(x, y) + product(y, x))
    return x + y + f * product(y, y)


def derivatives(function, inputs: list[torch.Tensor], order: int) -> list[torch.Tensor]:
    """The value, then gradients of sums over the last gradients with fixed weights, up to this order."""
    found = [function(inputs)]
    last = [found[0]]
    for number in range(order):
        if not any(x.requires_grad for x in last):  # the second derivatives of products are constants
            break
        total = sum((x * random(*x.shape, seed=10 + number).detach()).sum() for x in last if x.requires_grad)
        more = number + 1 < order
        last = list(torch.autograd.grad(total, inputs, create_graph=more, allow_unused=True, materialize_grads=True))
        found += last
    return found


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


@pytest.mark.parametrize("has_factor", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_composed_functions_have_the_derivatives_of_the_definition(monkeypatch, name, has_factor):
    monkeypatch.setattr(atom_functions, "atom_kernels_of", lambda x: None)
    inputs = [random(ATOMS, 9, CHANNELS, seed=k) for k in range(FUNCTIONS[name])]
    factor = random(ATOMS, 1, seed=9).detach() if has_factor else None
    found = derivatives(lambda given: evaluated(name, given, factor), inputs, 2)
    wanted = derivatives(lambda given: by_matrices(name, given, factor), inputs, 2)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


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
