import copy

import pytest
import torch
from torch.func import jvp
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import torchmdx
from torchmdx import TensorNetConfig
from torchmdx.engines import filter_table
from torchmdx.engines.filter_table import DEGREE, fingerprint, table_of, tabulate
from torchmdx.engines.hermite import FIFTH
from torchmdx.engines.knots import Stretch
from torchmdx.models.tensornet import TensorNet
from torchmdx.training.optimizer import FlatParameters

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


def test_in_float64_an_even_spacing_is_taken_where_the_basis_is_even():
    even = make_network(radial_basis="gauss", num_radial=32)
    assert tabulate(even, 1e-3, torch.float64).stretch.uniform == 1.0
    assert tabulate(make_network(num_radial=32), 1e-3, torch.float64).stretch.uniform < 0.5


def test_trained_weights_have_few_intervals_at_the_distances_of_most_edges():
    network = torchmdx.load("organic-1", device="cpu").network
    table = table_of(network.float())
    stretch = table.stretch
    assert (stretch.uniform, stretch.decay) == (0.1, 7.0)
    assert stretch.num_intervals <= 240
    assert stretch.beyond(2.5) < 18.5
    assert table.error <= filter_table.BOUND
    exact = copy.deepcopy(network).double()
    r = torch.linspace(0.05, 4.999, 500, dtype=torch.float64)
    with torch.no_grad():
        both = [values_and_slopes(of, r) for of in (exact.filters, table.double())]
    # Relative to the largest filters from a distance on; the table itself is rounded to float32.
    for start, bound in ((0.0, 1e-6), (0.8, 1e-6), (2.5, 1e-5)):
        far = r >= start
        for wanted, found in zip(*both, strict=True):
            scale = wanted[:, far].abs().amax(dim=(1, 2, 3), keepdim=True)
            assert ((wanted - found)[:, far].abs() / scale).max() < 1.2 * bound


def test_filters_at_the_distances_of_atoms_are_not_lost_in_those_of_nuclei_that_touch():
    """The first are a thousandth of the second."""
    network = make_network()
    plain = network.filters
    network.filters = lambda r: [f + 1e3 * torch.exp(-((r / 0.25) ** 2))[:, None, None] * f for f in plain(r)]
    table = tabulate(network)
    r = torch.linspace(0.9, 4.99, 500, dtype=torch.float64)
    with torch.no_grad():
        exact, found = torch.stack(network.filters(r)), torch.stack(table.double()(r))
    assert (exact - found).abs().max() < 2e-7 * exact.abs().max()


def test_tables_in_float64_have_the_spacing_of_least_error():
    table = table_of(make_network())
    assert table.stretch == Stretch(64, 5.0, 0.3, 5.0)
    assert table.coefficients.shape[2] == 10


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


def test_a_bound_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"bound must be > 0, got 0"):
        tabulate(make_network(), 0.0)


def test_a_table_is_made_once_for_the_same_weights():
    network = make_network()
    assert table_of(copy.deepcopy(network)) is table_of(network)
    assert 0 < table_of(network).error <= filter_table.BOUND


def by_data(network):
    for parameter in network.parameters():
        parameter.data.copy_(parameter.data * 1.01)


def by_flat_vector(network):
    FlatParameters(list(network.named_parameters())).values.mul_(1.01)


def by_moved_vector(network):
    """The second change through one vector, with the parameters where they were."""
    if not hasattr(network, "flat"):
        object.__setattr__(network, "flat", FlatParameters(list(network.named_parameters())))
    network.flat.values.mul_(1.01)


def by_vector_to_parameters(network):
    vector = parameters_to_vector(network.parameters()).detach()
    vector_to_parameters(vector * 1.01, network.parameters())


def by_optimizer(network):
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.01)


def by_numpy(network):
    for parameter in network.parameters():
        parameter.detach().numpy()[...] *= 1.01


WAYS = [by_data, by_flat_vector, by_moved_vector, by_vector_to_parameters, by_optimizer, by_numpy]


@pytest.mark.parametrize("change", WAYS)
def test_a_table_follows_the_weights_however_they_are_changed(change):
    network = make_network().requires_grad_(False)
    r = torch.linspace(0.1, 4.9, 50)
    for _ in range(2):
        before = torch.stack(table_of(network)(r))
        change(network)
        found, exact = torch.stack(table_of(network)(r)), torch.stack(network.filters(r.double()))
        assert (found - exact).abs().max() < 1e-5 * exact.abs().max()
        assert not torch.equal(found, before)


def test_the_fingerprint_sees_one_bit_and_two_weights_that_change_places():
    network = make_network()
    before = fingerprint(network)
    assert fingerprint(copy.deepcopy(network)) == before
    weight = network.layers[0].filters[4].weight.data.view(-1)
    kept = weight.clone()
    weight[7] = torch.nextafter(weight[7], weight.new_tensor(torch.inf))
    assert fingerprint(network) != before
    weight.copy_(kept)
    assert fingerprint(network) == before
    weight[:2] = kept[:2].flip(0)
    assert fingerprint(network) != before
    weight.copy_(kept)
    assert fingerprint(copy.deepcopy(network).float()) != before
    with torch.inference_mode():
        assert fingerprint(copy.deepcopy(network)) == before


def test_old_tables_are_forgotten(monkeypatch):
    monkeypatch.setattr(filter_table, "_kept", {})
    monkeypatch.setattr(filter_table, "MOST_KEPT", 2)
    monkeypatch.setattr(filter_table, "tabulate", lambda *_: object())
    networks = [make_network(seed) for seed in range(3)]
    first, second, _ = (table_of(network) for network in networks)
    assert len(filter_table._kept) == 2
    assert table_of(networks[1]) is second
    assert table_of(networks[0]) is not first


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_spacing_that_was_noted_gives_the_same_table(monkeypatch, tmp_path, dtype):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    built, original = [], filter_table._build
    monkeypatch.setattr(filter_table, "_build", lambda *given: built.append(1) or original(*given))
    network = make_network()
    tables = [tabulate(network, 1e-5, dtype, FIFTH, "name") for _ in range(2)]
    assert built.count(1) > 4
    assert torch.equal(tables[0].coefficients, tables[1].coefficients)
    assert (tables[0].stretch, tables[0].error) == (tables[1].stretch, tables[1].error)
    built.clear()
    tabulate(network, 1e-5, dtype, FIFTH, "name")
    assert len(built) == 1
    tabulate(network, 1e-4, dtype, FIFTH, "name")
    assert len(built) > 4  # of another bound


@pytest.mark.nightly_for("value1", "value2")
@pytest.mark.parametrize("value", [[64, 0.1, 5.0, 1e-9], [0, 0.1, 5.0, 1e-9], ["many"], None, {"n": 3}])
def test_a_note_that_is_not_true_is_not_followed(monkeypatch, tmp_path, value):
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path))
    wanted = tabulate(make_network(), 1e-4)
    monkeypatch.setattr(filter_table, "noted", lambda *_: value)
    found = tabulate(make_network(), 1e-4, name="name")
    assert torch.equal(found.coefficients, wanted.coefficients)
