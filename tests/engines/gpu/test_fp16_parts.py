"""Matrices in half precision, with remainders."""

import pytest
import torch

from torchmdx.engines.gpu.fp16_parts import HalfParts


@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 3e5])
def test_parts_in_half_precision_hold_a_float(size):
    values = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)) * size
    values[3] = 0.0
    parts = HalfParts.of(values)
    assert parts.big.dtype == parts.small.dtype == torch.float16
    found = parts.unit * (parts.big.double() + parts.small.double())
    assert (found - values.double()).abs().max() < 2.0**-22 * values.abs().max()
    assert (found[3] == 0).all()
    assert HalfParts.of(torch.zeros(16, 16)).unit == 1.0
