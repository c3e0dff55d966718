"""A potential's weights as kernels/one_launch.cu reads them: those of each block and thread in one piece."""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.engines.fused.weights import Weights

# Channels of the network; blocks of a cluster, which share them; threads of a block; hidden channels of the head.
CHANNELS, SHARES, THREADS, HEAD = 128, 8, 512, 64
WIDE = CHANNELS // SHARES
SPLITS = THREADS // WIDE  # threads that share an inner sum


def pack_matrices(w: Weights) -> Tensor:
    """[SHARES,F/4,THREADS,4]: the F weights of every thread, one product after the other, as in one_launch.cu."""
    first, second = w.layers
    pieces = [
        _columns(w.gate_in, 2),
        _fragments(w.mix),
        _by_part(w.gate_out),
        _fragments(first.mix_in),
        _fragments(second.mix_in),
        _fragments(first.mix_out),
        _fragments(second.mix_out),
        _columns(w.read.flatten(0, 1), 1),
        _whole(w.head.into),
        _whole(w.head.back),
        _by_part(w.read_back),
        _fragments(first.mix_out_back),
        _fragments(second.mix_out_back),
        _fragments(first.mix_in_back),
        _fragments(second.mix_in_back),
        _columns(w.gate_out_back.flatten(0, 1), 2),
        _fragments(w.mix_back),
        _columns(w.gate_in_back, 1),
    ]
    return torch.cat(pieces, 1).contiguous()


def pack_tables(w: Weights) -> Tensor:
    """[3,K,5,C,4]: for each interval of each table the 18 coefficients of a channel, and two zeros, four at a time."""
    tables = torch.stack([w.table, *(layer.table for layer in w.layers)])
    count, terms = tables.shape[1], 3 * (w.degree + 1)
    rows = torch.nn.functional.pad(tables.reshape(3, count, terms, CHANNELS), (0, 0, 0, -terms % 4))
    return rows.reshape(3, count, -1, 4, CHANNELS).transpose(3, 4).contiguous()


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
    common = [*of_gate, *of_read, w.head.bias, w.head.last]
    own = torch.stack([w.own, *(layer.own for layer in w.layers)])  # [3,3,C]
    rows = []
    for share in range(SHARES):
        mine, hidden = (slice(k * WIDE * share, k * WIDE * (share + 1)) for k in (1, 2))
        each = [w.gate_in_bias[hidden], w.gate_out_bias[:, mine], w.read_bias[mine], own[:, :, mine]]
        rows.append(torch.cat([x.reshape(-1).float() for x in (*common, *each)]))
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


def _fragments(matrices: Tensor) -> Tensor:
    """One matrix per part, [3,C,C]: the block's columns of each, for tensor cores.

    Warp w has rows 8 w to 8 w + 7; its thread 4 i + j has columns i and i + 8 of row 2 j, then of row 2 j + 1.
    """
    split = matrices.reshape(3, THREADS // 32, 4, 2, SHARES, 2, 8)
    return split.permute(4, 0, 1, 6, 2, 3, 5).reshape(SHARES, 3, THREADS, 4)


def _by_part(matrix: Tensor) -> Tensor:
    """[K,3,C]: the block's columns of each part."""
    return _packed(list(matrix.unflatten(2, (SHARES, WIDE)).permute(2, 1, 0, 3)))


def _columns(matrix: Tensor, groups: int) -> Tensor:
    """[K,SHARES·groups·WIDE]: neighbouring columns."""
    return _packed(list(matrix.unflatten(1, (SHARES, groups, WIDE)).permute(1, 2, 0, 3)))


def _whole(matrix: Tensor) -> Tensor:
    """[K,N]: all columns in every block."""
    return _packed([matrix.unflatten(1, (-1, WIDE)).transpose(0, 1)] * SHARES)
