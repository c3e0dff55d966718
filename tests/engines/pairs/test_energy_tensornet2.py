"""TensorNet2, and priors, in the network of pairs: the same numbers as the plain one, to the second derivative."""

import numpy as np
import pytest
import torch
from model_kinds import coulomb, d2, d3, needs_dispersion, zbl
from pair_lists import CUTOFF, listed, random, systems

from torchmdx import Batch, Potential, System, TensorNetConfig
from torchmdx.engines import ops
from torchmdx.engines.pairs.edge_values import to_edges, to_targets
from torchmdx.engines.pairs.energy import differentiate_pairwise
from torchmdx.engines.pairs.messages import EdgeMessages
from torchmdx.engines.pairs.multilinear import partial
from torchmdx.engines.pairs.near_list import near_edges, nearer
from torchmdx.engines.pairs.pair_list import PairList
from torchmdx.engines.plan import Network
from torchmdx.evaluation.derivatives import differentiate
from torchmdx.models.tensornet2 import TensorNet2, TensorNet2Config

CHANNELS = 3
SIZES = dict(num_channels=6, num_radial=5, cutoff=CUTOFF)


def charged_batch() -> Batch:
    """Molecules and crystals of different charges, lone atoms, and a system of no atoms."""
    made = systems()
    made.append(System.create(np.array([[0.0, 0, 0], [0.9, 0.1, 0]]), [8, 1], charge=-1.0))
    made.append(System.create(np.array([[0.3, 0.2, 0.1]]), [11], charge=1.0))
    return Batch.from_systems(made)


@pytest.fixture
def pairs() -> PairList:
    return PairList.of(*listed(Batch.from_systems(systems())))


def assert_equal(potential: Potential, batch: Batch, capacity: int | None) -> None:
    """Energies, forces, stress, charges, and the gradients of a loss on them, as the plain network has them."""
    edges, reverse = listed(batch, capacity, potential.cutoff)
    ours = differentiate_pairwise(potential, batch, edges, reverse, stress=True)
    plain = differentiate(potential, batch, edges, forces=True, stress=True, create_graph=True)
    assert torch.equal(torch.isnan(ours.stress), torch.isnan(plain.stress))
    assert torch.equal(torch.isnan(ours.stress[:, 0, 0]), torch.linalg.det(batch.cell) == 0)
    for name in ("energy", "energies", "forces", "stress", "charges", "dipoles"):
        found, expected = getattr(ours, name), getattr(plain, name)
        assert (found is None) == (expected is None)
        if found is not None:
            tolerance = 1e-12 * float(torch.nan_to_num(expected).detach().abs().max())
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=tolerance, equal_nan=True)
    target = torch.randn_like(ours.forces)
    weights = [p for p in potential.parameters() if p.requires_grad]

    def gradients(result):
        loss = (result.energy**2).sum() + ((result.forces - target) ** 2).sum()
        loss = loss + 100 * (torch.nan_to_num(result.stress) ** 2).sum()
        loss = loss if result.charges is None else loss + (result.charges**2).sum()
        return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)

    for found, expected in zip(gradients(ours), gradients(plain), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 * max(1.0, float(expected.abs().max())))
        assert torch.isfinite(found).all()


CONFIGS = {
    "two layers": {},
    "SO(3), gauss, longer head": dict(group="SO(3)", num_layers=1, radial_basis="gauss", num_head_layers=2),
    "no layer, slack": dict(num_layers=0, charge_slack=0.1),
    "tanh, trained basis": dict(activation="tanh", num_layers=2, trainable_basis=True),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("capacity", [None, 700])
def test_tensornet2_is_the_plain_network(config, capacity):
    torch.manual_seed(0)
    potential = Potential(TensorNet2Config(num_charges=3, **SIZES, **config)).double()
    potential.scale.fill_(30.0)
    assert_equal(potential, charged_batch(), capacity)


PRIORS = {
    "zbl": [zbl(cutoff=2.5)],
    "covalent zbl, d2": [zbl(radii="covalent"), d2()],
    "coulomb": [coulomb(cutoff=4.0, weights=None)],
    "coulomb, cut": [coulomb(cutoff=4.0, weights=None, cut_in_vacuum=True)],
    "d3": pytest.param("d3", marks=needs_dispersion),
}


@pytest.mark.parametrize("name", ["tensornet", "tensornet2"])
@pytest.mark.parametrize("priors", PRIORS.values(), ids=PRIORS)
def test_priors_are_those_of_the_plain_network(name, priors):
    priors = [d3(cutoff=5.0)] if priors == "d3" else priors
    if name == "tensornet" and any(prior.name == "coulomb" for prior in priors):
        pytest.skip("a TensorNet predicts no charges")
    torch.manual_seed(0)
    config = TensorNet2Config(num_charges=2, **SIZES) if name == "tensornet2" else TensorNetConfig(**SIZES)
    assert_equal(Potential(config, priors).double(), charged_batch(), None)
    # A longer list than the network's, with padding.
    assert_equal(Potential(config, priors).double(), charged_batch(), 3000)


@pytest.mark.parametrize("spare", [0, 40])
def test_the_near_part_of_a_list_is_the_list_of_the_smaller_cutoff(spare):
    batch = charged_batch()
    far = PairList.of(*listed(batch, 1500, 4.0, "brute_force"))
    wanted = listed(batch, int(listed(batch)[0].num_edges) + spare, backend="brute_force")
    kept = near_edges(far, far.vectors(batch.positions, batch.cell, batch.system_index), CUTOFF)
    near, expected = nearer(far, kept, wanted[0].capacity), PairList.of(*wanted)
    for name, value in vars(expected.edges).items():
        assert torch.equal(getattr(near.edges, name), value), name
        assert getattr(near.edges, name).dtype == value.dtype, name
    for name in ("reverse", "code", "first", "num_pairs"):
        assert torch.equal(getattr(near, name), getattr(expected, name)), name
    short = nearer(far, kept, wanted[0].capacity - spare - 2)
    assert short.edges.overflow
    assert int(short.edges.needed) == int(expected.edges.num_edges)


def test_given_charges_take_part():
    torch.manual_seed(0)
    potential = Potential(TensorNetConfig(**SIZES), [coulomb(cutoff=4.0, weights=None, charges="given")]).double()
    made = [System.create(random(5, 3, seed=k).numpy() * 1.5, [6, 1, 8, 1, 1]) for k in range(2)]
    batch = Batch.from_systems(made)
    batch = Batch(**{**vars(batch), "partial_charges": random(10)})
    assert_equal(potential, batch, None)


def test_without_a_graph_or_forces_the_results_are_the_same():
    potential = Potential(TensorNet2Config(num_charges=3, **SIZES)).double()
    batch = charged_batch()
    edges, reverse = listed(batch)
    kept = differentiate_pairwise(potential, batch, edges, reverse)
    freed = differentiate_pairwise(potential, batch, edges, reverse, create_graph=False)
    assert kept.charges.requires_grad
    assert not any(x.requires_grad for x in (freed.energy, freed.energies, freed.forces, freed.charges, freed.dipoles))
    for name in ("energy", "forces", "charges"):
        assert torch.equal(getattr(kept, name).detach(), getattr(freed, name))
    energy = differentiate_pairwise(potential, batch, edges, reverse, forces=False)
    assert energy.forces is None
    assert torch.equal(energy.energy, kept.energy)


@pytest.mark.parametrize("num_systems", [1, 3])
def test_tensornet2_without_any_pair(num_systems):
    torch.manual_seed(0)
    potential = Potential(TensorNet2Config(num_charges=3, **SIZES)).double()
    assert_equal(potential, Batch.from_systems([System.create(np.zeros((1, 3)), [8], charge=1.0)] * num_systems), None)


def test_what_is_served():
    config = TensorNet2Config(num_charges=3, **SIZES)
    assert Network.of(Potential(config)).has_pairs
    assert Network.of(Potential(config, [zbl(), coulomb(weights=None)])).has_pairs
    assert Network.of(Potential(TensorNetConfig(num_head_layers=1, **SIZES), [zbl(), d2()])).has_pairs

    class Other(TensorNet2):
        """A network of another kind, which computes who knows what."""

    potential = Potential(config)
    assert not Network.of(potential.with_network(Other(config))).has_pairs


def plain_messages(pairs: PairList, f, x, g) -> torch.Tensor:
    edges = pairs.edges.trimmed()
    return (ops.message(edges.target, f[: edges.capacity], f[pairs.edges.capacity :], x, x[edges.source]) * g).sum()


def message_arguments(pairs: PairList) -> list[torch.Tensor]:
    n, rows = pairs.edges.num_atoms, pairs.edges.capacity + pairs.edges.num_atoms
    shapes = ((rows, 3, CHANNELS), (n, 9, CHANNELS), (n, 9, CHANNELS))
    return [random(*shape, seed=k) for k, shape in enumerate(shapes)]


@pytest.mark.usefixtures("kernels_or_torch")
def test_messages_of_edges_are_those_of_the_form(pairs):
    values = [v.requires_grad_() for v in message_arguments(pairs)]
    expected = torch.autograd.grad(plain_messages(pairs, *values), values)
    for slot in range(3):
        rest = [None if k == slot else v.detach() for k, v in enumerate(values)]
        found = partial(EdgeMessages(pairs), slot, *rest)
        torch.testing.assert_close(found, expected[slot], rtol=1e-11, atol=1e-11)


def few_pairs() -> PairList:
    """Three atoms that see each other, in a list with padding."""
    return PairList.of(*listed(Batch.from_systems([System.create(random(3, 3).numpy(), [1, 6, 8])]), 8))


@pytest.mark.nightly
@pytest.mark.usefixtures("kernels_or_torch")
def test_messages_of_edges_can_be_differentiated_twice():
    pairs = few_pairs()
    values = message_arguments(pairs)
    for slot in range(3):
        inputs = [v.clone().requires_grad_() for k, v in enumerate(values) if k != slot]

        def run(*rest, slot=slot):
            return partial(EdgeMessages(pairs), slot, *rest[:slot], None, *rest[slot:])

        assert torch.autograd.gradcheck(run, inputs)
        assert torch.autograd.gradgradcheck(run, inputs)


CHOICES = [(True, True, True), (True, False, False), (False, True, False), (False, True, True), (True, False, True)]


def row_values(pairs: PairList, own: bool, chosen: tuple[bool, ...], width: int = 4) -> list[torch.Tensor | None]:
    lengths = (pairs.num_slots + own, pairs.edges.num_atoms, pairs.edges.num_atoms)
    return [
        random(length, width, seed=k) if there else None
        for k, (length, there) in enumerate(zip(lengths, chosen, strict=True))
    ]


@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("chosen", CHOICES)
def test_rows_of_edges_gather_what_is_at_both_ends(pairs, own, chosen):
    a, t, s = row_values(pairs, own, chosen)
    found, edges, zero = to_edges(pairs, a, t, s, own=own), pairs.edges, torch.zeros(4, dtype=torch.float64)
    for e in range(edges.capacity):
        wanted = zero
        if e < int(edges.num_edges):
            wanted = wanted + (zero if a is None else a[int(pairs.code[e]) // 2])
            wanted = wanted + (zero if t is None else t[int(edges.target[e])])
            wanted = wanted + (zero if s is None else s[int(edges.source[e])])
        torch.testing.assert_close(found[e], wanted)
    assert len(found) == edges.capacity + own * edges.num_atoms
    for i in range(own * edges.num_atoms):
        wanted = sum((x[at] for x, at in ((a, -1), (t, i), (s, i)) if x is not None), zero)
        torch.testing.assert_close(found[edges.capacity + i], wanted)


@pytest.mark.usefixtures("kernels_or_torch")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("chosen", CHOICES)
def test_rows_of_edges_can_be_differentiated_twice(own, chosen):
    pairs = few_pairs()
    given = row_values(pairs, own, chosen, width=2)
    inputs = [v.requires_grad_() for v in given if v is not None]

    def run(*rest):
        values = iter(rest)
        return to_edges(pairs, *(next(values) if there else None for there in chosen), own=own)

    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
    rows = random(pairs.edges.capacity, 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v: to_targets(pairs, v), rows)


@pytest.mark.interpreter
class TestKernels:
    @pytest.fixture(autouse=True)
    def load(self):
        from torchmdx.engines.pairs.kernels import edge_values

        self.kernels = edge_values

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_messages(self, dtype):
        pairs = PairList.of(*listed(charged_batch(), 300))
        tolerance = dict(rtol=1e-11, atol=1e-11) if dtype == torch.float64 else dict(rtol=1e-4, atol=1e-4)
        f, x, g = (v.to(dtype) for v in message_arguments(pairs))
        form = EdgeMessages(pairs)
        along, back = form.partial(2, (f, x, None)), form.partial(1, (f, None, g))
        torch.testing.assert_close(self.kernels.messages_rows(pairs, f, x, back=False), along, **tolerance)
        torch.testing.assert_close(self.kernels.messages_rows(pairs, f, g, back=True), back, **tolerance)
        torch.testing.assert_close(self.kernels.messages_edges(pairs, x, g), form.partial(0, (None, x, g)), **tolerance)

    @pytest.mark.parametrize("width", [1, 5, 150])
    @pytest.mark.parametrize("own", [True, False])
    def test_rows(self, own, width):
        pairs = PairList.of(*listed(charged_batch(), 300))
        for chosen in CHOICES if width == 5 else CHOICES[:1]:
            values = row_values(pairs, own, chosen, width)
            torch.testing.assert_close(
                self.kernels.to_edges(pairs, *values, own), to_edges(pairs, *values, own=own), rtol=1e-12, atol=1e-12
            )
            there = [v.requires_grad_() for v in values if v is not None]
            g = random(pairs.edges.capacity + own * pairs.edges.num_atoms, width)
            expected = list(torch.autograd.grad(to_edges(pairs, *values, own=own), there, g))
            if chosen[0]:
                found = self.kernels.to_pairs(pairs, g, own)
                torch.testing.assert_close(found, expected.pop(0), rtol=1e-12, atol=1e-12)
            if expected:
                found = self.kernels.to_atoms(pairs, g, own, *chosen[1:])
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
