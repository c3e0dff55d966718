"""The work of an evaluation against operations that are counted one by one while they are done."""

import math

import numpy as np
import pytest
import torch
from ase.build import bulk, molecule
from torch.utils.flop_counter import FlopCounterMode

from torchmdx import Batch, Ensemble, System, evaluate
from torchmdx.commands.floors import BOTH_WAYS, Rates, Work, floors, multiply_adds, work_of
from torchmdx.engines.filter_table import DEGREE
from torchmdx.neighbors.brute_force import brute_force

# Modules whose products take rows of atoms, and those that take rows of edges and one for distance 0.
OF_ATOMS = (".gate", ".mix", ".mix_in", ".mix_out", ".readout", "ScalarHead", "GatedHead")
OF_EDGES = (".filters",)
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
    per_atom, per_edge = multiply_adds(potential, exact=True)
    for atoms in (molecule("CH3CH2OH"), bulk("Si", cubic=True)):
        system = System.from_ase(atoms, dtype=torch.float32)
        edges = brute_force(Batch.of(system), float(potential.config.cutoff))
        of_atoms, of_edges = counted_products(potential, system)
        assert per_atom * system.num_atoms == of_atoms > 0
        assert per_edge * (int(edges.num_edges) + 1) == of_edges > 0
    assert multiply_adds(potential) == (per_atom, 0)  # filters come from the table


def test_charges_and_the_edge_network_of_a_tensornet2(make_potential):
    plain, charged = (
        make_potential(torch.float32, model=model, num_layers=2, num_channels=24, num_charges=5)
        if model == "tensornet2"
        else make_potential(torch.float32, num_layers=2, num_channels=24)
        for model in ("tensornet", "tensornet2")
    )
    (atom, _), (charged_atom, charged_edge) = multiply_adds(plain), multiply_adds(charged)
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
    assert work_of(potential, atoms, edges).arithmetic == wanted


def test_bytes_of_memory_and_of_l1(make_potential):
    """As docs/performance_notes.md has them for 128 channels: 4.6 kB of a neighbour, 9.2 kB of coefficients."""
    potential = make_potential(torch.float32, num_layers=2, num_channels=128)
    work = work_of(potential, 1, 1)
    neighbour, coefficients = 9 * 128 * 4, 18 * 128 * 4
    assert work.l1 == 2 * 2 * (neighbour + coefficients) + 2 * coefficients
    # Two tensors of the embedding and four of each layer, and their gradients, written and read.
    assert work.memory == (2 + 4 * 2) * 2 * 2 * neighbour
    exact = work_of(make_potential(torch.float64, num_layers=1, num_channels=8), 1, 1, exact=True)
    assert exact.l1 == 2 * (9 + 2 * 3) * 8 * 8  # evaluated filters are read instead of coefficients


def test_members_of_an_ensemble_add_up(make_potential):
    members = [make_potential(torch.float32, seed=seed, num_channels=16) for seed in range(3)]
    one, all_of_them = work_of(members[0], 10, 90), work_of(Ensemble(members), 10, 90)
    assert vars(all_of_them) == {name: 3 * value for name, value in vars(one).items()}


def test_other_models_have_no_known_work():
    class Other:
        config = object()

    assert work_of(Other(), 3, 6) is None


def test_floors_of_a_gpu_are_apart():
    work = Work(products=6e12, arithmetic=1e12, memory=4e9, l1=2e10)
    found = floors(work, Rates(products=1e14, arithmetic=5e13, memory=4e12, l1=3.2e13))
    wanted = {"tensor cores": 0.06, "CUDA cores": 0.02, "HBM": 0.001, "L1": 0.000625}
    assert found.keys() == wanted.keys()
    assert all(math.isclose(found[name], wanted[name]) for name in wanted)
    assert "L1" not in floors(work, Rates(products=1e14, arithmetic=5e13, memory=4e12))


def test_a_cpu_does_products_and_the_rest_one_after_the_other():
    work = Work(products=6e12, arithmetic=1e12, memory=4e9, l1=2e10)
    found = floors(work, Rates(products=1e12, arithmetic=1e12, memory=1e10, one_unit=True))
    assert found == {"arithmetic": 7.0, "memory": 0.4}
