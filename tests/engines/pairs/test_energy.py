"""The network that training uses: the same numbers as the plain one, to the second derivative, and its GPU kernels."""

import numpy as np
import pytest
import torch
from pair_lists import CUTOFF, listed, random, systems

from torchmdx import Batch, Potential, System, TensorNetConfig
from torchmdx.engines import ops
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.engines.pairs.messages import Messages, SurroundingsForm
from torchmdx.engines.pairs.multilinear import partial
from torchmdx.engines.pairs.pair_list import PairList, at_ends, sum_rows, take_rows
from torchmdx.engines.pairs.products import PartLinear, PartSums, Products, RowScale, part_sums
from torchmdx.engines.pairs.silu import activate_rows, derivative
from torchmdx.evaluation.derivatives import differentiate

CHANNELS = 3


@pytest.fixture
def pairs() -> PairList:
    return PairList.of(*listed(Batch.from_systems(systems())))


def test_every_edge_belongs_to_a_pair_of_two(pairs):
    edges, count = pairs.edges, int(pairs.edges.num_edges)
    assert int(pairs.num_pairs) == count // 2
    codes = pairs.code[:count].tolist()
    assert sorted(codes) == list(range(count))
    for pair in range(count // 2):
        first, other = codes.index(2 * pair), codes.index(2 * pair + 1)
        assert first == int(pairs.first[pair])
        assert (edges.source[first], edges.target[first]) == (edges.target[other], edges.source[other])
        assert (edges.shifts[first] == -edges.shifts[other]).all()


def require_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-12 of the largest number."""
    largest = float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * largest + 1e-300)


CONFIGS = {
    "two layers": {},
    "SO(3), gauss": dict(group="SO(3)", num_layers=1, radial_basis="gauss"),
    "no layer": dict(num_layers=0),
    "tanh, trained basis": dict(activation="tanh", num_layers=3, trainable_basis=True),
    "messages of own tensors": dict(messages="target"),
    "the same, SO(3)": dict(messages="target", self_message=False, group="SO(3)"),
}


@pytest.mark.nightly_for("700")
@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("capacity", [None, 700])
def test_energies_forces_stress_and_gradients_of_a_loss_are_those_of_the_plain_network(config, capacity):
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=6, num_radial=5, cutoff=CUTOFF, **config)).double()
    potential.scale.fill_(30.0)
    batch = Batch.from_systems(systems())
    edges, reverse = listed(batch, capacity)
    ours = differentiate_pairwise(potential, batch, edges, reverse, stress=True)
    plain = differentiate(potential, batch, edges, forces=True, stress=True, create_graph=True)
    solid = torch.linalg.det(batch.cell).abs()[:, None, None] > 0
    assert torch.equal(torch.isnan(ours.stress), torch.isnan(plain.stress))
    torch.testing.assert_close(ours.energy, plain.energy, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.energies, plain.energies, rtol=1e-12, atol=1e-12)
    require_close(ours.forces, plain.forces)
    require_close(torch.where(solid, ours.stress, 0.0), torch.where(solid, plain.stress, 0.0))
    target = torch.randn_like(ours.forces)
    weights = [p for p in potential.parameters() if p.requires_grad]

    def gradients(result):
        stress = torch.where(solid, result.stress, 0.0)
        loss = (result.energy**2).sum() + ((result.forces - target) ** 2).sum() + 100 * (stress**2).sum()
        return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)

    for found, expected in zip(gradients(ours), gradients(plain), strict=True):
        require_close(found, expected)
        assert torch.isfinite(found).all()


def test_without_a_graph_the_results_are_the_same():
    potential = Potential(TensorNetConfig(num_channels=4, num_radial=4, cutoff=CUTOFF)).double()
    batch = Batch.from_systems(systems())
    edges, reverse = listed(batch)
    kept = differentiate_pairwise(potential, batch, edges, reverse)
    freed = differentiate_pairwise(potential, batch, edges, reverse, create_graph=False)
    assert kept.forces.requires_grad
    assert not freed.forces.requires_grad
    assert not freed.energy.requires_grad
    assert torch.equal(kept.forces.detach(), freed.forces)
    assert torch.equal(kept.energy.detach(), freed.energy)
    energy = differentiate_pairwise(potential, batch, edges, reverse, forces=False)
    assert energy.forces is None
    assert torch.equal(energy.energy, kept.energy)


def test_weights_of_linear_maps_for_many_atoms(monkeypatch):
    x, g = random(7, 9, CHANNELS), random(7, 9, CHANNELS, seed=1)
    few = PartLinear().partial(1, (x, None, g))
    monkeypatch.setattr("torchmdx.engines.pairs.products.MANY_ATOMS", 7)
    torch.testing.assert_close(PartLinear().partial(1, (x, None, g)), few)


def test_without_any_pair():
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(num_channels=4, num_radial=4, cutoff=CUTOFF)).double()
    batch = Batch.from_systems([System.create(np.zeros((1, 3)), [8])] * 2)
    edges, reverse = listed(batch)
    result = differentiate_pairwise(potential, batch, edges, reverse)
    assert result.energy[0] == result.energy[1]
    assert (result.forces == 0).all()


def plain_messages(pairs: PairList, f, x, g) -> torch.Tensor:
    edges = pairs.edges.trimmed()
    return (
        ops.message(edges.target, f[pairs.code[: edges.capacity].long() // 2], f[-1:], x, x[edges.source]) * g
    ).sum()


def loop_surroundings(pairs: PairList, d, f, z, g) -> torch.Tensor:
    part = [0, 1, 1, 1, 2, 2, 2, 2, 2]
    total = (d[-1, 0] * f[-1, 0] * (z[:, 0] + z[:, 1]) * g[:, 0]).sum()
    for e in range(int(pairs.edges.num_edges)):
        i, j, p = int(pairs.edges.target[e]), int(pairs.edges.source[e]), int(pairs.code[e]) // 2
        for m in range(9):
            sign = -1.0 if m in (1, 2, 3) and int(pairs.code[e]) % 2 else 1.0
            total = total + (sign * d[p, m] * f[p, part[m]] * (z[i, 0] + z[j, 1]) * g[i, m]).sum()
    return total


def arguments(pairs: PairList, name: str) -> list[torch.Tensor]:
    n, p = pairs.edges.num_atoms, pairs.num_slots
    nine, filters = (n, 9, CHANNELS), (p + 1, 3, CHANNELS)
    shapes = {
        "messages": [filters, nine, nine],
        "surroundings": [(p + 1, 9), filters, (n, 2, CHANNELS), nine],
        "part sums": [nine, nine, (n, 3, CHANNELS)],
        "norms": [nine, nine, (n, 3, CHANNELS)],
        "one sum": [nine, nine, (n, 1, CHANNELS)],
        "linear": [nine, (3, CHANNELS, CHANNELS), nine],
        "rows": [(5, 4), (5, 1), (5, 4)],
        "products": [nine, nine, nine],
        "symmetric products": [nine, nine, nine],
    }
    return [random(*shape, seed=k) for k, shape in enumerate(shapes[name])]


def forms(pairs: PairList) -> dict:
    return {
        "messages": Messages(pairs),
        "surroundings": SurroundingsForm(pairs),
        "part sums": PartSums(),
        "norms": PartSums(metric=True),
        "one sum": PartSums(parts=1),
        "linear": PartLinear(),
        "rows": RowScale(),
        "products": Products(symmetric=False),
        "symmetric products": Products(symmetric=True),
    }


def matrices(x):
    s, ax, ay, az, xx, xy, xz, yy, yz = x.unbind(1)
    rows = [[s + xx, xy - az, xz + ay], [xy + az, s + yy, yz - ax], [xz - ay, yz + ax, s - xx - yy]]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)  # [N,C,3,3]


def components(m):
    s = m.diagonal(dim1=-2, dim2=-1).sum(-1) / 3
    a, q = (m - m.mT) / 2, (m + m.mT) / 2
    parts = [s, a[..., 2, 1], a[..., 0, 2], a[..., 1, 0]]
    parts += [q[..., 0, 0] - s, q[..., 0, 1], q[..., 0, 2], q[..., 1, 1] - s, q[..., 1, 2]]
    return torch.stack(parts, 1)


def number(name: str, pairs: PairList, *values) -> torch.Tensor:
    """The form itself, written another way."""
    if name == "messages":
        return plain_messages(pairs, *values)
    if name == "surroundings":
        return loop_surroundings(pairs, *values)
    a, b, h = values
    if name == "rows":
        return sum((a[p] * b[p] * h[p]).sum() for p in range(len(a)))
    if name == "linear":
        return sum((h[:, m] * (a[:, m] @ b[(0, 1, 1, 1, 2, 2, 2, 2, 2)[m]].T)).sum() for m in range(9))
    if name == "one sum":
        return (a * b * h).sum()
    if name == "norms":  # of matrices, part by part
        zero = torch.zeros_like(a)
        parts = [
            torch.cat([zero[:, :start], x[:, start:end], zero[:, end:]], 1)
            for x in (a, b)
            for start, end in ((0, 1), (1, 4), (4, 9))
        ]
        return sum(((matrices(parts[k]) * matrices(parts[3 + k])).sum((-1, -2)) * h[:, k]).sum() for k in range(3))
    if name == "part sums":
        return sum(
            (a[:, m] * b[:, m] * h[:, k]).sum()
            for k, part in enumerate(([0], [1, 2, 3], [4, 5, 6, 7, 8]))
            for m in part
        )
    both = matrices(a) @ matrices(b)
    if name == "symmetric products":
        both = both + matrices(b) @ matrices(a)
    return (components(both) * h).sum()


NAMES = (
    "messages",
    "surroundings",
    "part sums",
    "norms",
    "one sum",
    "linear",
    "rows",
    "products",
    "symmetric products",
)


@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("name", NAMES)
def test_partial_derivatives_are_those_of_the_form(pairs, name):
    values = [v.requires_grad_() for v in arguments(pairs, name)]
    expected = torch.autograd.grad(number(name, pairs, *values), values)
    for slot in range(len(values)):
        rest = [None if k == slot else v.detach() for k, v in enumerate(values)]
        found = partial(forms(pairs)[name], slot, *rest)
        if name == "surroundings" and slot == 0:  # its last row is a constant
            found, expected_here = found[:-1], expected[slot][:-1]
        else:
            expected_here = expected[slot]
        torch.testing.assert_close(found, expected_here, rtol=1e-11, atol=1e-11)


@pytest.mark.nightly_for(
    "torch-part sums",
    "C",
    "messages",
    "products",
    "surroundings",
    "torch-linear",
    "torch-norms",
    "torch-symmetric products",
)
@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("name", NAMES)
def test_they_can_be_differentiated_twice(name):
    batch = Batch.from_systems([System.create(random(3, 3).numpy(), [1, 6, 8])])
    pairs = PairList.of(*listed(batch, 8))
    values = arguments(pairs, name)
    constant = name == "surroundings"  # the last row of the directions
    for slot in range(len(values)):
        inputs = [v.clone().requires_grad_(not (constant and k == 0)) for k, v in enumerate(values) if k != slot]

        def run(*rest, slot=slot):
            found = partial(forms(pairs)[name], slot, *rest[:slot], None, *rest[slot:])
            return found[:-1] if constant and slot == 0 else found

        assert torch.autograd.gradcheck(run, inputs)
        assert torch.autograd.gradgradcheck(run, inputs, fast_mode=True)  # along random directions


def test_ends_of_pairs_and_rows_have_each_other_as_derivatives(pairs):
    values = random(pairs.edges.num_atoms, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: at_ends(v, pairs, -1.0, 2.0), values)
    found = at_ends(values, pairs, -1.0, 2.0)
    for p in range(int(pairs.num_pairs)):
        e = int(pairs.first[p])
        wanted = 2 * values[int(pairs.edges.source[e])] - values[int(pairs.edges.target[e])]
        assert torch.equal(found[p], wanted)
    assert (found[int(pairs.num_pairs) :] == 0).all()
    index = torch.tensor([0, 0, 2, 2, 2, 3])
    rows = random(5, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: take_rows(v, index, 5), rows)
    total = sum_rows(random(6, 2), index, 5)
    assert (total[[1, 4]] == 0).all()
    torch.testing.assert_close(total[2], random(6, 2)[2:5].sum(0))


@pytest.mark.parametrize("order", [0, 1, 2])
def test_derivatives_of_silu(order):
    x = random(50).requires_grad_()
    (slope,) = torch.autograd.grad(derivative(order, x).sum(), x)
    torch.testing.assert_close(derivative(order + 1, x), slope)


def test_silu_of_rows_and_its_derivatives():
    x, e = random(7, 5).requires_grad_(), random(7, 1, seed=1).requires_grad_()
    plain = torch.nn.functional.silu(x) * e
    torch.testing.assert_close(activate_rows(x, e), plain, rtol=1e-14, atol=1e-14)
    h, weights = random(7, 5, seed=2).requires_grad_(), (random(7, 5, seed=3), random(7, 1, seed=4))
    for inputs in ([x, e], [x], [e]):

        def twice(values, inputs=inputs):
            first = torch.autograd.grad(values, inputs, h, create_graph=True)
            loss = sum((w * v).sum() for w, v in zip(weights, first, strict=False) if w.shape == v.shape)
            loss = loss if len(inputs) > 1 or inputs[0] is x else (first[0] * weights[1]).sum()
            return [*first, *torch.autograd.grad(loss, [x, e, h], allow_unused=True, materialize_grads=True)]

        for found, expected in zip(twice(activate_rows(x, e)), twice(torch.nn.functional.silu(x) * e), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(activate_rows, (x, e))
    assert torch.autograd.gradgradcheck(activate_rows, (x, e))


@pytest.mark.interpreter
class TestKernels:
    @pytest.fixture(autouse=True)
    def load(self):
        from torchmdx.engines.pairs.kernels import multilinear as form_kernels

        self.kernels = form_kernels

    @pytest.mark.nightly_for("dtype1")
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_messages_and_surroundings(self, pairs, dtype):
        tolerance = dict(rtol=1e-11, atol=1e-11) if dtype == torch.float64 else dict(rtol=1e-4, atol=1e-4)
        f, x, g = (v.to(dtype) for v in arguments(pairs, "messages"))
        form = Messages(pairs)
        torch.testing.assert_close(self.kernels.messages_rows(pairs, f, x), form.partial(2, (f, x, None)), **tolerance)
        torch.testing.assert_close(self.kernels.messages_pairs(pairs, x, g), form.partial(0, (None, x, g)), **tolerance)
        values = [v.to(dtype) for v in arguments(pairs, "surroundings")]
        for slot in range(4):
            rest = [None if k == slot else v for k, v in enumerate(values)]
            found = self.kernels.surroundings(pairs, slot, *rest)
            torch.testing.assert_close(found, SurroundingsForm(pairs).partial(slot, tuple(rest)), **tolerance)

    @pytest.mark.parametrize("capacity", [None, 700])
    def test_slots_without_a_pair_are_zero_whatever_memory_held(self, capacity, monkeypatch):
        pairs = PairList.of(*listed(Batch.from_systems(systems()), capacity))
        used = int(pairs.num_pairs)
        assert capacity is None or used < pairs.num_slots - 40
        plain = torch.Tensor.new_empty
        monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *a, **b: plain(self, *a, **b).fill_(7.0))
        rows = self.kernels.pair_rows(pairs, random(1), 50)
        assert (rows[:used] == 7).all()
        assert (rows[used:] == 0).all()
        _, x, g = arguments(pairs, "messages")
        found = self.kernels.messages_pairs(pairs, x, g)
        torch.testing.assert_close(found, Messages(pairs).partial(0, (None, x, g)))
        d, _, z, g = arguments(pairs, "surroundings")
        found = self.kernels.surroundings(pairs, 1, d, None, z, g)
        torch.testing.assert_close(found, SurroundingsForm(pairs).partial(1, (d, None, z, g)))

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_products_and_part_sums(self, pairs, symmetric):
        a, b, h = arguments(pairs, "products")
        form = Products(symmetric)
        for slot in range(3):
            rest = tuple(None if k == slot else v for k, v in enumerate((a, b, h)))
            torch.testing.assert_close(self.kernels.products(slot, symmetric, *rest), form.partial(slot, rest))
        torch.testing.assert_close(self.kernels.part_sums(a, b), part_sums(a * b))
        for parts in (1, 3):
            h = random(len(a), parts, CHANNELS)
            for metric in (False, True):
                form = PartSums(parts, metric)
                torch.testing.assert_close(self.kernels.scale_parts(a, h, metric), form.partial(0, (None, a, h)))
                torch.testing.assert_close(self.kernels.part_sums(a, b, parts, metric), form.partial(2, (a, b, None)))
        v, w = random(11, 150), random(11, 150, seed=1)
        torch.testing.assert_close(self.kernels.row_products(v, w), (v * w).sum(1, keepdim=True))
        torch.testing.assert_close(self.kernels.row_scale(v, w[:, :1].contiguous()), v * w[:, :1])

    def test_sums(self, pairs):
        values = random(pairs.num_slots, 5)
        out = values.new_zeros(pairs.edges.num_atoms, 5)
        ends = torch.zeros(pairs.edges.num_atoms, 5, dtype=torch.float64).requires_grad_()
        (expected,) = torch.autograd.grad(at_ends(ends, pairs, -1.0, 3.0), ends, values)
        torch.testing.assert_close(self.kernels.sum_pairs(values, pairs, -1.0, 3.0, out), expected)
        rows = random(7, 150)
        found = self.kernels.sum_rows(rows, torch.tensor([0, 0, 4, 7], dtype=torch.int32), rows.new_zeros(3, 150))
        torch.testing.assert_close(found, torch.stack([rows[:0].sum(0), rows[:4].sum(0), rows[4:].sum(0)]))

    @pytest.mark.parametrize("order", [0, 1, 2, 3])
    def test_silu(self, order):
        from torchmdx.engines.pairs.kernels.silu import both_gradients, scaled_derivative

        x, g = random(2000), random(2000, seed=1)
        torch.testing.assert_close(scaled_derivative(order, x, g), derivative(order, x) * g)
        torch.testing.assert_close(scaled_derivative(order, x, None), derivative(order, x))
        if order < 3:
            h = random(2000, seed=2)
            in_x, in_g = both_gradients(order, x, g, h)
            torch.testing.assert_close(in_x, derivative(order + 1, x) * g * h)
            torch.testing.assert_close(in_g, derivative(order, x) * h)

    @pytest.mark.nightly_for("150")
    @pytest.mark.parametrize("width", [5, 150])
    def test_silu_of_rows(self, width):
        from torchmdx.engines.pairs.kernels import silu as silu_kernels

        x, h, t = (random(11, width, seed=seed) for seed in range(3))
        e, s = random(11, 1, seed=3), random(11, 1, seed=4)
        silu, slope, bend = (derivative(order, x) for order in range(3))
        torch.testing.assert_close(silu_kernels.scaled_rows(0, x, e, None), silu * e)
        torch.testing.assert_close(silu_kernels.scaled_rows(1, x, e, h), slope * e * h)
        in_x, in_e = silu_kernels.rows_gradients(x, e, h)
        torch.testing.assert_close(in_x, slope * e * h)
        torch.testing.assert_close(in_e, (silu * h).sum(1, keepdim=True))
        in_x, in_h = silu_kernels.rows_gradients_again(x, e, h, t, s)
        torch.testing.assert_close(in_x, bend * e * h * t + slope * h * s)
        torch.testing.assert_close(in_h, slope * e * t + silu * s)
        nothing = silu_kernels.rows_gradients(x[:0], e[:0], h[:0])
        assert [tuple(value.shape) for value in nothing] == [(0, width), (0, 1)]
