"""A potential's weights as kernels/one_launch.cu reads them: those of each block and thread in one piece."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.engines.gpu.weights import Weights
from torchmdx.engines.plan.clusters import CHANNELS, SHARES, THREADS, WIDE

SPLITS = THREADS // WIDE  # threads that share an inner sum


def pack_matrices(w: Weights) -> Tensor:
    """[SHARES,F/4,THREADS,4]: the F weights of every thread, one product after the other, as in one_launch.cu."""
    first, second = w.layers
    pieces = [
        columns(w.gate_in, 2),
        fragments(w.mix),
        by_part(w.gate_out),
        fragments(first.mix_in),
        fragments(second.mix_in),
        fragments(first.mix_out),
        fragments(second.mix_out),
        columns(w.read.flatten(0, 1), 1),
        whole(w.head.into),
        whole(w.head.back),
        by_part(w.read_back),
        fragments(first.mix_out_back),
        fragments(second.mix_out_back),
        fragments(first.mix_in_back),
        fragments(second.mix_in_back),
        columns(w.gate_out_back.flatten(0, 1), 2),
        fragments(w.mix_back),
        columns(w.gate_in_back, 1),
    ]
    return torch.cat(pieces, 1).contiguous()


def pack_tables(w: Weights) -> Tensor:
    """[3,K,5,C,4]: the tables of embedding and layers."""
    return torch.stack([pack_table(w.table), *(pack_table(layer.table) for layer in w.layers)])


def pack_table(table: Tensor) -> Tensor:
    """[K,5,C,4]: for each interval of a table the 18 coefficients of a channel, and two zeros, four at a time."""
    count, terms = len(table), 3 * table.shape[1]
    rows = torch.nn.functional.pad(table.reshape(count, terms, CHANNELS), (0, 0, 0, -terms % 4))
    return rows.reshape(count, -1, 4, CHANNELS).transpose(2, 3).contiguous()


def pack_vectors(w: Weights) -> Tensor:
    """[SHARES,V]: norms, biases and filters of distance 0, as a block reads them; see VECTORS in one_launch.cu.

    A LayerNorm's backward pass needs two sums over the gradient g in its scaled output x s + o. From the gradient h
    behind the matrix W that follows, they are Σ_c g_c = h · W s and Σ_c g_c x_c = h · (z - W o - b), where z is that
    map's result: W s and W o + b are stored.
    """
    wide = torch.float64
    read, gate = w.read.flatten(0, 1).to(wide), w.gate_in.to(wide)
    scale, offset = w.read_scale.flatten().to(wide), w.read_offset.flatten().to(wide)
    gate_level, read_level = w.gate_scale.to(wide) @ gate, scale @ read
    gate_shift = w.gate_in_bias.to(wide) + w.gate_offset.to(wide) @ gate
    read_shift = w.read_bias.to(wide) + offset @ read
    of_gate, of_read = (w.gate_scale, w.gate_offset, gate_level, gate_shift), (scale, offset, read_level, read_shift)
    common = [*of_gate, *of_read, w.head.bias[-1], w.head.last]
    own = w.own.new_zeros(3, 3, CHANNELS)  # of embedding and layers
    for k, each in enumerate((w.own, *(layer.own for layer in w.layers))):
        own[k] = each
    rows = []
    for share in range(SHARES):
        mine, hidden = (slice(k * WIDE * share, k * WIDE * (share + 1)) for k in (1, 2))
        parts = [w.gate_in_bias[hidden], w.gate_out_bias[:, mine], w.read_bias[mine], own[:, :, mine]]
        rows.append(torch.cat([x.reshape(-1).float() for x in (*common, *parts)]))
    return torch.stack(rows).contiguous()


def _packed(blocks: list[Tensor]) -> Tensor:
    """[SHARES,F/4,THREADS,4] from the matrices [G,K,WIDE] of every block: G groups of its columns.

    Thread (s, c) has column c of each group, and of the rows K those whose number, divided by up to 4, is s modulo
    SPLITS.
    """
    out = []
    for matrix in blocks:
        groups, inner, _ = matrix.shape
        row = min(4, inner // SPLITS)
        split = matrix.reshape(groups, inner // SPLITS // row, SPLITS, row, WIDE)
        threads = split.permute(2, 4, 1, 0, 3).reshape(THREADS, -1, 4)
        out.append(threads.transpose(0, 1))
    return torch.stack(out)


def fragments(matrices: Tensor) -> Tensor:
    """One matrix per part, [3,C,C]: the block's columns of each, for tensor cores.

    Warp w has rows 8 w to 8 w + 7; its thread 4 i + j has columns i and i + 8 of row 2 j, then of row 2 j + 1.
    """
    split = matrices.reshape(3, THREADS // 32, 4, 2, SHARES, 2, 8)
    return split.permute(4, 0, 1, 6, 2, 3, 5).reshape(SHARES, 3, THREADS, 4)


def by_part(matrix: Tensor) -> Tensor:
    """[K,3,C]: the block's columns of each part."""
    return _packed(list(matrix.unflatten(2, (SHARES, WIDE)).permute(2, 1, 0, 3)))


def columns(matrix: Tensor, groups: int) -> Tensor:
    """[K,SHARES·groups·WIDE]: neighbouring columns."""
    return _packed(list(matrix.unflatten(1, (SHARES, groups, WIDE)).permute(1, 2, 0, 3)))


def whole(matrix: Tensor) -> Tensor:
    """[K,N]: all columns in every block."""
    return _packed([matrix.unflatten(1, (-1, WIDE)).transpose(0, 1)] * SHARES)
