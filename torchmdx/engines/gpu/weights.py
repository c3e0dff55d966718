"""A potential's weights as the kernels read them: float32, transposed as needed, padded to powers of two with zeros.

A padded channel has zero weights as input and as output, so it is zero in every tensor and in every gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmdx.engines.filter_table import TabulatedFilters
from torchmdx.engines.gpu.head_weights import HeadWeights, padded
from torchmdx.engines.gpu.triton.edge_walk import LEADING
from torchmdx.engines.gpu.triton.tf32_product import Split
from torchmdx.engines.knots import FOR_FLOAT32, Stretch
from torchmdx.engines.plan.padding import power_of_two
from torchmdx.models.interaction import Interaction
from torchmdx.models.potential import Potential
from torchmdx.models.tensors import PartwiseLinear

# Of the largest value and of the largest slope, for coefficients that share words in float32.
DENSE_ERROR = 5e-7


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """table [n,degree+1,3,C] and own [3,C] of the filters; matrices [3,C,C] with inputs, `_back` outputs, as rows."""

    table: Tensor
    own: Tensor
    mix_in: Tensor
    mix_in_back: Tensor
    mix_out: Tensor
    mix_out_back: Tensor


@dataclass(frozen=True, eq=False)
class Weights:
    """Everything the kernels read, with C, H = 2C and the head's width padded; `_back` are the transposed matrices."""

    width: int
    channels: int
    hidden: int
    stretch: Tensor  # p, q, s, α, cutoff; float64
    num_intervals: int
    degree: int
    table: Tensor
    own: Tensor
    targets: Tensor
    sources: Tensor
    gate_scale: Tensor
    gate_offset: Tensor
    gate_in: Tensor
    gate_in_bias: Tensor
    gate_in_back: Tensor
    gate_out: Tensor
    gate_out_bias: Tensor
    gate_out_back: Tensor
    mix: Tensor
    mix_back: Tensor
    layers: tuple[LayerWeights, ...]
    read_scale: Tensor
    read_offset: Tensor
    read: Tensor
    read_bias: Tensor
    read_back: Tensor
    head: HeadWeights
    shift: Tensor
    references: Tensor

    @classmethod
    def pack(cls, potential: Potential, table: TabulatedFilters) -> Weights:
        network = potential.network
        embedding = network.embedding
        width = potential.config.num_channels
        channels = power_of_two(width)
        hidden = 2 * channels
        coefficients, own = table.coefficients, table.own
        stretch = [*table.stretch.coefficients, table.stretch.alpha, table.stretch.cutoff]
        elements = embedding.elements.weight.detach().double()
        pair_target, pair_source = embedding.pair.weight.detach().double().split(width, dim=1)
        gate_in, gate_out = embedding.gate[0], embedding.gate[2]
        assert isinstance(gate_in, nn.Linear)
        assert isinstance(gate_out, nn.Linear)
        gate_parts = gate_out.weight.unflatten(0, (3, width))  # [3,C,H]
        read_parts = network.readout.weight.unflatten(1, (3, width))  # [C,3,C]
        return cls(
            width=width,
            channels=channels,
            hidden=hidden,
            stretch=torch.tensor(stretch, dtype=torch.float64, device=own.device),
            num_intervals=table.stretch.num_intervals,
            degree=coefficients.shape[2] - 1,
            table=padded(coefficients[0], *coefficients.shape[1:4], channels),
            own=padded(own[0], 3, channels),
            targets=padded(elements @ pair_target.T + embedding.pair.bias.double(), len(elements), channels),
            sources=padded(elements @ pair_source.T, len(elements), channels),
            gate_scale=padded(embedding.norm.weight, channels),
            gate_offset=padded(embedding.norm.bias, channels),
            gate_in=padded(gate_in.weight.T, channels, hidden),
            gate_in_bias=padded(gate_in.bias, hidden),
            gate_in_back=padded(gate_in.weight, hidden, channels),
            gate_out=padded(gate_parts.permute(2, 0, 1), hidden, 3, channels),
            gate_out_bias=padded(gate_out.bias.unflatten(0, (3, width)), 3, channels),
            gate_out_back=padded(gate_parts, 3, channels, hidden),
            mix=_parts(embedding.mix, channels, back=False),
            mix_back=_parts(embedding.mix, channels, back=True),
            layers=tuple(
                _layer(layer, coefficients[i + 1], own[i + 1], channels)
                for i, layer in enumerate(network.layers)
                if isinstance(layer, Interaction)
            ),
            read_scale=padded(network.norm.weight.unflatten(0, (3, width)), 3, channels),
            read_offset=padded(network.norm.bias.unflatten(0, (3, width)), 3, channels),
            read=padded(read_parts.permute(1, 2, 0), 3, channels, channels),
            read_bias=padded(network.readout.bias, channels),
            read_back=padded(read_parts, channels, 3, channels),
            head=HeadWeights.pack(potential, channels),
            shift=potential.shift.detach().clone(),
            references=potential.reference_energies.detach().clone(),
        )


@dataclass(frozen=True, eq=False)
class SplitWeights:
    """The matrices that blocks of atoms are multiplied with, [outputs,inputs]; `_back` those of the backward pass."""

    gate_in: Split
    gate_in_back: Split
    gate_out: Split
    gate_out_back: Split
    mix: Split
    mix_back: Split
    mix_in: tuple[Split, ...]
    mix_in_back: tuple[Split, ...]
    mix_out: tuple[Split, ...]
    mix_out_back: tuple[Split, ...]
    read: Split
    read_back: Split
    # Of a gated head, the matrices of each hidden layer; none of a plain one.
    head: tuple[Split, ...]
    head_back: tuple[Split, ...]

    @classmethod
    def of(cls, w: Weights) -> SplitWeights:
        """Matrices are those of `Weights` transposed."""
        of = Split.of
        return cls(
            gate_in=of(w.gate_in_back),
            gate_in_back=of(w.gate_in),
            gate_out=of(w.gate_out_back.flatten(0, 1)),
            gate_out_back=of(w.gate_out.flatten(1)),
            mix=of(w.mix_back),
            mix_back=of(w.mix),
            mix_in=tuple(of(layer.mix_in_back) for layer in w.layers),
            mix_in_back=tuple(of(layer.mix_in) for layer in w.layers),
            mix_out=tuple(of(layer.mix_out_back) for layer in w.layers),
            mix_out_back=tuple(of(layer.mix_out) for layer in w.layers),
            read=of(w.read_back.flatten(1)),
            read_back=of(w.read.flatten(0, 1)),
            head=tuple(of(matrix) for matrix in w.head.layers(w.head.back)),
            head_back=tuple(of(matrix) for matrix in w.head.layers(w.head.into)),
        )


def dense_table(table: Tensor, stretch: Stretch) -> Tensor:
    """A table [n,6,3,C] as words [n,5,3,C]: the coefficients of t⁴ and t⁵ share the last one.

    The word, read as a float, is the coefficient of t⁴; its last bits are the first bits of that of t⁵. The other
    coefficients make up for the rounding, so that values and slopes at both ends of an interval stay as they are. If
    values or slopes between change by more than `DENSE_ERROR` of the largest, the table itself.
    """
    if table.shape[1] != 6:
        return table
    last = 32 - LEADING.value  # bits
    exact = table.double()
    bits = table[:, 5].contiguous().view(torch.int32).long()
    fifth = ((bits + (1 << (LEADING.value - 1))) >> LEADING.value) & ((1 << last) - 1)
    change = exact[:, 5] - _word(fifth << LEADING.value).view(torch.float32).double()
    # t⁵ - 2.5 t⁴ is within the interval nearly a polynomial of the third degree.
    fourth = exact[:, 4] + 2.5 * change
    bits = fourth.float().view(torch.int32).long()
    words = torch.stack([_word((((bits >> last) + step) << last) | fifth) for step in (-1, 0, 1)])
    distance = (words.view(torch.float32).double() - fourth).abs()
    word = words.gather(0, torch.where(distance.isnan(), math.inf, distance).argmin(0, keepdim=True))[0]
    change_4 = exact[:, 4] - word.view(torch.float32).double()
    # t²(1 - t)² (change_4 + change (t + 2)) is left.
    lower = exact[:, :4].clone()
    lower[:, 2] -= change_4 + 2 * change
    lower[:, 3] += 2 * change_4 + 3 * change
    if not _largest_change(change_4, change, exact, stretch) <= DENSE_ERROR:
        return table
    return torch.cat([lower.float().view(torch.int32), word[:, None]], 1).contiguous().view(torch.uint32)


def _largest_change(fourth: Tensor, fifth: Tensor, table: Tensor, stretch: Stretch) -> float:
    """Of values or slopes in a table by t²(1-t)² (fourth + fifth (t + 2)), relative to the largest value or slope.

    Slopes are those by distance: intervals differ in width. Compared in the ranges that the table was made for.
    """
    knots = torch.arange(len(table), dtype=torch.float64, device=table.device)
    value, slope = (power.abs().amax(dim=(1, 2)) for power in (table[:, 0], table[:, 1]))
    slope = slope * stretch.slope(stretch.inverse(knots)).abs()
    worst = torch.zeros_like(value[0])
    for t in torch.linspace(0, 1, 17, dtype=torch.float64, device="cpu").tolist():
        quartic, along = (t * (1 - t)) ** 2, fourth + fifth * (t + 2)
        steep = 2 * t * (1 - t) * (1 - 2 * t) * along + quartic * fifth
        scale = stretch.slope(stretch.inverse(knots + t)).abs()
        of_value, of_slope = (change.abs().amax(dim=(1, 2)) for change in (quartic * along, steep))
        for change, size in ((of_value, value), (of_slope * scale, slope)):
            for start, factor in FOR_FLOAT32.ranges:
                count = int(stretch.beyond(start * stretch.cutoff)) + 1  # intervals
                worst = torch.maximum(worst, change[:count].amax() / (factor * size[:count].amax()))
    return float(worst)


def _word(bits: Tensor) -> Tensor:
    """The last 32 bits of integers, as int32."""
    bits = bits & 0xFFFFFFFF
    return torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32)


def _parts(linear: PartwiseLinear, channels: int, *, back: bool) -> Tensor:
    """The three matrices [3,C,C] of a partwise linear map."""
    found = torch.stack([linear.scalar.weight, linear.vector.weight, linear.symmetric.weight])
    return padded(found if back else found.transpose(1, 2), 3, channels, channels)


def _layer(layer: Interaction, table: Tensor, own: Tensor, channels: int) -> LayerWeights:
    return LayerWeights(
        table=padded(table, *table.shape[:3], channels),
        own=padded(own, 3, channels),
        mix_in=_parts(layer.mix_in, channels, back=False),
        mix_in_back=_parts(layer.mix_in, channels, back=True),
        mix_out=_parts(layer.mix_out, channels, back=False),
        mix_out_back=_parts(layer.mix_out, channels, back=True),
    )
