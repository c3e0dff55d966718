"""Weights in the order of the kernel's threads."""

import pytest
import torch

pytest.importorskip("triton")

from torchmdx.engines.gpu import one_launch_weights as packing
from torchmdx.engines.gpu.one_launch_weights import CHANNELS, SHARES, SPLITS, THREADS, WIDE


def product(packed, x, groups):
    """[SHARES,groups,WIDE]: what the threads of all blocks make of x [K] with their packed weights."""
    out = torch.zeros(SHARES, groups, WIDE, dtype=x.dtype)
    inner = len(x)
    row = min(4, inner // SPLITS)
    for thread in range(THREADS):
        split, column = divmod(thread, WIDE)
        weights = packed[:, :, thread].flatten(1).unflatten(1, (-1, groups, row))
        for step in range(inner // (SPLITS * row)):
            first = step * SPLITS * row + split * row
            out[:, :, column] += (weights[:, step] * x[first : first + row]).sum(-1)
    return out


@pytest.mark.parametrize(
    ("inner", "groups", "pack"),
    [
        (CHANNELS, 2, lambda w: packing.columns(w, 2)),
        (2 * CHANNELS, 3, lambda w: packing.by_part(w.unflatten(1, (3, CHANNELS)))),
        (3 * CHANNELS, 1, lambda w: packing.columns(w, 1)),
    ],
)
def test_every_block_multiplies_its_columns(inner, groups, pack):
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(inner, SHARES * groups * WIDE, generator=generator, dtype=torch.float64)
    x = torch.randn(inner, generator=generator, dtype=torch.float64)
    wanted = x @ w
    if groups == 3:
        wanted = wanted.unflatten(0, (3, SHARES, WIDE)).transpose(0, 1)
    torch.testing.assert_close(product(pack(w), x, groups), wanted.reshape(SHARES, groups, WIDE))


@pytest.mark.parametrize(("inner", "columns"), [(CHANNELS, 64), (64, CHANNELS)])
def test_the_maps_of_the_head_are_whole_in_every_block(inner, columns):
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(inner, columns, generator=generator, dtype=torch.float64)
    x = torch.randn(inner, generator=generator, dtype=torch.float64)
    found = product(packing.whole(w), x, columns // WIDE).flatten(1)
    torch.testing.assert_close(found, (x @ w).expand(SHARES, columns))


def test_each_part_has_a_matrix_of_its_own_for_tensor_cores():
    generator = torch.Generator().manual_seed(2)
    w = torch.randn(3, CHANNELS, CHANNELS, generator=generator, dtype=torch.float64)
    x = torch.randn(CHANNELS, generator=generator, dtype=torch.float64)
    found, packed = torch.zeros(SHARES, 3, WIDE, dtype=x.dtype), packing.fragments(w)
    for thread in range(THREADS):
        warp, lane = divmod(thread, 32)
        column, first = lane // 4, 8 * warp + 2 * (lane % 4)
        for k in range(4):
            found[:, :, column + 8 * (k % 2)] += packed[:, :, thread, k] * x[first + k // 2]
    torch.testing.assert_close(found, (x @ w).unflatten(1, (SHARES, WIDE)).transpose(0, 1))
