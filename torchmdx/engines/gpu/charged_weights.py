"""The weights that a TensorNet2 has in addition to those of a TensorNet, packed for the kernels: see weights.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchmdx.engines.cutoff_copies import CLUSTER, TRITON, require_repeated
from torchmdx.engines.gpu.fp16_parts import HalfParts
from torchmdx.engines.gpu.head_weights import padded
from torchmdx.engines.gpu.triton.tf32_product import Split
from torchmdx.engines.plan.padding import padded_charges
from torchmdx.models.charge_equilibration import ChargeEquilibration
from torchmdx.models.interaction import Interaction
from torchmdx.models.tensornet2 import TensorNet2


@dataclass(frozen=True, eq=False)
class FilterWeights:
    """The network of a layer's filters without its radial part: charges [K,2,C], then two maps, biases [2C] and [3,C].

    Rows of matrices are outputs, columns are inputs; `_back` are the transposed matrices.
    """

    shares: Tensor
    middle: Split
    middle_bias: Tensor
    middle_back: Split
    last: Split
    last_bias: Tensor
    last_back: Split
    middle_parts: HalfParts
    last_parts: HalfParts

    @classmethod
    def pack(cls, layer: Interaction, charges: int, channels: int) -> FilterWeights:
        width = layer.num_channels
        first, middle, last = (layer.filters[i] for i in (0, 2, 4))
        assert isinstance(first, nn.Linear)
        assert isinstance(middle, nn.Linear)
        assert isinstance(last, nn.Linear)
        shares = first.weight[:, first.in_features - 2 * charges :].unflatten(1, (2, charges))  # [C,2,K]
        parts = last.weight.unflatten(0, (3, width))  # [3,C,2C]
        forth = padded(parts, 3, channels, 2 * channels).flatten(0, 1)
        between = padded(middle.weight, 2 * channels, channels)
        return cls(
            shares=padded(shares.permute(2, 1, 0), padded_charges(charges), 2, channels),
            middle=Split.of(between),
            middle_bias=padded(middle.bias, 2 * channels),
            middle_back=Split.of(between.T.contiguous()),
            last=Split.of(forth),
            last_bias=padded(last.bias.unflatten(0, (3, width)), 3, channels),
            last_back=Split.of(forth.T.contiguous()),
            middle_parts=HalfParts.of(between),
            last_parts=HalfParts.of(forth),
        )


@dataclass(frozen=True, eq=False)
class ChargeWeights:
    """A ChargeEquilibration: a LayerNorm of [3,C] and three maps, 3C -> C -> C -> 2K."""

    epsilon: float
    slack: float
    scale: Tensor
    offset: Tensor
    first: Split
    first_bias: Tensor
    first_back: Split
    second: Split
    second_bias: Tensor
    second_back: Split
    third: Split
    third_bias: Tensor
    third_back: Split

    @classmethod
    def pack(cls, module: ChargeEquilibration, width: int, channels: int) -> ChargeWeights:
        first, second, third = (module.network[i] for i in (0, 2, 4))
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        assert isinstance(third, nn.Linear)
        charges = third.out_features // 2
        wide = padded_charges(charges)
        one = padded(first.weight.unflatten(1, (3, width)), channels, 3, channels).flatten(1)
        two = padded(second.weight, channels, channels)
        three = padded(third.weight.unflatten(0, (2, charges)), 2, wide, channels).flatten(0, 1)

        def back(matrix: Tensor) -> Split:
            return Split.of(matrix.T.contiguous())

        return cls(
            epsilon=module.norm.eps,
            slack=module.slack,
            scale=padded(module.norm.weight.unflatten(0, (3, width)), 3, channels),
            offset=padded(module.norm.bias.unflatten(0, (3, width)), 3, channels),
            first=Split.of(one),
            first_bias=padded(first.bias, channels),
            first_back=back(one),
            second=Split.of(two),
            second_bias=padded(second.bias, channels),
            second_back=back(two),
            third=Split.of(three),
            third_bias=padded(third.bias.unflatten(0, (2, charges)), 2, wide).flatten(),
            third_back=back(three),
        )


@dataclass(frozen=True, eq=False)
class ChargedWeights:
    """The filters of every layer, and the charge equilibrations before each layer and after the last."""

    num_charges: int
    charges: int  # padded
    filters: tuple[FilterWeights, ...]
    equilibrations: tuple[ChargeWeights, ...]

    @classmethod
    def pack(cls, network: TensorNet2, channels: int) -> ChargedWeights:
        require_repeated(float(network.config.cutoff), TRITON, CLUSTER)
        count, width = network.config.num_charges, network.config.num_channels
        with torch.no_grad():
            return cls(
                num_charges=count,
                charges=padded_charges(count),
                filters=tuple(
                    FilterWeights.pack(layer, count, channels)
                    for layer in network.layers
                    if isinstance(layer, Interaction)
                ),
                equilibrations=tuple(
                    ChargeWeights.pack(module, width, channels)
                    for module in network.charges
                    if isinstance(module, ChargeEquilibration)
                ),
            )


def whole(matrix: Split) -> Tensor:
    """The matrix that was divided exactly into two parts."""
    return matrix.big + matrix.small


@dataclass(frozen=True, eq=False)
class RowCharges:
    """A ChargeEquilibration's matrices with inputs, `_back` outputs, as rows; see ChargeWeights."""

    first: Tensor
    first_back: Tensor
    second: Tensor
    second_back: Tensor
    third: Tensor
    third_back: Tensor

    @classmethod
    def of(cls, w: ChargeWeights) -> RowCharges:
        return cls(
            first=whole(w.first_back),
            first_back=whole(w.first),
            second=whole(w.second_back),
            second_back=whole(w.second),
            third=whole(w.third_back),
            third_back=whole(w.third),
        )


@dataclass(frozen=True, eq=False)
class RowWeights:
    """What kernels read besides packed weights: for each layer shares [C,2K] and the middle matrix [2C,C]."""

    charges: tuple[RowCharges, ...]
    shares: tuple[Tensor, ...]
    middle: tuple[Tensor, ...]

    @classmethod
    def of(cls, w: ChargedWeights) -> RowWeights:
        """Of matrices that have been divided exactly."""
        return cls(
            charges=tuple(RowCharges.of(each) for each in w.equilibrations),
            shares=tuple(f.shares.permute(2, 1, 0).flatten(1).contiguous() for f in w.filters),
            middle=tuple(whole(f.middle) for f in w.filters),
        )
