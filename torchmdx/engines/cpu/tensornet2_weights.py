"""The weights that a TensorNet2 has in addition to those of a TensorNet, as tensornet2.h describes them."""

from __future__ import annotations

import ctypes
from typing import cast

from torch import nn

from torchmdx.engines.cpu.tensornet_weights import (
    INTEGER,
    POINTER,
    REAL,
    SLICE,
    Map,
    TensorNetWeights,
    padded,
    padded_size,
)
from torchmdx.engines.cutoff_copies import C, require_repeated
from torchmdx.engines.filter_table import TabulatedFilters
from torchmdx.models.charge_equilibration import LEAST_SHARE, ChargeEquilibration
from torchmdx.models.interaction import Interaction
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet2 import TensorNet2


class Filters(ctypes.Structure):
    """`struct filters`."""

    _fields_ = [("table", POINTER), ("own", POINTER), ("shares", Map * 2), ("middle", Map), ("last", Map)]


class Equilibration(ctypes.Structure):
    """`struct equilibration`."""

    _fields_ = [("scale", POINTER), ("offset", POINTER), ("epsilon", REAL), ("maps", Map * 3)]


class ChargesStruct(ctypes.Structure):
    """`struct charges`."""

    _fields_ = [
        *((name, INTEGER) for name in ("count", "slices", "last")),
        *((name, REAL) for name in ("slack", "least")),
        ("filters", ctypes.POINTER(Filters)),
        ("equilibrations", ctypes.POINTER(Equilibration)),
    ]


class TensorNet2Weights(TensorNetWeights):
    """A TensorNet2 potential's weights. table: of `RadialShares`. last: charges after the last layer are wanted."""

    def __init__(self, potential: Potential, table: TabulatedFilters, *, last: bool) -> None:
        super().__init__(potential, table)
        network = cast(TensorNet2, potential.network)
        require_repeated(float(network.config.cutoff), C)
        self.width, self.channels = network.config.num_channels, padded_size(network.config.num_channels)
        self.count = network.config.num_charges
        filters = [self._network(cast(Interaction, layer), table, k) for k, layer in enumerate(network.layers, start=1)]
        equilibrations = [self._equilibration(cast(ChargeEquilibration, module)) for module in network.charges]
        self.charges = ChargesStruct(
            count=self.count,
            slices=padded_size(self.count) // SLICE,
            last=last,
            slack=float(network.config.charge_slack),
            least=LEAST_SHARE,
            filters=(Filters * max(1, len(filters)))(*filters),
            equilibrations=(Equilibration * len(equilibrations))(*equilibrations),
        )
        self.model.charges = ctypes.addressof(self.charges)
        self.model.charge_factor = False  # the total charge enters through the equilibration only

    def _network(self, layer: Interaction, table: TabulatedFilters, k: int) -> Filters:
        first, middle, last = (cast(nn.Linear, layer.filters[i]) for i in (0, 2, 4))
        channels, wide, charges = self.channels, 2 * self.channels, padded_size(self.count)
        at_target, at_source = first.weight[:, -2 * self.count :].split(self.count, dim=1)
        radial = padded(table.coefficients[k][:, :, 0], *table.coefficients.shape[1:3], channels)
        parts = padded(last.weight.unflatten(0, (3, self.width)), 3, channels, wide)
        return Filters(
            self._keep(radial.unflatten(-1, (-1, SLICE)).transpose(1, 2)),
            self._vector(table.own[k, 0], channels),
            (Map * 2)(*(self._map(padded(share, channels, charges)) for share in (at_target, at_source))),
            self._map(padded(middle.weight, wide, channels), middle.bias),
            self._map(parts.flatten(0, 1), padded(last.bias.unflatten(0, (3, self.width)), 3, channels)),
        )

    def _equilibration(self, module: ChargeEquilibration) -> Equilibration:
        first, second, third = (cast(nn.Linear, module.network[i]) for i in (0, 2, 4))
        channels, charges, width = self.channels, padded_size(self.count), self.width
        norm = module.norm
        scale, offset = (padded(x.unflatten(0, (3, width)), 3, channels) for x in (norm.weight, norm.bias))
        norms = padded(first.weight.unflatten(1, (3, width)), channels, 3, channels).flatten(1)
        both = padded(third.weight.unflatten(0, (2, self.count)), 2, charges, channels).flatten(0, 1)
        bias = padded(third.bias.unflatten(0, (2, self.count)), 2, charges)
        maps = (
            self._map(norms, first.bias),
            self._map(padded(second.weight, channels, channels), second.bias),
            self._map(both, bias),
        )
        return Equilibration(self._keep(scale), self._keep(offset), norm.eps, (Map * 3)(*maps))


def kept_bytes(rows: int, channels: int, layers: int, itemsize: int) -> int:
    """Memory of the slopes that are kept for the backward pass. itemsize: bytes of a number."""
    return 6 * itemsize * rows * padded_size(channels) * layers
