"""LayerNorm over the channels of an atom, and its gradient.

Blocks are [ROWS,C], with statistics [ROWS,1], or [C], with scalar ones. Channels are padded with weights of zero, so
only the `width` real ones count. The readout standardises three norms of each channel together, as 3 · width numbers.
Kernels of many and of few atoms sum in different orders, each of them fixed.
"""

import triton
import triton.language as tl


@triton.jit
def channel_sum(x):
    """Σ_c x."""
    total = tl.sum(x, -1)
    return total[:, None] if len(x.shape) == 2 else total


@triton.jit
def statistics(x, real, width, epsilon):
    """Mean and 1 / deviation of the real channels."""
    mean = channel_sum(x) / width
    centred = tl.where(real, x - mean, 0.0)
    return mean, 1.0 / tl.sqrt_rn(channel_sum(centred * centred) / width + epsilon)


@triton.jit
def part_statistics(n0, n1, n2, real, width, epsilon):
    """Mean and 1 / deviation of the real channels of three blocks together; sums channel by channel first."""
    mean = channel_sum(n0 + n1 + n2) / (3 * width)
    return mean, _part_inverse(n0, n1, n2, mean, real, width, epsilon)


@triton.jit
def part_statistics_of_rows(n0, n1, n2, real, width, epsilon):
    """The same of blocks [ROWS,C]; sums block by block first."""
    mean = (tl.sum(n0, 1) + tl.sum(n1, 1) + tl.sum(n2, 1))[:, None] / (3 * width)
    return mean, _part_inverse(n0, n1, n2, mean, real, width, epsilon)


@triton.jit
def _part_inverse(n0, n1, n2, mean, real, width, epsilon):
    """1 / deviation from a mean."""
    c0 = tl.where(real, n0 - mean, 0.0)
    c1 = tl.where(real, n1 - mean, 0.0)
    c2 = tl.where(real, n2 - mean, 0.0)
    return 1.0 / tl.sqrt_rn(channel_sum(c0 * c0 + c1 * c1 + c2 * c2) / (3 * width) + epsilon)


@triton.jit
def part_gradient(g0, g1, g2, n0, n1, n2, inverse, width):
    """The gradient in three blocks from that in the standardised blocks n, which are 0 in padded channels."""
    level = channel_sum(g0 + g1 + g2) / (3 * width)
    along = channel_sum(g0 * n0 + g1 * n1 + g2 * n2) / (3 * width)
    return inverse * (g0 - level - n0 * along), inverse * (g1 - level - n1 * along), inverse * (g2 - level - n2 * along)
