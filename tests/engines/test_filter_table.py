import pytest
import torch
from torch.func import jvp

from torchmdx import TensorNetConfig
from torchmdx.engines.filter_table import DEGREE, Stretch, tabulate
from torchmdx.models.tensornet import TensorNet

SETTINGS = [
    dict(),
    dict(radial_basis="gauss"),
    dict(radial_basis="bessel", num_radial=3),
    dict(num_layers=0),
    dict(cutoff=8.0, activation="mish"),
    dict(num_radial=16, activation="tanh", group="SO(3)"),
]


def make_network(seed=0, **settings):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TensorNet(TensorNetConfig(**{"num_channels": 8, "num_layers": 2, "num_radial": 8, **settings})).double()


def values_and_slopes(filters, r):
    return jvp(lambda s: torch.stack(filters(s)), (r,), (torch.ones_like(r),))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_values_and_slopes_are_within_the_bound(settings):
    network = make_network(**settings)
    bound = 1e-4
    table = tabulate(network, bound, torch.float64)
    assert table.error <= bound
    r = torch.rand(2000, dtype=torch.float64) * table.stretch.cutoff
    with torch.no_grad():
        for exact, found in zip(values_and_slopes(network.filters, r), values_and_slopes(table, r), strict=True):
            scale = exact.abs().amax(dim=(1, 2, 3), keepdim=True)
            assert ((exact - found).abs() / scale).max() <= bound


def test_without_messages_to_itself_an_atom_has_none_and_neighbours_are_as_near_as_before():
    network = make_network(self_message=False)
    table = tabulate(network, 1e-4, torch.float64)
    assert table.error <= 1e-4
    assert not table.own.any()
    assert all((filters == 0).all() for filters in table(torch.zeros(1, dtype=torch.float64)))


def test_slopes_that_are_not_numbers_are_an_error():
    network = make_network()
    network.basis.forward = lambda r: torch.sqrt(r)[:, None].expand(-1, 8)  # infinite slope at 0
    assert tabulate(network, 1e9, torch.float64).error == float("inf")


def test_a_lower_bound_takes_more_intervals():
    network = make_network()
    coarse, fine = (tabulate(network, bound) for bound in (1e-2, 1e-9))
    assert coarse.stretch.num_intervals < fine.stretch.num_intervals
    assert fine.error <= 1e-9


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_table_is_made_where_gradients_are_switched_off(mode):
    wanted = tabulate(make_network(), 1e-4, torch.float64)
    with mode():
        found = tabulate(make_network(), 1e-4, torch.float64)
    assert found.error == wanted.error
    assert torch.equal(found.coefficients, wanted.coefficients)


def test_an_even_spacing_is_taken_where_the_basis_is_even():
    assert tabulate(make_network(radial_basis="gauss", num_radial=32), 1e-3).stretch.uniform == 1.0
    assert tabulate(make_network(num_radial=32), 1e-3).stretch.uniform < 0.5


def test_value_and_slope_are_continuous_at_every_knot():
    table = tabulate(make_network(), 1e-3, torch.float64)
    a = table.coefficients
    powers = torch.arange(DEGREE + 1, dtype=torch.float64)[:, None, None]
    torch.testing.assert_close(a[:, :-1].sum(2), a[:, 1:, 0], atol=1e-11, rtol=0)
    torch.testing.assert_close((powers * a[:, :-1]).sum(2), a[:, 1:, 1], atol=1e-10, rtol=0)


def test_filters_end_with_value_and_slope_zero():
    table = tabulate(make_network(), 1e-3, torch.float64)
    cutoff = table.stretch.cutoff
    assert (table.coefficients[:, 0, :2].abs() < 1e-13).all()
    beyond = torch.tensor([cutoff, cutoff + 1e-9, 2 * cutoff, 1e6], dtype=torch.float64)
    assert all((f == 0).all() for f in table(beyond))


def test_distance_zero_is_exact():
    network = make_network()
    table = tabulate(network, 1e-3, torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    for exact, found, own in zip(network.filters(zero), table(zero), table.own, strict=True):
        torch.testing.assert_close(found, exact, atol=1e-14, rtol=0)
        torch.testing.assert_close(own, exact[0], atol=1e-14, rtol=0)


def test_the_table_is_differentiable_by_distance():
    table = tabulate(make_network(), 1e-3, torch.float64)
    r = torch.tensor([0.7, 1.9, 3.3, 4.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: torch.stack(table(s)).sum((0, 2, 3)), (r,), eps=1e-7)


@pytest.mark.parametrize("uniform", [0.0, 0.1, 1.0])
def test_the_stretch_runs_from_the_cutoff_to_the_nucleus_and_back(uniform):
    stretch = Stretch(100, 5.0, uniform)
    r = torch.linspace(0, 5, 50, dtype=torch.float64)
    x = stretch(r)
    assert float(x[0]) == pytest.approx(100)
    assert float(x[-1]) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(stretch.inverse(x), r, atol=1e-9, rtol=0)
    torch.testing.assert_close(jvp(stretch, (r,), (torch.ones_like(r),))[1], stretch.slope(r))


def test_a_bound_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"bound must be > 0, got 0"):
        tabulate(make_network(), 0.0)
