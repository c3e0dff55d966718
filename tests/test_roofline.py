"""benchmarks/roofline: lower bounds of the time of a step, against operations and bytes that are counted otherwise."""

import math
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from torch.utils.flop_counter import FlopCounterMode

from torchmdx import Batch, CapturedStep, Ensemble, System, evaluate
from torchmdx.engines.filter_table import DEGREE
from torchmdx.neighbors.brute_force import brute_force

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.roofline import bounds, tensor_traffic
from benchmarks.roofline.engine_evaluations import Evaluation
from benchmarks.roofline.floors import Rates, Work, floors, multiply_adds, work_of
from benchmarks.roofline.tensor_traffic import Traffic, traffic

# Modules whose products take rows of atoms, and those that take rows of edges and one for distance 0.
OF_ATOMS = (".gate", ".mix", ".mix_in", ".mix_out", ".readout", "ScalarHead", "GatedHead")
OF_EDGES = (".filters",)
TABLES = Evaluation(launches="many atoms", words=(15, 15, 15))
KINDS = {
    "plain": dict(num_layers=2, num_channels=24, num_radial=10),
    "no layers": dict(num_layers=0, num_channels=16),
    "gated head": dict(num_layers=1, num_channels=16, head="gated", num_head_layers=2),
    "SO(3)": dict(num_layers=1, num_channels=8, group="SO(3)"),
}


def counted_products(potential, system: System) -> tuple[float, float]:
    """Multiply-adds of the reference model's products, forward: of atoms and of edges."""
    with FlopCounterMode(display=False, depth=8) as counter:
        evaluate(potential, system, forces=False)
    counts = {name: sum(by_kind.values()) / 2 for name, by_kind in counter.get_flop_counts().items()}

    def total(ends) -> float:
        return sum(count for name, count in counts.items() if name.endswith(ends))

    return total(OF_ATOMS), total(OF_EDGES)


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_that_the_reference_does(make_potential, kind):
    potential = make_potential(torch.float32, **KINDS[kind])
    mixes, others, per_edge = multiply_adds(potential, exact=True)
    for atoms in (molecule("CH3CH2OH"), bulk("Si", cubic=True)):
        system = System.from_ase(atoms, dtype=torch.float32)
        edges = brute_force(Batch.of(system), float(potential.config.cutoff))
        of_atoms, of_edges = counted_products(potential, system)
        assert (mixes + others) * system.num_atoms == of_atoms > 0
        assert per_edge * (int(edges.num_edges) + 1) == of_edges > 0
    assert multiply_adds(potential) == (mixes, others, 0)  # filters come from the table


def test_charges_and_the_edge_network_of_a_tensornet2(make_potential):
    plain, charged = (
        make_potential(torch.float32, model=model, num_layers=2, num_channels=24, num_charges=5)
        if model == "tensornet2"
        else make_potential(torch.float32, num_layers=2, num_channels=24)
        for model in ("tensornet", "tensornet2")
    )
    (mixes, atom, _), (same, charged_atom, charged_edge) = multiply_adds(plain), multiply_adds(charged)
    assert mixes == same == 5 * 9 * 24 * 24
    # Two layers of maps from 24 to 48 to 72 numbers, after a first that is tabulated.
    assert charged_edge == 2 * (24 * 48 + 48 * 72)
    # Networks from 72 numbers to 24, 24 and 2 x 5, and in each layer the shares of 5 charges as target and source.
    assert charged_atom - atom == 2 * (72 * 24 + 24 * 24 + 24 * 10) + 2 * 2 * 5 * 24


class Counted:
    """A number that counts additions and multiplications."""

    operations = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def _made(self, value: float) -> "Counted":
        Counted.operations += 1
        return Counted(value)

    def __add__(self, other: "Counted") -> "Counted":
        return self._made(self.value + other.value)

    def __mul__(self, other: "Counted") -> "Counted":
        return self._made(self.value * other.value)


def polynomial(coefficients, t):
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * t + coefficient
    return total


def edge_of_a_channel(rng) -> None:
    """What the kernels do for an edge and a channel of a layer, by scalar operations."""

    def numbers(*shape):
        return np.vectorize(Counted, otypes=[object])(rng.normal(size=shape))

    table, slope_table, t = numbers(3, DEGREE + 1), numbers(3, DEGREE), Counted(0.3)
    part = [0, 1, 1, 1, 2, 2, 2, 2, 2]
    neighbour, pull, message, gradient = numbers(9), numbers(9), numbers(9), numbers(9)
    filters = [polynomial(row, t) for row in table]
    for k in range(9):  # forward: M_i += f Y_j
        message[k] = message[k] + filters[part[k]] * neighbour[k]
    filters = [polynomial(row, t) for row in table]  # read again on the way back
    slopes = [polynomial(row, t) for row in slope_table]
    pulls, distance = numbers(3), Counted(0.0)
    for k in range(9):  # ∂E/∂Y_j += f ∂E/∂M_i; ∂E/∂f += Y_j ∂E/∂M_i
        gradient[k] = gradient[k] + filters[part[k]] * pull[k]
        pulls[part[k]] = pulls[part[k]] + neighbour[k] * pull[k]
    for k in range(3):  # ∂E/∂r += f' ∂E/∂f
        distance = distance + slopes[k] * pulls[k]


def matrices_of_an_atom(rng, products: int) -> None:
    """Products of 3 x 3 matrices for a channel, and their gradients in both factors."""

    def multiply(a, b):
        c = np.vectorize(Counted, otypes=[object])(np.zeros((3, 3)))
        for i in range(3):
            for j in range(3):
                for k in range(3):
                    c[i, j] = c[i, j] + a[i, k] * b[k, j]
        return c

    for _ in range(products):
        a, b, pull = (np.vectorize(Counted, otypes=[object])(rng.normal(size=(3, 3))) for _ in range(3))
        multiply(a, b), multiply(pull, b.T), multiply(a.T, pull)


@pytest.mark.parametrize(("group", "products"), [("O(3)", 3), ("SO(3)", 2)])  # YM, MY, DD; YM, DD
def test_arithmetic_is_what_the_operations_add_up_to(make_potential, group, products):
    rng, layers, channels, atoms, edges = np.random.default_rng(0), 2, 8, 5, 11
    potential = make_potential(torch.float32, num_layers=layers, num_channels=channels, group=group)
    Counted.operations = 0
    edge_of_a_channel(rng)
    of_edge, Counted.operations = Counted.operations, 0
    matrices_of_an_atom(rng, products)
    wanted = channels * ((1 + layers) * edges * of_edge + layers * atoms * Counted.operations)
    assert work_of(potential, atoms, edges, TABLES).arithmetic == wanted


def test_bytes_through_l1(make_potential):
    """As docs/performance_notes.md has them for 128 channels: 4.6 kB of a neighbour, 7.7 kB of coefficients."""
    potential = make_potential(torch.float32, num_layers=2, num_channels=128)
    neighbour, words = 9 * 128 * 4, 15 * 128 * 4
    assert work_of(potential, 1, 1, TABLES).l1 == 2 * 3 * words + 2 * 2 * neighbour
    exact = Evaluation(number=8)  # evaluated filters are read instead of coefficients
    assert work_of(make_potential(num_layers=1, num_channels=8), 1, 1, exact).l1 == 2 * (9 + 2 * 3) * 8 * 8


def test_memory_counts_tensors_as_they_are_stored(make_potential):
    potential = make_potential(torch.float32, num_layers=1, num_channels=32)
    nine = 10 * 9 * 32 * 4
    wide = Evaluation(launches="many atoms", words=(15, 15))
    found = work_of(potential, 10, 80, wide).memory
    assert found.kept == (7 * nine,)  # for the backward pass: a, mixed, x0, x1, d0, y0 and m0
    assert found.kernels[:5] == (nine, nine, 2 * nine, 2 * nine, 2 * nine)
    # What other engines cannot avoid: Y and M of a layer, in double precision.
    exact = work_of(potential, 10, 80, Evaluation(number=8)).memory
    assert exact == Traffic((2 * nine, 2 * nine, 2 * nine, 4 * nine), (2 * nine,))


def test_floors_of_a_gpu_are_apart():
    """Each kind of product at the rate of what tensor cores multiply; those of float32 on CUDA cores."""
    products = Counter({"tf32x3": 2e12, "fp16x3": 4e12, "float32": 3e12})
    work = Work(products=products, arithmetic=1e12, memory=Traffic((4e9,)), l1=2e10)
    rates = dict(products={"tf32": 1e14, "fp16": 2e14}, arithmetic=5e13, memory=4e12)
    found = floors(work, Rates(**rates, l1=3.2e13))
    wanted = {"tensor cores": 0.06 + 0.06, "CUDA cores": 0.08, "HBM": 0.001, "L1": 0.000625}
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[name], wanted[name]) for name in wanted)
    assert "L1" not in floors(work, Rates(**rates))
    assert floors(work, Rates(**rates, cache=1e9))["HBM"] == 0.0005


def test_a_cpu_does_products_and_the_rest_one_after_the_other():
    work = Work(products=Counter({"float32": 6e12}), arithmetic=1e12, memory=Traffic((4e9,)), l1=2e10)
    found = floors(work, Rates(products={}, arithmetic=1e12, memory=1e10, one_unit=True))
    assert found == {"arithmetic": 7.0, "memory": 0.4}


# Of one byte each, so that bytes are numbers of tensors.
ONE = dict.fromkeys(("a", "mixed", "x", "d", "p", "g", "y", "m"), 1.0)


def test_many_atoms():
    forward, backward = tensor_traffic.many_atoms(2)
    found = traffic(forward, backward, ONE)
    # Sums; norms; the first product; the gate; two layers of product, messages, product and update; the readout.
    assert found.kernels[: len(forward)] == (1, 1, 2, 2, *(2, 3, 2, 3) * 2, 1)
    # The readout; two layers of product, update, messages, product and mixing, of which the last ends at the gate.
    assert found.kernels[len(forward) :] == (4, *(2, 5, 4, 2, 6), *(2, 5, 4, 2, 5), 2, 3, 1)
    # a, mixed, x0, x1, x2, and y, m and d of both layers.
    assert found.kept == (11,)


def test_a_cache_holds_what_a_kernel_finds_and_leaves():
    found = Traffic((100.0, 30.0, 10.0), (60.0,))
    assert found.beyond(0) == 140  # more than the 120 of what is kept
    assert found.beyond(10) == 100  # kept: 50, written and read; kernels: 80 and 10
    assert found.beyond(25) == 70  # kept: 35; kernels: 50
    assert found.beyond(60) == 0


RATES = Rates(products={}, arithmetic=1e6, memory=1e6, one_unit=True)


@pytest.mark.parametrize("skin", [0.0, 1.5])
def test_floors_of_a_step_use_its_edges_and_precision(make_potential, ethanol, monkeypatch, skin):
    """Edges within the cutoff: a longer list is not evaluated."""
    asked = []
    monkeypatch.setattr(bounds, "device_rates", lambda *given: asked.append(given) or RATES)
    potential = make_potential(torch.float64, num_channels=8, cutoff=2.0)
    step = CapturedStep(potential, System.from_ase(ethanol), skin=skin, engine="exact")
    step(ethanol.positions)
    distances = ethanol.get_all_distances()
    edges = int(((distances > 0) & (distances <= 2.0)).sum())
    assert (int(step.search.edges.num_edges) > edges) == bool(skin)
    how = Evaluation(number=8, **dict.fromkeys(("mixes", "products", "edges", "edges_back"), "float64"))
    assert bounds.least_seconds(step, potential, "float64") == floors(work_of(potential, 9, edges, how), RATES)
    assert asked == [(torch.device("cpu"), "float64", {"float64"})]


def test_floors_of_an_ensemble_are_those_of_all_members(make_potential, ethanol, monkeypatch):
    monkeypatch.setattr(bounds, "device_rates", lambda *given: RATES)
    members = [make_potential(torch.float32, seed=seed, num_channels=8) for seed in range(3)]
    one, all_of_them = (
        bounds.least_seconds(CapturedStep(model, System.from_ase(ethanol)), model, "float32")
        for model in (members[0], Ensemble(members))
    )
    assert all_of_them == pytest.approx({name: 3 * value for name, value in one.items()})


@pytest.mark.gpu
def test_floors_of_a_gpu_are_below_the_time_of_a_replay(make_potential):
    """The rates of this GPU, and the evaluation that its engine tells."""
    potential = make_potential(torch.float32, num_layers=2, num_channels=128).cuda().requires_grad_(False)
    atoms = molecule("C60")
    step = CapturedStep(potential, System.from_ase(atoms), mode="graph")
    step(atoms.positions)
    least = bounds.least_seconds(step, potential, "float32")
    assert least.keys() == {"tensor cores", "CUDA cores", "HBM", "L1"}
    replay_ms = step.report().replay_ms
    assert replay_ms is not None
    assert 0 < max(least.values()) * 1e3 < replay_ms
