"""Backward passes compute what they are asked for and nothing else, with the same numbers."""

import collections

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchmdx import Batch, Potential, System, TensorNetConfig
from torchmdx.engines.pairs import messages, multilinear, products, silu
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.neighbors.search import EdgeSearch

CUTOFF, LAYERS = 3.0, 2
FORMS = (messages.Messages, messages.SurroundingsForm)
FORMS += (products.PartSums, products.PartLinear, products.RowScale, products.Products)


class Product(torch.autograd.Function):
    """x w, which notes what was asked of its backward passes."""

    asked = []

    @staticmethod
    def forward(ctx, unused, x, none, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        flags = multilinear.inputs_with_gradient(ctx, (x, None, w), 1)
        Product.asked.append(tuple(flags))
        return None, gradient * w if flags[0] else None, None, gradient * x if flags[2] else None


@pytest.fixture
def asked():
    Product.asked = []
    return Product.asked


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("create_graph", [True, False])
def test_what_a_pass_is_for_is_what_it_is_asked(asked, leaf, create_graph):
    x, w = (torch.randn(3, dtype=torch.float64).requires_grad_() for _ in range(2))
    y, z = (x, w) if leaf else (2 * x, 2 * w)
    out = Product.apply("", y, None, z).sum()
    for inputs in ([x], [w], [x, w]) if leaf else ([x], [w], [x, w], [y], [z]):
        torch.autograd.grad(out, inputs, create_graph=create_graph, retain_graph=True)
    both = (True, False, True)
    expected = [(True, False, False), (False, False, True), both]
    assert asked == (expected if leaf else [*expected, *expected[:2]])
    out.backward()
    assert asked[-1] == both
    torch.testing.assert_close(w.grad, x.detach() if leaf else 4 * x.detach())


def test_constants_are_never_asked_for(asked):
    x, w = torch.randn(3).requires_grad_(), torch.randn(3)
    torch.autograd.grad(Product.apply("", x, None, w).sum(), x)
    assert asked == [(True, False, False)]


def test_without_torch_s_answer_everything_is_computed(asked, monkeypatch):
    monkeypatch.setattr(multilinear, "_executes", None)
    x, w = torch.randn(3).requires_grad_(), torch.randn(3).requires_grad_()
    torch.autograd.grad(Product.apply("", x, None, w).sum(), x)
    assert asked == [(True, False, True)]


@pytest.fixture
def potential() -> Potential:
    torch.manual_seed(0)
    return Potential(TensorNetConfig(num_channels=6, num_radial=5, num_layers=LAYERS, cutoff=CUTOFF)).double()


@pytest.fixture
def counts(monkeypatch):
    """How often each partial derivative of each form, and each derivative of SiLU, was worked out."""
    found: collections.Counter = collections.Counter()

    def counted(kind):
        plain = kind.partial

        def partial(self, slot, arguments):
            found[kind.__name__, slot] += 1
            return plain(self, slot, arguments)

        return partial

    for kind in FORMS:
        monkeypatch.setattr(kind, "partial", counted(kind))
    plain = silu.derivative
    monkeypatch.setattr(silu, "derivative", lambda order, x: (found.update([("SiLU", order)]), plain(order, x))[1])
    return found


def passes(potential, counts):
    """What the pass for the forces and that for the weights have worked out, and the gradients of the weights."""
    rng = np.random.default_rng(0)
    batch = Batch.from_systems([System.create(rng.normal(size=(6, 3)) * 1.5, rng.integers(1, 9, 6))])
    search = EdgeSearch(CUTOFF, reverse=True)
    edges = search.allocate(batch)
    result = differentiate_pairwise(potential, batch, edges, search.reverse, forces=False)
    ahead = collections.Counter(counts)
    counts.clear()
    result = differentiate_pairwise(potential, batch, edges, search.reverse)
    for_forces = collections.Counter(counts) - ahead
    counts.clear()
    loss = (result.energy**2).sum() + (result.forces**2).sum()
    gradients = torch.autograd.grad(loss, [p for p in potential.parameters() if p.requires_grad])
    return for_forces, collections.Counter(counts), [result.forces, *gradients]


def test_a_pass_for_forces_leaves_the_weights_out_and_one_for_weights_the_positions(potential, counts, monkeypatch):
    for_forces, for_weights, found = passes(potential, counts)
    counts.clear()
    monkeypatch.setattr(multilinear, "_executes", None)
    forces_of_all, weights_of_all, expected = passes(potential, counts)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    # The maps of the embedding and of each layer, the embedding's shares: none of them is asked for a force.
    assert forces_of_all - for_forces == {("PartLinear", 1): 1 + 2 * LAYERS, ("SurroundingsForm", 2): 1}
    # Of the pass for the weights: cutoff functions, forward and in the graph of the forces, and directions. Those of
    # the layers belong to their last SiLU: sums of silu(x) h, and of silu'(x) h t.
    assert weights_of_all - for_weights == {
        ("RowScale", 1): 2,
        ("SurroundingsForm", 0): 2,
        ("SiLU", 0): LAYERS,
        ("SiLU", 1): LAYERS,
    }
    assert not (for_forces - forces_of_all) + (for_weights - weights_of_all)


class Sums(TorchDispatchMode):
    """Notes the shapes that are summed over their rows, as gradients of biases are."""

    def __init__(self):
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.overloadpacket.__name__ == "sum" and len(arguments) > 1 and list(arguments[1]) == [0]:
            self.shapes.append(tuple(arguments[0].shape))
        return function(*arguments, **(options or {}))


def test_biases_of_filters_get_one_sum_each_and_none_for_the_forces(potential):
    rng = np.random.default_rng(0)
    batch = Batch.from_systems([System.create(rng.normal(size=(6, 3)) * 1.5, rng.integers(1, 9, 6))])
    search = EdgeSearch(CUTOFF, reverse=True)
    edges = search.allocate(batch, 60)
    with Sums() as for_forces:
        result = differentiate_pairwise(potential, batch, edges, search.reverse)
    rows = 60 // 2 + 1
    assert not [shape for shape in for_forces.shapes if shape[0] == rows]
    loss = (result.energy**2).sum() + (result.forces**2).sum()
    with Sums() as for_weights:
        torch.autograd.grad(loss, [p for p in potential.parameters() if p.requires_grad])
    found = sorted(shape for shape in for_weights.shapes if shape[0] == rows)
    assert found == sorted([(rows, 18), *[(rows, width) for width in (6, 12, 18)] * LAYERS])
