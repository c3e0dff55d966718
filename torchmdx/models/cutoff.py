"""The cutoff function, which takes every interaction smoothly to zero."""

import math

import torch
from torch import Tensor


def cosine_cutoff(distance: Tensor, cutoff: float) -> Tensor:
    """f(r) = (1 + cos(π r / cutoff)) / 2 for r < cutoff, else exactly 0; r is `distance`, Å, of any shape.

    f and its slope are continuous at the cutoff.
    """
    inside = distance < cutoff
    # Padded edges are 10⁶ Å long: the cosine of such numbers is inaccurate, and they are masked below anyway.
    value = 0.5 * (torch.cos(distance.clamp(max=cutoff) * (math.pi / cutoff)) + 1.0)
    return torch.where(inside, value, torch.zeros_like(value))
