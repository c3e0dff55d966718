"""Filters as combinations of few functions, against the filters' table."""

import pytest
import torch

pytest.importorskip("triton")

from torchmdx import Potential, TensorNetConfig, load
from torchmdx.engines.filter_table import TabulatedFilters, tabulate
from torchmdx.engines.gpu.element_functions import BOUND, ElementFunctions, PresentElements


def made(**settings):
    torch.manual_seed(0)
    network = Potential(TensorNetConfig(num_layers=0, **settings)).requires_grad_(False).network
    table = tabulate(network)
    return table, ElementFunctions.of(table.coefficients[0], table.stretch)


@pytest.mark.nightly
def test_functions_of_trained_weights_make_the_filters():
    table = tabulate(load("organic-1").requires_grad_(False).network)
    found = ElementFunctions.of(table.coefficients[0], table.stretch)
    assert found.count == 32
    coefficients = torch.einsum("nqk,pkc->nqpc", found.table.double(), found.matrices.double())
    nearer = TabulatedFilters(coefficients[None], table.own[:1].double(), table.stretch, 0.0)
    r = torch.linspace(0.4, 5, 3001, dtype=torch.float64, requires_grad=True)
    exact = TabulatedFilters(table.coefficients[:1].double(), table.own[:1].double(), table.stretch, 0.0)
    change = (nearer(r)[0] - exact(r)[0]).abs().amax()
    assert change < 2 * BOUND * exact(r)[0].abs().amax()
    slopes = [torch.autograd.grad(t(r)[0][:, 1, 7].sum(), r)[0] for t in (nearer, exact)]
    assert (slopes[0] - slopes[1]).abs().max() < 2 * BOUND * 30
    assert table.stretch(torch.tensor(0.4)) < found.last_knot + 1


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (dict(num_channels=64, num_radial=3, radial_basis="bessel"), 16),
        (dict(num_channels=64, num_radial=32), 32),
        (dict(num_channels=128, num_radial=50), 64),
        (dict(num_channels=64, num_radial=50), None),
        (dict(num_channels=16, num_radial=4), None),
    ],
    ids=str,
)
def test_as_many_functions_as_the_filters_need(settings, count):
    table, found = made(**settings)
    assert (None if found is None else found.count) == count
    assert found is None or found.table.shape == (table.stretch.num_intervals, 6, count)


def test_filters_that_are_not_numbers_have_no_functions():
    table, _ = made(num_channels=64, num_radial=8)
    assert ElementFunctions.of(torch.full_like(table.coefficients[0], torch.nan), table.stretch) is None


def test_matrices_of_the_elements_that_are_present():
    _, functions = made(num_channels=32, num_radial=8)
    sources = torch.randn(10, 32)
    found = PresentElements.of(functions, [1, 8], sources)
    assert found.slots.tolist() == [-1, 0, -1, -1, -1, -1, -1, -1, 1, -1]
    big, small, of_slots, rest = found.matrices_back
    torch.testing.assert_close(big + small, functions.matrices, rtol=0, atol=0)
    torch.testing.assert_close((of_slots + rest)[:, 1], functions.matrices * sources[8])
    torch.testing.assert_close(sum(found.matrices[:2]), functions.matrices.transpose(1, 2), rtol=0, atol=0)
    forward = found.matrices[2] + found.matrices[3]
    torch.testing.assert_close(forward[:, :, 0], (functions.matrices * sources[1]).transpose(1, 2))
    assert PresentElements.of(functions, [], sources) is None
    assert PresentElements.of(functions, list(range(9)), sources) is None
    assert PresentElements.of(None, [1], sources) is None
