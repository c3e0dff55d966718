"""The smooth end of every interaction."""

import math

import torch
from torch import Tensor


def cosine_cutoff(distance: Tensor, cutoff: float) -> Tensor:
    """(1 + cos(π r / cutoff)) / 2 below the cutoff, exactly 0 from it on; same shape as `distance`, Å.

    Value and slope are continuous at the cutoff.
    """
    inside = distance < cutoff
    # The clamp keeps padded, very long edges from feeding the cosine numbers it cannot reduce.
    value = 0.5 * (torch.cos(distance.clamp(max=cutoff) * (math.pi / cutoff)) + 1.0)
    return torch.where(inside, value, torch.zeros_like(value))
