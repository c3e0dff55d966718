"""TensorNet from tables on the CPU: the C kernels against plain torch, and the whole against the exact model."""

import copy
import logging

import numpy as np
import oracles
import pytest
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from torchmdx import Batch, System, evaluate
from torchmdx.engines import filter_table
from torchmdx.engines.cpu import build, messages
from torchmdx.engines.cpu import threads as rows
from torchmdx.engines.cpu.messages import EmbeddingSum, MessageSum
from torchmdx.engines.cpu.network import TabulatedTensorNet
from torchmdx.engines.exact import ModelEngine
from torchmdx.engines.filter_table import fingerprint, table_of
from torchmdx.models.tensors import from_direction
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.runtime import c_library
from torchmdx.training.optimizer import FlatParameters

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-13}
CHANNELS, INTERVALS = build.SLICE + 11, 7  # a whole slice, and one that is no multiple of a vector register's width


@pytest.fixture(params=["C", "torch"])
def way(request, monkeypatch):
    """With the compiled kernels, and as if there were none."""
    if request.param == "torch":
        monkeypatch.setattr(messages, "library", lambda: None)
    elif build.library() is None:
        pytest.skip("needs a C compiler")
    return request.param


class Case:
    """Random tables and features on the list of a crystal; an edge and its other direction read the same filter."""

    def __init__(self, atoms, dtype):
        self.batch = Batch.from_systems([System.from_ase(atoms)])
        self.edges = edges = brute_force(self.batch, 4.0)
        vectors = edges.vectors(self.batch.positions, self.batch.cell, self.batch.system_index)
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        self.d = from_direction(vectors / distance[:, None]).to(dtype)
        x = distance / 4.0 * INTERVALS
        self.interval = x.to(torch.int32).clamp(max=INTERVALS - 1)
        self.t = (x - self.interval).to(dtype)
        generator = torch.Generator().manual_seed(5)

        def new(*shape):
            return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)

        n = self.batch.num_atoms
        self.table, self.y, self.grad = new(INTERVALS, 4, 3, CHANNELS), new(n, 9, CHANNELS), new(n, 9, CHANNELS)
        self.sliced = messages.sliced(self.table)
        self.a, self.b = new(n, CHANNELS), new(n, CHANNELS)

    def filters(self, t):
        """[E,9,C] as the text of `table` says: powers of t, one filter for the components of a part."""
        rows = self.table.double()[self.interval.long()]
        values = sum(rows[:, k] * t[:, None, None] ** k for k in range(4))
        return values[:, [0, 1, 1, 1, 2, 2, 2, 2, 2]]

    def summed(self, messages):
        edges, n = self.edges, self.batch.num_atoms
        return torch.stack([messages[edges.target == i].sum(0) for i in range(n)])


def gradients(out, grad, inputs):
    return torch.autograd.grad((out * grad).sum(), inputs)


def assert_near(got, wanted, dtype):
    assert got.dtype == dtype
    got, wanted = got.detach().double(), wanted.detach()
    assert float((got - wanted).abs().max()) < ROUNDING[dtype] * float(wanted.abs().max())


@DTYPES
@pytest.mark.usefixtures("way")
def test_message_sums_and_their_gradients(crystal, dtype):
    case = Case(crystal, dtype)
    y, t = case.y.clone().requires_grad_(), case.t.clone().requires_grad_()
    out = MessageSum.apply(y, t, case.interval, case.sliced, case.edges)
    y2, t2 = case.y.double().requires_grad_(), case.t.double().requires_grad_()
    wanted = case.summed(case.filters(t2) * y2[case.edges.source.long()])
    assert_near(out, wanted, dtype)
    for got, expected in zip(
        gradients(out, case.grad, [y, t]), gradients(wanted, case.grad.double(), [y2, t2]), strict=True
    ):
        assert_near(got, expected, dtype)


@DTYPES
@pytest.mark.usefixtures("way")
def test_embedding_sums_and_their_gradients(crystal, dtype):
    case = Case(crystal, dtype)
    t, d = case.t.clone().requires_grad_(), case.d.clone().requires_grad_()
    out = EmbeddingSum.apply(t, d, case.a, case.b, case.interval, case.sliced, case.edges)
    t2, d2 = case.t.double().requires_grad_(), case.d.double().requires_grad_()
    pair = case.a.double()[case.edges.target.long()] + case.b.double()[case.edges.source.long()]
    wanted = case.summed(case.filters(t2) * pair[:, None] * d2[:, :, None])
    assert_near(out, wanted, dtype)
    for got, expected in zip(
        gradients(out, case.grad, [t, d]), gradients(wanted, case.grad.double(), [t2, d2]), strict=True
    ):
        assert_near(got, expected, dtype)


def test_slices_hold_the_table(crystal):
    case = Case(crystal, torch.float64)
    assert case.sliced.shape == (2, INTERVALS, 4, 3, build.SLICE)
    assert torch.equal(messages.whole(case.sliced, case.y), case.table)
    assert torch.equal(case.sliced[1, :, :, :, :11], case.table[..., build.SLICE :])
    assert not case.sliced[1, :, :, :, 11:].any()


@DTYPES
@pytest.mark.parametrize("openmp", [True, False], ids=["OpenMP", "threads"])
@pytest.mark.usefixtures("own_threads")
def test_any_number_of_threads_gives_the_same_bits(crystal, dtype, openmp, monkeypatch):
    if build.library() is None:
        pytest.skip("needs a C compiler")
    if not openmp:
        monkeypatch.setattr(rows, "openmp", lambda: None)
    elif rows.openmp() is None:
        pytest.skip("torch is linked to no OpenMP that is known")
    case, found = Case(crystal.repeat(2), dtype), []
    for threads in (1, 2, 5):
        monkeypatch.setattr(rows, "EDGES_A_THREAD", 10)
        torch.set_num_threads(threads)
        bounds = rows.shares(case.edges)
        assert len(bounds) == threads + 1
        assert [bounds[0], bounds[-1]] == [0, case.batch.num_atoms]
        y, t, d = (x.clone().requires_grad_() for x in (case.y, case.t, case.d))
        out = MessageSum.apply(y, t, case.interval, case.sliced, case.edges)
        other = EmbeddingSum.apply(t, d, case.a, case.b, case.interval, case.sliced, case.edges)
        found.append([out, other, *gradients(out, case.grad, [y, t]), *gradients(other, case.grad, [t, d])])
    for more in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], more, strict=True))


def test_sums_are_not_differentiated_twice(crystal):
    case = Case(crystal, torch.float64)
    y, t = case.y.requires_grad_(), case.t.requires_grad_()
    out = MessageSum.apply(y, t, case.interval, case.sliced, case.edges)
    (slope,) = torch.autograd.grad((out**2).sum(), t, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


# -- the whole network ---------------------------------------------------------------------------------------------


def tabulated(potential, batch, edges, stress=False):
    return ModelEngine(potential, batch, stress=stress, tabulated=True).run(batch.positions, batch.cell, edges)


@DTYPES
@pytest.mark.usefixtures("way")
def test_it_is_the_exact_model_within_its_bound(trained, structure, dtype):
    potential, exact = trained("cpu", dtype), trained("cpu", torch.float64)
    batch = Batch.from_systems([System.from_ase(structure, dtype=dtype)])
    wanted = evaluate(exact, batch.to(dtype=torch.float64), stress=True)
    near = brute_force(batch, potential.cutoff)
    wide = brute_force(batch, potential.cutoff + 0.7)
    for edges in (near, brute_force(batch, potential.cutoff + 0.7, wide.capacity + 33)):
        found = tabulated(potential, batch, edges, stress=True)
        assert float((found.energies - wanted.energies).abs().max()) < 1e-6 * float(potential.scale)
        assert float((found.forces - wanted.forces).abs().max()) < 1e-5
        volume = abs(np.linalg.det(structure.cell.array))
        assert volume == 0 or float((found.stress - wanted.stress).abs().max()) * volume < 1e-4


@pytest.mark.usefixtures("way")
def test_messages_of_an_atoms_own_tensors(make_potential, crystal):
    potential = make_potential(messages="target", num_layers=2)
    batch = Batch.from_systems([System.from_ase(crystal)])
    wanted = evaluate(potential, batch, stress=True)
    found = tabulated(potential, batch, brute_force(batch, potential.cutoff), stress=True)
    for name, bound in (("energies", 1e-6), ("forces", 1e-5), ("stress", 1e-5)):
        expected = getattr(wanted, name)
        assert float((getattr(found, name) - expected).abs().max()) < bound * float(expected.abs().max())


@pytest.mark.usefixtures("way")
def test_its_forces_are_the_slope_of_its_energy(trained, crystal):
    potential = trained("cpu", torch.float64)
    engine_of = Batch.from_systems([System.from_ase(crystal)])
    found = tabulated(potential, engine_of, brute_force(engine_of, potential.cutoff))

    def energies(moved):
        systems = [System.create(p, crystal.numbers, crystal.cell.array, crystal.pbc) for p, _ in moved]
        batch = Batch.from_systems(systems)
        return tabulated(potential, batch, brute_force(batch, potential.cutoff)).energy.numpy()

    wanted = oracles.central_forces(energies, crystal.positions)
    assert np.abs(wanted).max() > 0.1
    assert np.abs(found.forces.numpy() - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_both_ways_agree(trained, crystal, monkeypatch):
    if build.library() is None:
        pytest.skip("needs a C compiler")
    potential = trained("cpu", torch.float64)
    batch = Batch.from_systems([System.from_ase(crystal.repeat(2))])
    edges = brute_force(batch, potential.cutoff)
    in_c = tabulated(potential, batch, edges)
    monkeypatch.setattr(messages, "library", lambda: None)
    in_torch = tabulated(potential, batch, edges)
    np.testing.assert_allclose(in_c.forces, in_torch.forces, rtol=0, atol=1e-11)
    np.testing.assert_allclose(in_c.energies, in_torch.energies, rtol=0, atol=1e-11)
    assert not torch.equal(in_c.forces, in_torch.forces)  # or the same code ran twice


def test_the_charge_counts(trained, cation):
    potential = trained("cpu", torch.float64)
    for charge in (-1, 0, 2):
        batch = Batch.from_systems([System.from_ase(cation, charge)])
        found = tabulated(potential, batch, brute_force(batch, potential.cutoff))
        np.testing.assert_allclose(found.forces, evaluate(potential, batch).forces, rtol=0, atol=1e-5)


def test_a_table_is_made_once_for_the_same_weights(make_potential):
    potential = make_potential()
    network = TabulatedTensorNet(potential.network)
    assert TabulatedTensorNet(potential.network).table is network.table
    assert table_of(copy.deepcopy(potential).network) is network.table
    assert 0 < network.error <= 1e-6


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
def test_a_table_follows_the_weights_however_they_are_changed(make_potential, ethanol, change):
    potential = make_potential()
    batch = Batch.from_systems([System.from_ase(ethanol)])
    edges = brute_force(batch, potential.cutoff)
    for _ in range(2):
        tabulated(potential, batch, edges)
        change(potential.network)
        found, wanted = tabulated(potential, batch, edges), evaluate(potential, batch)
        np.testing.assert_allclose(found.energy, wanted.energy, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.forces, wanted.forces, rtol=0, atol=1e-5 * float(wanted.forces.abs().max()))


def test_the_fingerprint_sees_one_bit_and_two_weights_that_change_places(make_potential):
    network = make_potential().network
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


def test_old_tables_are_forgotten(make_potential, monkeypatch):
    monkeypatch.setattr(filter_table, "_kept", {})
    monkeypatch.setattr(filter_table, "MOST_KEPT", 2)
    monkeypatch.setattr(filter_table, "tabulate", lambda *_: object())
    networks = [make_potential(seed=seed).network for seed in range(3)]
    first, second, _ = (table_of(network) for network in networks)
    assert len(filter_table._kept) == 2
    assert table_of(networks[1]) is second
    assert table_of(networks[0]) is not first


# -- the compiler --------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_loaded(monkeypatch, tmp_path):
    """No library is loaded yet, as in a new process, and the cache directory is empty."""
    cached = build.library, build.kernel_suffix, c_library.c_library, c_library._found
    monkeypatch.setenv("TORCHMDX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(c_library, "packaged_file", lambda *_: tmp_path / "none")
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


@pytest.mark.usefixtures("nothing_loaded")
def test_without_a_compiler_there_is_one_line_in_the_log(crystal, monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    case = Case(crystal, torch.float64)
    with caplog.at_level(logging.DEBUG, "torchmdx"):
        for _ in range(3):
            MessageSum.apply(case.y, case.t, case.interval, case.sliced, case.edges)
    words = "the CPU runs slower code in torch instead of kernels: no compiler found (cc, gcc, clang or $CC)"
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", words)]


@pytest.mark.parametrize("suffix", build.INSTRUCTION_SUFFIXES)
@DTYPES
def test_every_instruction_set_gives_the_same_numbers(crystal, monkeypatch, suffix, dtype):
    if build.library() is None or build.INSTRUCTION_SUFFIXES.index(suffix) > build.INSTRUCTION_SUFFIXES.index(
        build.kernel_suffix()
    ):
        pytest.skip(f"there are no kernels, or this processor has no {suffix}")
    case = Case(crystal, dtype)
    wanted = MessageSum.apply(case.y, case.t, case.interval, case.sliced, case.edges)
    monkeypatch.setattr(rows, "kernel_suffix", lambda: suffix)
    found = MessageSum.apply(case.y, case.t, case.interval, case.sliced, case.edges)
    assert float((found - wanted).norm() / wanted.norm()) < 10 * torch.finfo(dtype).eps
