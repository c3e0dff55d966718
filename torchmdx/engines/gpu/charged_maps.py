"""The network of edges of a TensorNet2 of few atoms by clusters of blocks: kernels/charged_maps.cu.

It replaces the kernels between `embed` and `layer`, and between that and `layer_gradient`, of charged_rows.py, where
the kernels of charged_cluster.py do the rest.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmdx.engines.gpu.one_launch import SOURCES, ClusterLauncher
from torchmdx.engines.plan.clusters import CHANNELS, SHARES, THREADS
from torchmdx.models.charge_equilibration import LEAST_SHARE
from torchmdx.runtime.cuda_source import members

if TYPE_CHECKING:
    from torchmdx.engines.gpu.charged_rows import ChargedRowChain
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

MAIN = "charged_maps.cu"
FORTH, MESSAGES_BACK = "charged_maps_forth", "charged_messages_back"
BACK, CHARGES_BACK = "charged_maps_back", "charged_charges_back"
# Rows of a cluster; shared memory of each kernel.
ROWS, CHARGES, WARPS = 32, 16, THREADS // 32
_NARROW, _COPIED = 2 * CHANNELS // SHARES + 4, (SHARES + 1) * ROWS
SHARED_BYTES = {
    FORTH: 4 * (4 * ROWS + 2 * CHARGES + ROWS * (2 * CHARGES + CHANNELS + 4) + _COPIED * _NARROW + 8 * ROWS * 48),
    MESSAGES_BACK: 4 * 9 * THREADS,
    BACK: 4 * (ROWS + ROWS * (3 * CHANNELS + 4) + _COPIED * _NARROW + 8 * ROWS * 32),
    CHARGES_BACK: 4 * (8 * CHANNELS + 64),
}


class Maps(ctypes.Structure):
    """`struct Maps` of charged_maps.cu."""

    _fields_ = members((SOURCES / MAIN).read_text(), "Maps")


def pack_fragments(matrix: Tensor, groups: int) -> Tensor:
    """[SHARES,F/4,THREADS,4] of a matrix [inner,outputs]: each block's columns, for tensor cores.

    Warps form `groups` groups, each with a part of the inner channels; warps of a group divide the columns. In eight
    inner channels and eight columns thread 4 i + j has rows j and j + 4 of column i.
    """
    inner, outputs = matrix.shape
    beside = WARPS // groups
    split = matrix.reshape(groups, inner // groups // 8, 2, 4, SHARES, beside, outputs // SHARES // beside // 8, 8)
    threads = split.permute(4, 0, 5, 7, 3, 1, 6, 2).reshape(SHARES, THREADS, -1, 4)
    return threads.transpose(1, 2)


def pack_matrices(middle: Tensor, last: Tensor) -> Tensor:
    """[SHARES,F/4,THREADS,4] of the matrices [2C,C] and [3C,2C], forward and backward."""
    pieces = [pack_fragments(middle.T, 8), pack_fragments(last.T, 8), pack_fragments(last, 8)]
    return torch.cat([*pieces, pack_fragments(middle, 16)], 1).contiguous()


class ChargedMaps:
    """The kernels with a model's weights. kernels: by name."""

    def __init__(self, model: FastTensorNet2, kernels: Mapping[str, ClusterLauncher]) -> None:
        assert model.row_weights is not None
        own = model.row_weights
        self.kernels = kernels
        self.memory = [
            dict(
                table=layer.table,
                own=layer.own,
                shares=shares.T.contiguous(),
                shares_back=shares,
                weights=pack_matrices(middle, filters.last.big + filters.last.small),
                middle_bias=filters.middle_bias,
                last_bias=filters.last_bias,
            )
            for filters, layer, shares, middle in zip(
                model.charged.filters, model.weights.layers, own.shares, own.middle, strict=True
            )
        ]
        slack, table = model.charged.equilibrations[0].slack, model.weights.layers[0].table
        self.fixed = dict(least=LEAST_SHARE, slack=slack, interval=table[0].numel())

    def launch(self, name: str, chain: ChargedRowChain, i: int) -> None:
        """One of the kernels, on the buffers of a chain, for layer i. The last layer is the first to go back."""
        b, g, q, e = chain.b, chain.gradient, chain.q, chain.edges
        assert q.pull is not None
        assert len(q.pull) == SHARES, "of the kernel's blocks, each with its channels"
        assert q.reverse is not None
        tensors = dict(
            row_ptr=e.row_ptr, source=e.source, target=e.target, shifts=e.shifts, knot=b.knot, place=b.place,
            lengths=b.stretch, y=b.y[i], gm=g.m[i], gy=b.p, proposed=q.proposed[i], charge=chain.total_charge,
            z1=q.z1[i], z2=q.z2[i], z3=q.z3[i], reverse=q.reverse, pull_parts=q.pull, pull=g.pull,
            gq=chain.pull_on(i), **self.memory[i],
        )  # fmt: skip
        given = Maps(
            **{key: tensor.data_ptr() for key, tensor in tensors.items()}, **self.fixed, num_atoms=chain.n,
            capacity=e.capacity, cutoff=chain.cutoff, wide_charge=chain.total_charge.dtype == torch.float64,
            adds=chain.pulled, adds_pull=i < len(self.memory) - 1,
        )  # fmt: skip
        clusters = {MESSAGES_BACK: chain.n, CHARGES_BACK: -(-chain.n // SHARES)}.get(name, -(-chain.rows // ROWS))
        self.kernels[name].launch(clusters, SHARED_BYTES[name], given)
