"""The least times that a device needs for an evaluation: arithmetic, memory and caches, each on its own.

The work is that of the algorithm of the kernels, counted from the sizes of a network; rates are those of a device. The
kernels of an evaluation overlap these only in part: its shortest time is the largest of them at best, and their sum if
nothing overlaps.

| work | what is counted, forward and backward |
|---|---|
| products | products of matrices with numbers of atoms and, where filters are not tabulated, of edges |
| arithmetic | filters from the table, sums over neighbours, products of 3 x 3 matrices |
| memory | tensors of atoms, each written once and read once |
| l1 | what an edge reads: the tensor of its neighbour, and the coefficients of its filters |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import nn

from torchmdx.engines.filter_table import DEGREE
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.models.tensornet2 import TensorNet2Config

COMPONENTS, PARTS = 9, 3  # of a tensor: a number, an antisymmetric and a symmetric matrix
BOTH_WAYS = 2  # the gradient in the input of a product takes as many operations as the product
MULTIPLY_ADD = 2
# Multiplying two 3 x 3 matrices, and its gradient in both.
MATRICES = 27 * MULTIPLY_ADD * 3
L1_BYTES_A_CLOCK = 128  # of a multiprocessor, from compute capability 7.0 on
# TF32 products that make one of float32.
SPLIT_PRODUCTS = 3


@dataclass(frozen=True, kw_only=True)
class Work:
    """Of one evaluation with forces: operations of matrix products and of the rest, bytes of memory and through L1."""

    products: float
    arithmetic: float
    memory: float
    l1: float

    def __add__(self, other: Work) -> Work:
        return Work(**{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Of a device, a second: operations of matrix products and of the rest, bytes of memory and through L1.

    one_unit: the same unit does both kinds of operations, as on a CPU. l1: None if it is not known.
    """

    products: float
    arithmetic: float
    memory: float
    l1: float | None = None
    one_unit: bool = False


def floors(work: Work, rates: Rates) -> dict[str, float]:
    """The least seconds by what takes them."""
    products, arithmetic = work.products / rates.products, work.arithmetic / rates.arithmetic
    if rates.one_unit:
        return {"arithmetic": products + arithmetic, "memory": work.memory / rates.memory}
    found = {"tensor cores": products, "CUDA cores": arithmetic, "HBM": work.memory / rates.memory}
    return found if rates.l1 is None else found | {"L1": work.l1 / rates.l1}


def work_of(potential: Potential | Ensemble, num_atoms: int, num_edges: int, *, exact: bool = False) -> Work | None:
    """The work for so many atoms and directed edges; None for models other than TensorNet and TensorNet2.

    exact: filters are evaluated for every edge instead of being read from a table. For an ensemble, of all members.
    """
    if isinstance(potential, Ensemble):
        parts = [work_of(member, num_atoms, num_edges, exact=exact) for member in potential]
        first, *others = (part for part in parts if part is not None)
        return sum(others, first)
    config = potential.config
    if not isinstance(config, TensorNetConfig):
        return None
    channels, layers = config.num_channels, config.num_layers
    per_atom, per_edge = multiply_adds(potential, exact=exact)
    products = MULTIPLY_ADD * BOTH_WAYS * (num_atoms * per_atom + num_edges * per_edge)
    tables = 0 if exact else 1 if isinstance(config, TensorNet2Config) else 1 + layers
    matrices = (2 if config.group == "O(3)" else 1) + 1  # YM + MY or YM, and DD
    arithmetic = channels * (
        num_edges * (tables * _table_operations() + (1 + layers) * _sum_operations())
        + num_atoms * layers * matrices * MATRICES
    )
    size = potential.dtype.itemsize
    tensors = 2 + 4 * layers  # the embedding's sum and product; Y, M, D and X of a layer
    memory = num_atoms * tensors * COMPONENTS * channels * size * 2 * BOTH_WAYS
    filters = tables * PARTS * (DEGREE + 1) + (1 + layers - tables) * PARTS
    l1 = num_edges * channels * size * BOTH_WAYS * (layers * COMPONENTS + filters)
    return Work(products=products, arithmetic=arithmetic, memory=memory, l1=l1)


def multiply_adds(potential: Potential, *, exact: bool = False) -> tuple[int, int]:
    """Of the forward pass: for an atom, and for an edge. Products that depend on the element alone are not counted."""
    config, network = cast(TensorNetConfig, potential.config), potential.network
    channels = config.num_channels
    mixes = 1 + 2 * config.num_layers
    per_atom = mixes * COMPONENTS * channels**2
    per_atom += sum(_linears(part) for part in (network.embedding.gate, network.readout, potential.head))
    per_edge = 0
    if isinstance(config, TensorNet2Config):
        per_atom += sum(_linears(part) for part in network.charges[:-1])  # no layer reads the last charges
    if exact:
        return per_atom, sum(_linears(layer.filters) for layer in (network.embedding, *network.layers))
    if isinstance(config, TensorNet2Config):
        # The first map of the filters: a table of the distance, and a share of each atom's charges.
        per_atom += 2 * config.num_layers * config.num_charges * channels
        per_edge = sum(_linears(cast(nn.Sequential, layer.filters)[1:]) for layer in network.layers)
    return per_atom, per_edge


def _linears(part: nn.Module) -> int:
    return sum(linear.weight.numel() for linear in part.modules() if isinstance(linear, nn.Linear))


def _table_operations() -> int:
    """For an edge and channel: three polynomials, again on the way back, and there their slopes."""
    polynomials, slopes = PARTS * DEGREE * MULTIPLY_ADD, PARTS * (DEGREE - 1) * MULTIPLY_ADD
    return BOTH_WAYS * polynomials + slopes


def _sum_operations() -> int:
    """For an edge and channel: the sum over neighbours, and its gradient in the tensor, the filters, the distance."""
    return COMPONENTS * MULTIPLY_ADD * (1 + 2) + PARTS * MULTIPLY_ADD
