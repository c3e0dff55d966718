"""LayerNorm of rows where there are no kernels for it."""

import torch
from torch import nn

from torchmdx.engines.pairs.row_norm import normalised_rows, row_kernels_of


def test_on_the_cpu_it_is_the_module():
    module = nn.LayerNorm(6, dtype=torch.float64)
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert row_kernels_of(x) is None
    assert torch.equal(normalised_rows(module, x), module(x))
