"""The weights of TensorNet and TensorNet2 as tensornet.h describes them, padded to slices of 16 channels.

A padded channel has zero weights as input and as output, so it is zero in every tensor and in every gradient.
"""

from __future__ import annotations

import ctypes
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.engines.filter_table import TabulatedFilters
from torchmdx.engines.hermite import FIFTH, NINTH
from torchmdx.engines.plan.settings import ACTIVATIONS, activation_of
from torchmdx.models.energy_head import GatedHead, ScalarHead
from torchmdx.models.interaction import Interaction
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import MOST, TensorNet
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.models.tensors import PartwiseLinear
from torchmdx.runtime.c_arrays import CPU, address

SLICE = 16
TERMS = {torch.float32: 6, torch.float64: 10}  # of a filter's polynomial, by the type of all numbers
MOST_LAYERS = 64  # as in tensornet.h
MOST_NETWORKS = 2  # of a head
POINTER, INTEGER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
assert list(TERMS.values()) == [FIFTH.degree + 1, NINTH.degree + 1]
assert MOST["num_layers"] <= MOST_LAYERS


class Map(ctypes.Structure):
    """`struct map`."""

    _fields_ = [("weight", POINTER), ("back", POINTER), ("bias", POINTER)]


class Layer(ctypes.Structure):
    """`struct layer`."""

    _fields_ = [("table", POINTER), ("own", POINTER), ("into", Map * 3), ("out", Map * 3)]


class ModelStruct(ctypes.Structure):
    """`struct model`."""

    _fields_ = [
        *((name, INTEGER) for name in ("slices", "width", "layers", "intervals", "head_slices", "head_layers")),
        *((name, INTEGER) for name in ("activation", "reflections")),
        *((name, INTEGER) for name in ("head_networks", "readout_activation", "charge_factor", "gathers")),
        ("stretch", REAL * 3),
        *((name, REAL) for name in ("alpha", "origin", "cutoff", "gate_epsilon", "read_epsilon", "scale", "shift")),
        ("last_bias", REAL * MOST_NETWORKS),
        *((name, POINTER) for name in ("references", "real", "targets", "sources", "table", "own")),
        *((name, POINTER) for name in ("gate_scale", "gate_offset", "read_scale", "read_offset", "last")),
        ("gate_in", Map),
        ("gate_out", Map),
        ("mix", Map * 3),
        ("read", Map),
        ("heads", ctypes.POINTER(Map)),
        ("each_layer", ctypes.POINTER(Layer)),
        ("charges", POINTER),
    ]


class TensorNetWeights:
    """A potential's weights, and `model`, the structure that points to them. head: whether with its head."""

    def __init__(self, potential: Potential, table: TabulatedFilters, *, head: bool = True) -> None:
        self._kept: list[object] = []  # what the structure points to
        self.dtype = potential.dtype
        assert table.coefficients.shape[2] == TERMS[self.dtype]
        network, config = cast(TensorNet | TensorNet2, potential.network), potential.config
        width, embedding = config.num_channels, network.embedding
        channels = padded_size(width)
        self.model = m = ModelStruct()
        m.slices, m.width, m.layers = channels // SLICE, width, config.num_layers
        m.intervals = table.stretch.num_intervals
        m.activation, m.reflections = ACTIVATIONS.index(activation_of(config)), config.group == "O(3)"
        m.readout_activation, m.charge_factor = config.readout_activation, config.charge_factor
        m.gathers = config.messages == "source"
        m.stretch[:] = table.stretch.coefficients
        m.alpha, m.origin, m.cutoff = table.stretch.alpha, table.origin, table.stretch.cutoff
        m.gate_epsilon, m.read_epsilon = embedding.norm.eps, network.norm.eps
        m.scale, m.shift = float(potential.scale), float(potential.shift)
        m.references = self._keep(potential.reference_energies.detach().clone(), torch.float64)
        m.real = self._vector(torch.ones(width, device=CPU), channels)
        elements = embedding.elements.weight.detach().double()
        of_target, of_source = embedding.pair.weight.detach().double().split(width, dim=1)
        bias = embedding.pair.bias.detach().double()
        m.targets = self._keep(padded(elements @ of_target.T + bias, len(elements), channels))
        m.sources = self._keep(padded(elements @ of_source.T, len(elements), channels))
        m.table, m.own = self._filters(table, 0, channels)
        m.gate_scale, m.gate_offset = (self._vector(x, channels) for x in (embedding.norm.weight, embedding.norm.bias))
        gate_in, gate_out = cast(nn.Linear, embedding.gate[0]), cast(nn.Linear, embedding.gate[2])
        m.gate_in = self._map(padded(gate_in.weight, 2 * channels, channels), gate_in.bias)
        parts = padded(gate_out.weight.unflatten(0, (3, width)), 3, channels, 2 * channels)
        m.gate_out = self._map(parts.flatten(0, 1), padded(gate_out.bias.unflatten(0, (3, width)), 3, channels))
        m.mix = self._parts(embedding.mix, channels)
        layers = [cast(Interaction, layer) for layer in network.layers]
        m.each_layer = (Layer * max(1, len(layers)))(
            *(self._layer(layer, table, k + 1, channels) for k, layer in enumerate(layers))
        )
        m.read_scale, m.read_offset = (
            self._keep(padded(x.unflatten(0, (3, width)), 3, channels))
            for x in (network.norm.weight, network.norm.bias)
        )
        read = padded(network.readout.weight.unflatten(1, (3, width)), channels, 3, channels)
        m.read = self._map(read.flatten(1), network.readout.bias)
        if head:
            self._head(potential.head, channels)
        else:
            m.shift = 0.0

    def _head(self, head: ScalarHead | GatedHead, channels: int) -> None:
        networks = (head.layers, head.gates) if isinstance(head, GatedHead) else (head.network,)
        linear = [[layer for layer in network if isinstance(layer, nn.Linear)] for network in networks]
        lasts, m = [layers.pop() for layers in linear], self.model
        width = padded_size(linear[0][0].out_features)
        maps = [
            self._map(padded(layer.weight, width, width if k else channels), layer.bias)
            for layers in linear
            for k, layer in enumerate(layers)
        ]
        m.head_networks, m.head_layers, m.head_slices = len(networks), len(linear[0]), width // SLICE
        m.heads = (Map * len(maps))(*maps)
        m.last = self._keep(padded(torch.cat([last.weight for last in lasts]), len(lasts), width))
        m.last_bias[: len(lasts)] = [float(last.bias.detach()) for last in lasts]

    def _keep(self, values: Tensor, dtype: torch.dtype | None = None) -> int:
        """The address of a copy in a dtype; None: that of the potential."""
        dtype = dtype or self.dtype
        values = values.detach().to(dtype).contiguous()
        self._kept.append(values)
        return address("weights", values, dtype)

    def _vector(self, values: Tensor, size: int) -> int:
        return self._keep(padded(values, size))

    def _map(self, matrix: Tensor, bias: Tensor | None = None) -> Map:
        """A padded matrix [outputs,inputs]."""
        end = None if bias is None else self._vector(bias.detach().flatten(), len(matrix))
        return Map(self._keep(packed(matrix)), self._keep(packed(matrix.T)), end)

    def _parts(self, linear: PartwiseLinear, channels: int) -> ctypes.Array[Map]:
        matrices = (linear.scalar.weight, linear.vector.weight, linear.symmetric.weight)
        return (Map * 3)(*(self._map(padded(matrix, channels, channels)) for matrix in matrices))

    def _layer(self, layer: Interaction, table: TabulatedFilters, k: int, channels: int) -> Layer:
        filters = self._filters(table, k, channels)
        return Layer(*filters, self._parts(layer.mix_in, channels), self._parts(layer.mix_out, channels))

    def _filters(self, table: TabulatedFilters, k: int, channels: int) -> tuple[int, int]:
        """The table [intervals,slices,3,6,16] and the filters of distance 0 [slices,3,16]."""
        coefficients, slices = table.coefficients[k], channels // SLICE
        all_terms = padded(coefficients, *coefficients.shape[:3], channels).unflatten(-1, (slices, SLICE))
        own = padded(table.own[k], 3, channels).unflatten(-1, (slices, SLICE))
        return self._keep(all_terms.permute(0, 3, 2, 1, 4)), self._keep(own.transpose(0, 1))


def padded_size(count: int) -> int:
    """The smallest multiple of SLICE that is at least `count`."""
    return -(-count // SLICE) * SLICE


def padded(values: Tensor, *shape: int) -> Tensor:
    """Values in the leading corner of a tensor of zeros."""
    out = torch.zeros(shape, dtype=values.dtype, device=CPU)
    out[tuple(slice(size) for size in values.shape)] = values.detach()
    return out


def packed(matrix: Tensor) -> Tensor:
    """A matrix [outputs,inputs] as [outputs/16,inputs,16]."""
    return matrix.unflatten(0, (-1, SLICE)).transpose(1, 2).contiguous()
