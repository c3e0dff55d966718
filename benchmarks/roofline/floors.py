"""The least times that a device needs for an evaluation: arithmetic, memory and caches, each on its own.

The work is that of the kernels of an engine (engine_evaluations.py), counted from the sizes of a network; rates are
those of a device. The kernels of an evaluation overlap these only in part: its shortest time is the largest of them at
best, and their sum if nothing overlaps.

| work | what is counted, forward and backward |
|---|---|
| products | products of matrices with numbers of atoms and, where filters are not tabulated, of edges |
| arithmetic | filters from the table, sums over neighbours, products of 3 x 3 matrices |
| memory | tensors of nine components of atoms, and of TensorNet2's network of edges; beyond what the last cache holds |
| l1 | what an edge reads: the tensor of its neighbour, and the coefficients or values of its filters |

Gates, norms, activations, lists of edges and the search are left out, so these are lower bounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from torch import nn

from benchmarks.roofline import tensor_traffic
from benchmarks.roofline.engine_evaluations import THREE_TF32, Evaluation
from benchmarks.roofline.tensor_traffic import Traffic, traffic
from torchmdx.engines.filter_table import DEGREE
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config
from torchmdx.models.tensors import PARTS

COMPONENTS = PARTS[-1].stop  # of a tensor: a number, an antisymmetric and a symmetric matrix
BOTH_WAYS = 2  # the gradient in the input of a product takes as many operations as the product
MULTIPLY_ADD = 2
WORD = 4  # bytes
# Multiplying two 3 x 3 matrices, and its gradient in both.
MATRICES = 27 * MULTIPLY_ADD * 3
L1_BYTES_A_CLOCK = 128  # of a multiprocessor, from compute capability 7.0 on
# Kinds of products: what tensor cores multiply, and how many of its products make one. Others run on CUDA cores.
PASSES = {
    "tf32x3": ("tf32", 3),
    "fp16x3": ("fp16", 3),
    "float64": ("float64", 1),
}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one evaluation with forces: operations of products by kind, and of the rest; memory; bytes through L1."""

    products: Counter[str] = field(default_factory=Counter)
    arithmetic: float = 0.0
    memory: Traffic = field(default_factory=Traffic)
    l1: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    @property
    def units(self) -> set[str]:
        """What tensor cores multiply."""
        return {PASSES[kind][0] for kind in self.products if kind in PASSES}


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Of a device, a second: operations of tensor cores by what they multiply, and of the rest; bytes.

    one_unit: the same unit does both kinds of operations, as on a CPU. l1: None if it is not known. cache: bytes of the
    last cache before memory.
    """

    products: dict[str, float]
    arithmetic: float
    memory: float
    l1: float | None = None
    cache: float = 0.0
    one_unit: bool = False


def floors(work: Work, rates: Rates) -> dict[str, float]:
    """The least seconds by what takes them."""
    memory = work.memory.beyond(rates.cache) / rates.memory
    if rates.one_unit:
        return {"arithmetic": (sum(work.products.values()) + work.arithmetic) / rates.arithmetic, "memory": memory}
    tensor, other = 0.0, work.arithmetic
    for kind, operations in work.products.items():
        if kind in PASSES:
            unit, passes = PASSES[kind]
            tensor += operations * passes / rates.products[unit]
        else:
            other += operations
    found = {"tensor cores": tensor, "CUDA cores": other / rates.arithmetic, "HBM": memory}
    return found if rates.l1 is None else found | {"L1": work.l1 / rates.l1}


def work_of(potential: Potential, num_atoms: int, num_edges: int, how: Evaluation) -> Work | None:
    """The work for these numbers of atoms and directed edges within the cutoff, as an engine does it.

    None for models other than TensorNet and TensorNet2.
    """
    if not isinstance(potential.config, TensorNetConfig):
        return None
    return Work(
        products=_products(potential, num_atoms, num_edges, how),
        arithmetic=_arithmetic(potential, num_atoms, num_edges, how),
        memory=_memory(potential, num_atoms, num_edges, how),
        l1=num_edges * potential.config.num_channels * sum(_bytes_of_an_edge(potential, how)),
    )


def multiply_adds(potential: Potential, *, exact: bool = False) -> tuple[int, int, int]:
    """Of the forward pass, for an atom: of nine components, and other ones; for an edge.

    Products that depend on the element alone are not counted. exact: filters are not from a table.
    """
    config, network = cast(TensorNetConfig, potential.config), potential.network
    channels, charged = config.num_channels, isinstance(config, TensorNet2Config)
    mixes = (1 + 2 * config.num_layers) * COMPONENTS * channels**2
    others = sum(_linears(part) for part in (network.embedding.gate, network.readout, potential.head))
    per_edge = 0
    if charged:
        others += sum(_linears(part) for part in network.charges[:-1])  # no layer reads the last charges
    if exact:
        per_edge = sum(_linears(layer.filters) for layer in (network.embedding, *network.layers))
    elif isinstance(config, TensorNet2Config):
        # The first map of the filters: a table of the distance, and a share of each atom's charges.
        others += 2 * config.num_layers * config.num_charges * channels
        per_edge = sum(_linears(cast(nn.Sequential, layer.filters)[1:]) for layer in network.layers)
    return mixes, others, per_edge


def _linears(part: nn.Module) -> int:
    return sum(linear.weight.numel() for linear in part.modules() if isinstance(linear, nn.Linear))


def _products(potential: Potential, num_atoms: int, num_edges: int, how: Evaluation) -> Counter[str]:
    """Operations by kind."""
    config = cast(TensorNetConfig, potential.config)
    channels, layers = config.num_channels, config.num_layers
    mixes, others, per_edge = multiply_adds(potential, exact=not how.words)
    done: Counter[str] = Counter()
    done[how.mixes] += BOTH_WAYS * num_atoms * mixes
    done[how.products] += BOTH_WAYS * num_atoms * others
    if how.functions:  # with W for the elements of both atoms, and for that of the target
        done[THREE_TF32] += BOTH_WAYS * num_atoms * COMPONENTS * (how.elements + 1) * how.functions * channels
    if how.launches == "little memory":  # evaluated again: the embedding, Y of all layers but one, and the gate
        done[how.mixes] += num_atoms * layers * COMPONENTS * channels**2
        done[how.products] += num_atoms * potential.network.embedding.gate[0].weight.numel()
    if per_edge:
        done[how.edges] += num_edges * per_edge
        done[how.edges_back] += num_edges * per_edge
        if how.launches == "charges" and "two" not in how.kept_rows:  # z₂ is evaluated again
            done[how.edges_back] += num_edges * sum(
                layer.filters[2].weight.numel() for layer in potential.network.layers
            )
    return Counter({kind: MULTIPLY_ADD * count for kind, count in done.items() if count})


def _arithmetic(potential: Potential, num_atoms: int, num_edges: int, how: Evaluation) -> float:
    """Operations of CUDA cores but for products with weights."""
    config = cast(TensorNetConfig, potential.config)
    layers, channels = config.num_layers, config.num_channels
    three = len(PARTS) * _polynomial()
    if how.functions:
        # Sums of every slot; backward, gradients in functions and directions.
        sums = how.walks * _sums(how) + BOTH_WAYS * COMPONENTS * MULTIPLY_ADD
        embedding = how.functions * (how.walks * _polynomial() + _polynomial() + _slope() + sums)
    else:
        embedding = channels * (BOTH_WAYS * three + len(PARTS) * _slope() + _sum_operations())
    if not how.words:
        embedding = channels * _sum_operations()
        layer = _sum_operations()
    elif isinstance(config, TensorNet2Config):
        layer = BOTH_WAYS * _polynomial() - MULTIPLY_ADD + _slope() + _sum_operations()  # backward a slope only
    else:
        layer = BOTH_WAYS * three + len(PARTS) * _slope() + _sum_operations()
    matrices = (2 if config.group == "O(3)" else 1) + 1  # YM + MY or YM, and DD
    return num_edges * (embedding + layers * channels * layer) + num_atoms * layers * channels * matrices * MATRICES


def _polynomial() -> int:
    return DEGREE * MULTIPLY_ADD


def _slope() -> int:
    """In addition to the polynomial."""
    return (DEGREE - 1) * MULTIPLY_ADD


def _sums(how: Evaluation) -> int:
    """Of a function of an edge: what every slot of a walk adds up."""
    return COMPONENTS * MULTIPLY_ADD * -(-how.elements // how.walks)


def _sum_operations() -> int:
    """For an edge and channel: the sum over neighbours, and its gradient in the tensor, the filters, the distance."""
    return COMPONENTS * MULTIPLY_ADD * (1 + 2) + len(PARTS) * MULTIPLY_ADD


def _bytes_of_an_edge(potential: Potential, how: Evaluation) -> tuple[float, float]:
    """That it reads through L1, over the channels, by the embedding and by all layers."""
    config = cast(TensorNetConfig, potential.config)
    layers, parts, tensor = config.num_layers, len(PARTS), COMPONENTS * how.number
    if not how.words:
        return BOTH_WAYS * parts * how.number, layers * BOTH_WAYS * (tensor + parts * how.number)
    if how.functions:  # terms of each function, forward in every walk, and backward also the gradient in its sums
        terms = (how.walks + 1) * (DEGREE + 1) + COMPONENTS
        embedding = WORD * how.functions * terms / config.num_channels
    else:
        embedding = BOTH_WAYS * WORD * how.words[0]
    if isinstance(config, TensorNet2Config):
        # One part of the table, backward for its slope; shares of both atoms, z₃ twice, gradients in z₁ of both edges.
        own = BOTH_WAYS * how.words[-1] - 1 + 2 + 2 * parts + 2
        return embedding, layers * (BOTH_WAYS * tensor + WORD * own)
    return embedding, layers * BOTH_WAYS * (tensor + WORD * how.words[-1])


def _memory(potential: Potential, num_atoms: int, num_edges: int, how: Evaluation) -> Traffic:
    config = cast(TensorNetConfig, potential.config)
    layers, channels = config.num_layers, config.num_channels
    nine = float(num_atoms * COMPONENTS * channels)
    sizes = dict.fromkeys(("a", "mixed", "x", "d", "p", "g", "y", "m"), nine * how.number)
    sizes["b"] = nine / channels * how.elements * how.functions * WORD
    for count, name in enumerate(tensor_traffic.ROWS, 1):
        sizes[name] = float((num_atoms + num_edges) * count * channels * WORD)
    chains = {
        "many atoms": lambda: tensor_traffic.many_atoms(layers),
        "tiles of atoms": lambda: tensor_traffic.tiles(layers),
        "little memory": lambda: tensor_traffic.little_memory(layers),
        "few atoms": lambda: tensor_traffic.few_atoms(layers),
        "charges": lambda: tensor_traffic.charges(layers, how.kept_rows),
    }
    chain = chains.get(how.launches, lambda: tensor_traffic.between_atoms(layers))()
    return traffic(*(tensor_traffic.by_elements(*chain) if how.functions else chain), sizes)
