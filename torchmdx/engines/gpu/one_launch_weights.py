"""A potential's weights as sm90/one_launch.cu reads them: those of each block and thread in one piece."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from torchmdx.engines.gpu.head_weights import HeadWeights, padded
from torchmdx.engines.gpu.weights import LayerWeights, Weights
from torchmdx.engines.plan.clusters import CHANNELS, HEAD, SHARES, THREADS, WIDE

SPLITS = THREADS // WIDE  # threads that share an inner sum


def widened(w: Weights) -> Weights:
    """The same network with CHANNELS channels, of which those beyond its own are zero. At most CHANNELS are given."""
    if w.channels == CHANNELS:
        return w
    c, h = CHANNELS, 2 * CHANNELS
    shapes: dict[str, tuple[int, ...]] = {
        "table": (*w.table.shape[:3], c), "own": (3, c), "targets": (len(w.targets), c), "sources": (len(w.sources), c),
        "gate_scale": (c,), "gate_offset": (c,), "gate_in": (c, h), "gate_in_bias": (h,), "gate_in_back": (h, c),
        "gate_out": (h, 3, c), "gate_out_bias": (3, c), "gate_out_back": (3, c, h), "mix": (3, c, c),
        "mix_back": (3, c, c), "read_scale": (3, c), "read_offset": (3, c), "read": (3, c, c), "read_bias": (c,),
        "read_back": (c, 3, c),
    }  # fmt: skip
    layers = tuple(
        LayerWeights(
            **{
                field.name: padded(value, *value.shape[:-2], *((c, c) if "mix" in field.name else (3, c)))
                for field in fields(layer)
                for value in (getattr(layer, field.name),)
            }
        )
        for layer in w.layers
    )
    changed: dict[str, Any] = {name: padded(getattr(w, name), *shape) for name, shape in shapes.items()}
    return replace(w, **changed, channels=c, hidden=h, layers=layers, head=_wide_head(w.head))


def _wide_head(w: HeadWeights) -> HeadWeights:
    c = CHANNELS
    if w.gated:
        into, back = w.layers(w.into), w.layers(w.back)
        first = padded(into[0].unflatten(1, (2, w.width)), c, 2, c)
        first_back = padded(back[0].unflatten(0, (2, w.width)), 2, c, c)
        return replace(
            w,
            width=c,
            into=torch.stack([first.reshape(-1), *(padded(matrix, 2, c, c).reshape(-1) for matrix in into[1:])]),
            back=torch.stack([first_back.reshape(-1), *(padded(matrix, 2, c, c).reshape(-1) for matrix in back[1:])]),
            bias=padded(w.bias.unflatten(1, (2, w.width)), len(w.bias), 2, c).flatten(1),
            last=padded(w.last, 2, c),
        )
    more = len(w.more)
    return replace(
        w,
        width=HEAD,
        into=padded(w.into, c, HEAD),
        back=padded(w.back, HEAD, c),
        more=padded(w.more, more, HEAD, HEAD),
        more_back=padded(w.more_back, more, HEAD, HEAD),
        bias=padded(w.bias, len(w.bias), HEAD),
        last=padded(w.last, HEAD),
    )


def pack_matrices(w: Weights) -> Tensor:
    """[SHARES,F/4,THREADS,4]: the F weights of every thread, one product after the other, as in one_launch.cu."""
    pieces = [
        columns(w.gate_in, 2),
        fragments(w.mix),
        by_part(w.gate_out),
        *(fragments(layer.mix_in) for layer in w.layers),
        *(fragments(layer.mix_out) for layer in w.layers),
        columns(w.read.flatten(0, 1), 1),
        *pack_head(w.head),
        by_part(w.read_back),
        *(fragments(layer.mix_out_back) for layer in w.layers),
        *(fragments(layer.mix_in_back) for layer in w.layers),
        columns(w.gate_out_back.flatten(0, 1), 2),
        fragments(w.mix_back),
        columns(w.gate_in_back, 1),
    ]
    return torch.cat(pieces, 1).contiguous()


def pack_head(w: HeadWeights) -> list[Tensor]:
    """Of a plain head, all of it in every block: the first layer, forward and back, then others forward, then back.

    Of a gated head the block's columns of both networks: all layers forward, then all back.
    """
    if not w.gated:
        return [whole(w.into), whole(w.back), *map(whole, w.more), *map(whole, w.more_back)]
    (first, *others), (first_back, *others_back) = w.layers(w.into), w.layers(w.back)
    forward = [by_part(first.unflatten(1, (2, CHANNELS))), *(by_part(pair.transpose(0, 1)) for pair in others)]
    back = [columns(first_back, 1), *(by_part(pair.transpose(0, 1)) for pair in others_back)]
    return [*forward, *back]


def pack_tables(w: Weights) -> Tensor:
    """[1+L,K,5,C,4]: the tables of embedding and layers."""
    return torch.stack([pack_table(w.table), *(pack_table(layer.table) for layer in w.layers)])


def pack_table(table: Tensor) -> Tensor:
    """[K,5,C,4]: for each interval of a table the 18 coefficients of a channel, and two zeros, four at a time."""
    count, terms = len(table), 3 * table.shape[1]
    rows = torch.nn.functional.pad(table.reshape(count, terms, CHANNELS), (0, 0, 0, -terms % 4))
    return rows.reshape(count, -1, 4, CHANNELS).transpose(2, 3).contiguous()


def pack_vectors(w: Weights, *, usual: bool = False) -> Tensor:
    """[SHARES,V]: norms, biases and filters of distance 0, as a block reads them; see VECTORS in one_launch.cu.

    usual: in the shape of the usual network, for kernels that read only what all networks have. A LayerNorm's backward
    pass needs two sums over the gradient g in its scaled output x s + o. From the gradient h behind the matrix W that
    follows, they are Σ_c g_c = h · W s and Σ_c g_c x_c = h · (z - W o - b), where z is that map's result: W s and
    W o + b are stored.
    """
    wide = torch.float64
    read, gate = w.read.flatten(0, 1).to(wide), w.gate_in.to(wide)
    scale, offset = w.read_scale.flatten().to(wide), w.read_offset.flatten().to(wide)
    gate_level, read_level = w.gate_scale.to(wide) @ gate, scale @ read
    gate_shift = w.gate_in_bias.to(wide) + w.gate_offset.to(wide) @ gate
    read_shift = w.read_bias.to(wide) + offset @ read
    of_gate, of_read = (w.gate_scale, w.gate_offset, gate_level, gate_shift), (scale, offset, read_level, read_shift)
    own = torch.stack([w.own, *(layer.own for layer in w.layers)])
    own = padded(own[:3], 3, 3, CHANNELS) if usual else own
    rows = []
    for share in range(SHARES):
        mine, hidden = (slice(k * WIDE * share, k * WIDE * (share + 1)) for k in (1, 2))
        if w.head.gated:
            biases = [w.head.bias.unflatten(1, (2, CHANNELS))[:, :, mine]]
        else:
            biases = [w.head.bias[-1], *([] if usual else [w.head.bias[:-1]])]
        parts = [w.gate_in_bias[hidden], w.gate_out_bias[:, mine], w.read_bias[mine], own[:, :, mine]]
        values = (*of_gate, *of_read, *biases, w.head.last, *parts)
        rows.append(torch.cat([x.reshape(-1).float() for x in values]))
    return torch.stack(rows).contiguous()


def pack_root(root: Tensor, *, gated: bool) -> Tensor:
    """[SHARES,W,I,4]: R [D,D] of an uncertainty, three of a block's columns in each word; see OWN_WORDS in the kernel.

    The inputs I are those of hidden channels, padded, and that of the bias.
    """
    inputs = (CHANNELS if gated else HEAD) + 1
    words = SHARES * -(-inputs // (3 * SHARES))
    rows = torch.cat([padded(root[:-1], inputs - 1, len(root)), root[-1:]])
    columns = padded(rows, inputs, 3 * words).float().unflatten(1, (SHARES, words // SHARES, 3))
    return torch.nn.functional.pad(columns.permute(1, 2, 0, 3), (0, 1)).contiguous()


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
