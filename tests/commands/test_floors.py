"""The work of an evaluation against operations that are counted one by one while they are done."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from torch.utils.flop_counter import FlopCounterMode

from torchmdx import Batch, System, evaluate
from torchmdx.commands.engine_evaluations import Evaluation
from torchmdx.commands.floors import BOTH_WAYS, Rates, Work, floors, multiply_adds, work_of
from torchmdx.commands.tensor_traffic import Traffic
from torchmdx.engines.filter_table import DEGREE
from torchmdx.neighbors.brute_force import brute_force

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


def test_the_gradient_of_a_product_takes_as_many_operations(make_potential):
    gate = make_potential(torch.float32, num_channels=16).network.embedding.gate.requires_grad_(False)
    x = torch.rand(7, 16, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        y = gate(x).sum()
    with FlopCounterMode(display=False) as backward:
        y.backward()
    assert backward.get_total_flops() + forward.get_total_flops() == BOTH_WAYS * forward.get_total_flops()


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
    # Half precision: four words in place of six coefficients, two bytes of a number of the neighbour.
    half = Evaluation(launches="many atoms", words=(12, 12, 12), sent=2)
    assert work_of(potential, 1, 1, half).l1 == 2 * 3 * 12 * 128 * 4 + 2 * 2 * neighbour / 2
    # By elements: six terms of 16 functions in either direction, and their nine gradients.
    sums = Evaluation(launches="many atoms", words=(15, 15, 15), functions=16, elements=2)
    assert work_of(potential, 1, 1, sums).l1 == 16 * (2 * 6 + 9) * 4 + 2 * 2 * (words + neighbour)
    exact = Evaluation(number=8, sent=8)  # evaluated filters are read instead of coefficients
    assert work_of(make_potential(num_layers=1, num_channels=8), 1, 1, exact).l1 == 2 * (9 + 2 * 3) * 8 * 8


def test_bytes_of_a_network_of_edges_through_l1(make_potential):
    potential = make_potential(torch.float32, model="tensornet2", num_layers=1, num_channels=32, num_charges=4)
    how = Evaluation(launches="charges", words=(15, 6))
    forward = 15 + (6 + 2) + (9 + 3)  # the embedding; a(r), T and S; Y and z₃
    backward = 15 + (9 + 3) + (5 + 2)  # and the gradient in M, z₃; a slope, z₁ of the edge and its reverse
    assert work_of(potential, 1, 1, how).l1 == 32 * 4 * (forward + backward)


def test_products_of_each_precision(make_potential):
    potential = make_potential(torch.float32, num_layers=2, num_channels=32)
    plain = 2 * 2 * 7 * 5 * 9 * 32 * 32  # multiply and add, both ways, 7 atoms, five maps of nine components
    gate, head = 32 * 64 + 64 * 96, 96 * 32 + sum(p.numel() for p in potential.head.parameters() if p.dim() == 2)
    others = 2 * 2 * 7 * (gate + head)
    tiles = Evaluation(launches="tiles of atoms", mixes="fp16x3", products="tf32x3", words=(15,) * 3)
    assert work_of(potential, 7, 50, tiles).products == {"fp16x3": plain, "tf32x3": others}
    assert work_of(potential, 7, 50, TABLES).products == {"float32": plain + others}
    # Sums by element: of two elements and of the sum of both, with nine components and 16 functions.
    sums = Evaluation(mixes="bf16", products="tf32", words=(15,) * 3, functions=16, elements=2)
    assert work_of(potential, 7, 50, sums).products["tf32x3"] == 2 * 2 * 7 * 9 * 3 * 16 * 32
    # In little memory the embedding, Y of a layer, and the first map of the gate are evaluated twice, in half
    # precision the embedding for each layer.
    again, gate_again = 2 * 7 * 9 * 32 * 32, 2 * 7 * 32 * 64
    lean = Evaluation(launches="little memory", mixes="tf32x3", products="tf32x3", words=(15,) * 3)
    assert work_of(potential, 7, 50, lean).products == {"tf32x3": plain + others + 2 * again + gate_again}
    half = Evaluation(launches="little memory", mixes="tf32x3", products="tf32x3", words=(12,) * 3, sent=2)
    assert work_of(potential, 7, 50, half).products == {"tf32x3": plain + others + 3 * again + gate_again}


def test_products_of_edges(make_potential):
    potential = make_potential(torch.float32, model="tensornet2", num_layers=2, num_channels=32, num_charges=4)
    how = dict(launches="charges", products="tf32x3", mixes="tf32x3", edges="fp16x3", words=(15, 6, 6))
    each = 2 * 2 * 50 * (32 * 64 + 64 * 96)  # multiply and add, two layers, 50 edges, two maps
    kept = work_of(potential, 7, 50, Evaluation(edges_back="fp16x3", kept_rows=("one", "two"), **how))
    assert kept.products["fp16x3"] == 2 * each
    assert kept.units == {"fp16", "tf32"}
    # If z₂ is not kept, the first map is evaluated again with the gradients.
    again = work_of(potential, 7, 50, Evaluation(edges_back="tf32x3", kept_rows=("one",), **how))
    assert again.products["fp16x3"] == each
    assert again.products["tf32x3"] == kept.products["tf32x3"] + each + 2 * 2 * 50 * 32 * 64


def test_arithmetic_of_sums_by_element(make_potential):
    """Three elements in two walks, each of which evaluates all functions and has two slots."""
    potential = make_potential(torch.float32, num_layers=0, num_channels=32)
    how = Evaluation(launches="many atoms", words=(15,), functions=16, elements=3, walks=2)
    polynomial, slope, slot = 2 * DEGREE, 2 * (DEGREE - 1), 9 * 2
    forward, backward = 2 * (polynomial + 2 * slot), polynomial + slope + 2 * slot
    assert work_of(potential, 1, 1, how).arithmetic == 16 * (forward + backward)


def test_memory_counts_tensors_as_they_are_stored(make_potential):
    potential = make_potential(torch.float32, num_layers=1, num_channels=32)
    nine, half_nine = 10 * 9 * 32 * 4, 10 * 9 * 32 * 2
    wide = Evaluation(launches="many atoms", words=(15, 15))
    # Kept for the backward pass: a, mixed, x0, x1 and d0; y0 and m0, as atoms send them.
    assert work_of(potential, 10, 80, wide).memory.kept == (7 * nine,)
    half = work_of(potential, 10, 80, Evaluation(launches="many atoms", words=(12, 12), sent=2)).memory
    assert half.kept == (5 * nine + 2 * half_nine,)
    assert half.kernels[:5] == (nine, nine, 2 * nine, 2 * nine, nine + half_nine)
    # Sums by element: of 10 atoms, nine components, two elements and 16 functions.
    sums = Evaluation(launches="many atoms", words=(15, 15), functions=16, elements=2)
    by_element = work_of(potential, 10, 80, sums).memory
    assert by_element.kernels[:2] == (10 * 9 * 2 * 16 * 4, 10 * 9 * 2 * 16 * 4 + nine)
    # What other engines cannot avoid: Y and M of a layer, in double precision.
    exact = work_of(potential, 10, 80, Evaluation(number=8, sent=8)).memory
    assert exact == Traffic((2 * nine, 2 * nine, 2 * nine, 4 * nine), (2 * nine,))


def test_memory_of_a_network_of_edges(make_potential):
    potential = make_potential(torch.float32, model="tensornet2", num_layers=1, num_channels=32, num_charges=4)
    nine, row = 10 * 9 * 32 * 4, (10 + 80) * 32 * 4  # rows of atoms and edges
    how = Evaluation(launches="charges", words=(15, 6), kept_rows=("one", "two"))
    assert work_of(potential, 10, 80, how).memory.kept == (7 * nine + 6 * row,)  # z₁, z₂ and z₃: 1 + 2 + 3
    how = Evaluation(launches="charges", words=(15, 6), kept_rows=("one",))
    assert work_of(potential, 10, 80, how).memory.kept == (7 * nine + 4 * row,)


def test_work_adds_up(make_potential):
    potential = make_potential(torch.float32, num_channels=16)
    one = work_of(potential, 10, 90, TABLES)
    two = sum([one, one], Work())
    assert two.products == {kind: 2 * count for kind, count in one.products.items()}
    assert (two.arithmetic, two.l1) == (2 * one.arithmetic, 2 * one.l1)
    assert two.memory == Traffic(one.memory.kernels * 2, one.memory.kept * 2)


def test_other_models_have_no_known_work():
    class Other:
        config = object()

    assert work_of(Other(), 3, 6, TABLES) is None


def test_floors_of_a_gpu_are_apart():
    """Each kind of product at the rate of what tensor cores multiply; those of float32 on CUDA cores."""
    products = Counter({"tf32x3": 2e12, "fp16x3": 4e12, "tf32": 1e12, "float32": 3e12})
    work = Work(products=products, arithmetic=1e12, memory=Traffic((4e9,)), l1=2e10)
    rates = dict(products={"tf32": 1e14, "fp16": 2e14}, arithmetic=5e13, memory=4e12)
    found = floors(work, Rates(**rates, l1=3.2e13))
    wanted = {"tensor cores": 0.06 + 0.06 + 0.01, "CUDA cores": 0.08, "HBM": 0.001, "L1": 0.000625}
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[name], wanted[name]) for name in wanted)
    assert "L1" not in floors(work, Rates(**rates))
    assert floors(work, Rates(**rates, cache=1e9))["HBM"] == 0.0005


def test_a_cpu_does_products_and_the_rest_one_after_the_other():
    work = Work(products=Counter({"float32": 6e12}), arithmetic=1e12, memory=Traffic((4e9,)), l1=2e10)
    found = floors(work, Rates(products={}, arithmetic=1e12, memory=1e10, one_unit=True))
    assert found == {"arithmetic": 7.0, "memory": 0.4}
