"""Where the cutoff function is repeated in languages that cannot call torch, and a check that it is still the same.

Filters of a TensorNet are tabulated with the function of `models/cutoff.py`. Those of a TensorNet2 depend on charges
too, so its kernels multiply by a function of their own, and leave it out at distance 0, where it is 1.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchmdx.models.cutoff import cosine_cutoff

# Each file repeats the function and its slope; tests/engines/test_cutoff_copies.py compares every one of them.
C = "engines/cpu/tensornet2.h"
PAIRS = "engines/pairs/kernels/pair_values.py"
TRITON = "engines/gpu/triton/edge_geometry.py"
CLUSTER = "engines/gpu/sm90/charged_cluster_stages.cuh"
COPIES = (C, PAIRS, TRITON, CLUSTER)
PROBES, ERROR = 51, 1e-9


def repeated(distance: Tensor, cutoff: float) -> Tensor:
    """The function of the copies, for distances up to the cutoff: cos²(π r / 2 cutoff)."""
    return torch.cos(0.5 * math.pi / cutoff * distance) ** 2


def require_repeated(cutoff: float, *copies: str) -> None:
    """Raises ValueError, naming the copies, unless they repeat the cutoff function of the models."""
    if (reason := _difference(cosine_cutoff, cutoff)) is not None:
        raise ValueError(f"the cutoff function of models/cutoff.py must be that of {', '.join(copies)}: {reason}")


@functools.lru_cache(maxsize=64)
def _difference(function: Callable[[Tensor, float], Tensor], cutoff: float) -> str | None:
    distance = torch.linspace(0.0, cutoff, PROBES, dtype=torch.float64, device="cpu")
    found, wanted = function(distance, cutoff), repeated(distance, cutoff)
    if not abs(float(wanted[0]) - 1) <= ERROR:
        return f"kernels leave it out at distance 0, where it must be 1, got {float(wanted[0]):.6g}"
    beyond = function(distance[-1:] * 1.01, cutoff)
    different = [(*values, k) for k, values in enumerate(zip(found.tolist(), wanted.tolist(), strict=True))]
    different += [(float(beyond), 0.0, PROBES)]
    for value, own, k in different:
        if not abs(value - own) <= ERROR:
            at = float(distance[k]) if k < PROBES else 1.01 * cutoff
            return f"cos²(π r / 2 cutoff) is {own:.6g} at {at:.6g} Å, got {value:.6g}"
    return None
