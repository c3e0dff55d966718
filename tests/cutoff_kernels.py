"""The cutoff functions of Triton's kernels, launched alone."""

import torch
import triton
import triton.language as tl

from torchmdx.engines.gpu.triton import edge_geometry
from torchmdx.engines.pairs.kernels import pair_values


@triton.jit
def _of_edges(STRETCH, OUT, SLOPE, count, cutoff, BLOCK: tl.constexpr):
    e = tl.arange(0, BLOCK)
    cut, slope = edge_geometry.cosine_cut(STRETCH, e, e < count, cutoff)
    tl.store(OUT + e, cut, mask=e < count)
    tl.store(SLOPE + e, slope, mask=e < count)


@triton.jit
def _of_pairs(R, OUT, SLOPE, count, CUTOFF: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.arange(0, BLOCK)
    cut, slope = pair_values._cutoff(tl.load(R + p, mask=p < count, other=1.0), CUTOFF)
    tl.store(OUT + p, cut, mask=p < count)
    tl.store(SLOPE + p, slope, mask=p < count)


def of_edges(distance, cutoff):
    """(value, slope) at up to 64 distances, by the fused kernels of TensorNet2."""
    stretch = torch.stack([torch.ones_like(distance), 1 / distance], dim=1)
    out = torch.empty_like(distance), torch.empty_like(distance)
    _of_edges[(1,)](stretch, *out, len(distance), cutoff, BLOCK=64)
    return out


def of_pairs(distance, cutoff):
    """(value, slope) at up to 64 distances, by the kernels of training."""
    out = torch.empty_like(distance), torch.empty_like(distance)
    _of_pairs[(1,)](distance, *out, len(distance), CUTOFF=cutoff, BLOCK=64)
    return out
