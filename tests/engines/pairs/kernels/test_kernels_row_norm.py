"""LayerNorm by kernels against torch's, to the third derivative."""

import pytest
import torch
from interpreter import DEVICE, needs_kernels
from torch import nn

from torchmdx.engines.pairs import row_norm


@pytest.fixture
def kernels(monkeypatch):
    from torchmdx.engines.pairs.kernels import row_norm as kernels

    monkeypatch.setattr(row_norm, "row_kernels_of", lambda x: kernels)
    monkeypatch.setattr(kernels, "PROGRAMS", 3)
    return kernels


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE)


def derivatives(function, module: nn.LayerNorm, x: torch.Tensor, order: int) -> list[torch.Tensor]:
    """The value, then gradients by x and weights, of sums with fixed weights over the gradients by x before."""
    value = function(module, x)
    found, last = [value], value
    for number in range(order):
        total = (last * random(*last.shape, seed=10 + number)).sum()
        by = [x, module.weight, module.bias]
        last, *others = torch.autograd.grad(
            total, by, create_graph=number + 1 < order, allow_unused=True, materialize_grads=True
        )
        found += [last, *others]
    return found


@needs_kernels
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("width", [16, 21])
def test_derivatives_are_those_of_torch(kernels, order, width):
    module = nn.LayerNorm(width, dtype=torch.float64, device=DEVICE)
    with torch.no_grad():
        module.weight.copy_(random(width, seed=1))
        module.bias.copy_(random(width, seed=2))
    x = (random(7, width) + 0.3).requires_grad_()
    found = derivatives(row_norm.normalised_rows, module, x, order)
    wanted = derivatives(lambda module, x: module(x), module, x, order)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@needs_kernels
def test_higher_derivatives_of_a_function_of_the_rows(kernels):
    """Gradients that come back depend on the rows themselves."""
    module, found = nn.LayerNorm(16, dtype=torch.float64, device=DEVICE), []
    for function in (row_norm.normalised_rows, lambda module, x: module(x)):
        x = random(7, 16).requires_grad_()
        last = function(module, x) ** 2
        for _ in range(3):
            (last,) = torch.autograd.grad((last**2).sum(), x, create_graph=True)
            found.append(last)
    for one, other in zip(found[:3], found[3:], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * float(other.detach().abs().max()))


@needs_kernels
def test_weights_without_a_graph_of_their_own(kernels):
    """The pass for the weights: gradients by all inputs at once, none recorded."""
    module = nn.LayerNorm(16, dtype=torch.float64, device=DEVICE)
    x = random(7, 16).requires_grad_()
    losses = []
    for function in (row_norm.normalised_rows, lambda module, x: module(x)):
        (force,) = torch.autograd.grad((function(module, x) ** 3).sum(), x, create_graph=True)
        losses.append(torch.autograd.grad((force**2).sum() + force.sum(), list(module.parameters())))
    for one, other in zip(*losses, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@needs_kernels
def test_no_rows(kernels):
    module = nn.LayerNorm(4, dtype=torch.float64, device=DEVICE)
    x = torch.zeros(0, 4, dtype=torch.float64, device=DEVICE, requires_grad=True)
    found = torch.autograd.grad(row_norm.normalised_rows(module, x).sum(), [x, module.weight])
    assert found[0].shape == (0, 4)
    assert found[1].tolist() == [0.0] * 4
