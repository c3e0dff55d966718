"""AdamW on a GPU: the step of `torchmdx.training.optimizer.AdamW` in one kernel instead of about twenty of torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _step(
    VALUES, FIRST, SECOND, AVERAGE, GRADIENT, DECAY, RATE, NORM, GOOD, STEPS, SETTINGS, TAKEN, count,
    CLIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """VALUES, FIRST, SECOND and AVERAGE [P] after the step; unchanged if GOOD is 0 or the norm is not finite.

    TAKEN []: 1 or 0. SETTINGS float64 [8]: see `settings`. Grid: blocks of elements.
    """
    dtype = VALUES.dtype.element_ty
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    norm = tl.load(NORM)
    good = (tl.load(GOOD) != 0) & (tl.abs(norm) < float("inf"))
    if tl.program_id(0) == 0:
        tl.store(TAKEN, good.to(tl.float64))
    there = (at < count) & good
    # float64, because 0.999^t of a float32 count is inaccurate.
    steps = tl.load(STEPS) + 1.0
    beta1, beta2 = tl.load(SETTINGS), tl.load(SETTINGS + 1)
    of_first = (1.0 - tl.exp(steps * tl.load(SETTINGS + 2))).to(dtype)
    of_second = tl.sqrt(1.0 - tl.exp(steps * tl.load(SETTINGS + 3))).to(dtype)
    memory = (1.0 - tl.minimum((1.0 + steps) / (10.0 + steps), tl.load(SETTINGS + 4))).to(dtype)
    epsilon, rate = tl.load(SETTINGS + 5).to(dtype), tl.load(RATE)
    gradient = tl.load(GRADIENT + at, mask=there, other=0.0)
    if CLIP:
        longest, tiny = tl.load(SETTINGS + 6).to(dtype), tl.load(SETTINGS + 7).to(dtype)
        gradient *= tl.minimum(longest / (norm + tiny), 1.0).to(dtype)
    first = tl.load(FIRST + at, mask=there, other=0.0)
    first += (1.0 - beta1).to(dtype) * (gradient - first)
    second = beta2.to(dtype) * tl.load(SECOND + at, mask=there, other=0.0)
    second += (1.0 - beta2).to(dtype) * gradient * gradient
    values = tl.load(VALUES + at, mask=there, other=0.0)
    change = (first / of_first) / (tl.sqrt(second) / of_second + epsilon)
    values -= rate * (change + tl.load(DECAY + at, mask=there, other=0.0) * values)
    average = tl.load(AVERAGE + at, mask=there, other=0.0)
    average += memory * (values - average)
    tl.store(FIRST + at, first, mask=there)
    tl.store(SECOND + at, second, mask=there)
    tl.store(VALUES + at, values, mask=there)
    tl.store(AVERAGE + at, average, mask=there)


def settings(
    beta1: float, beta2: float, ema_decay: float, epsilon: float, clip_norm: float | None, device: torch.device
) -> Tensor:
    """The settings for `adamw`, float64 [8]: kernel arguments that are Python numbers would be rounded to float32."""
    betas = torch.tensor([beta1, beta2], dtype=torch.float64, device="cpu")
    rest = torch.tensor([ema_decay, epsilon, clip_norm or 0.0, 1e-12], dtype=torch.float64, device="cpu")
    return torch.cat([betas, betas.log(), rest]).to(device)


def adamw(
    values: Tensor,
    first: Tensor,
    second: Tensor,
    average: Tensor,
    steps: Tensor,
    *,
    gradient: Tensor,
    decay: Tensor,
    learning_rate: Tensor,
    norm: Tensor,
    good: Tensor,
    numbers: Tensor,
    clip: bool,
) -> None:
    """Takes one step in place. Tensors are named as in `AdamW`; numbers: from `settings`."""
    taken = torch.empty_like(steps)
    _step[(triton.cdiv(len(values), BLOCK),)](
        values, first, second, average, gradient, decay, learning_rate, norm, good.view(torch.int8), steps, numbers,
        taken, len(values), CLIP=clip, BLOCK=BLOCK,
    )  # fmt: skip
    steps.add_(taken)  # in a separate launch, because every program of the kernel reads it
