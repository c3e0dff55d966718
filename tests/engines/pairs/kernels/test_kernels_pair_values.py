"""Directions, basis and cutoff function of pairs by kernels, against torch operations."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from pair_lists import CUTOFF, listed, systems

from torchmdx import Batch, Potential, TensorNetConfig
from torchmdx.engines.pairs import pair_values
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.evaluation.derivatives import differentiate

PAIRS = 40


def network(**settings):
    potential = Potential(TensorNetConfig(num_channels=4, num_radial=5, num_layers=1, cutoff=CUTOFF, **settings))
    return potential.double().to(DEVICE).network


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


@pytest.fixture
def kernels(monkeypatch):
    from torchmdx.engines.pairs.kernels import pair_values as kernels

    chosen = lambda network, vectors: kernels if pair_values.has_kernels(network) else None  # noqa: E731
    monkeypatch.setattr(pair_values, "pair_kernels_of", chosen)
    return kernels


def vectors() -> torch.Tensor:
    """Some beyond the cutoff, and one of padding."""
    made = random(PAIRS, 3) * CUTOFF * 0.6
    made[-1] = 1e6
    return made.requires_grad_()


@needs_kernels
@pytest.mark.parametrize("own", [True, False])
def test_values_and_gradients_are_those_of_torch(kernels, own):
    model = network(self_message=own)
    found = []
    for function in (pair_values.pair_values, pair_values._composed):
        v = vectors()
        values = function(model, v)
        weights = [random(*x.shape, seed=k).requires_grad_() for k, x in enumerate(values)]
        (first,) = torch.autograd.grad(values, v, weights, create_graph=True)
        of_gradients = torch.autograd.grad((first**2).sum(), weights, retain_graph=True)
        by_all = torch.autograd.grad((first**2).sum(), [v, *weights], retain_graph=True)
        graph = torch.autograd.grad((first**2).sum(), [v, *weights], create_graph=True)
        (third,) = torch.autograd.grad(sum((x**2).sum() for x in graph), v)
        found.append([*values, first, *of_gradients, *by_all, *graph, third])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11 * (1 + float(other.detach().abs().max())))


@needs_kernels
def test_higher_derivatives_of_a_function_of_the_values(kernels):
    """Gradients that come back depend on the vectors themselves."""
    model, found = network(), []
    for function in (pair_values.pair_values, pair_values._composed):
        v = vectors()
        (first,) = torch.autograd.grad(sum((x**3).sum() for x in function(model, v)), v, create_graph=True)
        (last,) = torch.autograd.grad((first**2).sum(), v, retain_graph=True)
        again = [torch.autograd.grad(x, v, retain_graph=True)[0] for x in first[3]]
        (second,) = torch.autograd.grad((first**2).sum(), v, create_graph=True)
        (third,) = torch.autograd.grad((second**2).sum(), v)
        found.append([first, last, *again, second, third])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11 * (1 + float(other.detach().abs().max())))


@needs_kernels
@pytest.mark.parametrize("stress", [False, True])
def test_gradients_of_a_loss_on_forces_are_those_of_the_plain_network(kernels, stress):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=4, num_radial=4, num_layers=1, cutoff=CUTOFF)).double()
    potential, batch = potential.to(DEVICE), Batch.from_systems(systems()).to(DEVICE)
    edges, reverse = listed(batch)
    weights = [p for p in potential.parameters() if p.requires_grad]
    found = []
    for result in (
        differentiate_pairwise(potential, batch, edges, reverse, stress=stress),
        differentiate(potential, batch, edges, forces=True, stress=stress, create_graph=True),
    ):
        loss = (result.energy**2).sum() + (result.forces**2).sum()
        if stress:
            loss = loss + (torch.nan_to_num(result.stress) ** 2).sum()
        found.append([result.forces, *torch.autograd.grad(loss, weights)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * float(other.detach().abs().max()) + 1e-300)
