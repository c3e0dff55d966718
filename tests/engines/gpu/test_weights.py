"""Weights as the kernels read them."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from torchmdx.engines.gpu.triton.edge_walk import LEADING
from torchmdx.engines.gpu.weights import DENSE_ERROR, dense_table
from torchmdx.engines.knots import Stretch

EVEN = Stretch(7, 5.0, 1.0)


def table(higher: float, intervals: int = 7) -> torch.Tensor:
    """Coefficients [n,6,3,8] that fall with their power as those of narrow intervals do."""
    numbers = torch.randn(intervals, 6, 3, 8, generator=torch.Generator().manual_seed(0))
    return numbers * higher ** torch.arange(6.0)[:, None, None]


def coefficients_of(words: torch.Tensor) -> torch.Tensor:
    """Six coefficients from five words, in float64, as kernels read them."""
    found, last = words.numpy(), LEADING.value
    fifth = (found[:, 4] << np.uint32(last)).view(np.float32)
    return torch.from_numpy(np.concatenate([found.view(np.float32), fifth[:, None]], 1)).double()


def polynomials(coefficients: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and slopes [n,T,3,C]."""
    power = torch.arange(6.0, dtype=torch.float64)
    values = torch.einsum("tq,nqpc->ntpc", t[:, None] ** power, coefficients)
    return values, torch.einsum("tq,nqpc->ntpc", power * t[:, None] ** (power - 1).clamp(min=0), coefficients)


def test_a_dense_table_has_the_values_and_slopes_of_the_table():
    given = table(0.1)
    words = dense_table(given, EVEN)
    assert words.dtype == torch.uint32
    assert words.shape == (7, 5, 3, 8)
    found = coefficients_of(words)
    np.testing.assert_array_equal(found[:, :2], given[:, :2])
    change = (found[:, 5] - given[:, 5]).abs()
    assert (change <= 2.0 ** -(32 - LEADING.value - 8) * given[:, 5].abs()).all()  # sign and exponent take nine bits
    inside = torch.linspace(0, 1, 41, dtype=torch.float64)
    for new, old in zip(polynomials(found, inside), polynomials(given.double(), inside), strict=True):
        assert (new - old).abs().max() < DENSE_ERROR * old.abs().max()
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for new, old in zip(polynomials(found, ends), polynomials(given.double(), ends), strict=True):
        assert (new - old).abs().max() < 1e-7 * given[:, 2:4].abs().max()  # rounded to float32


@pytest.mark.parametrize(
    "given", [table(0.7), table(0.05)[:, :4], table(0.05) * torch.nan], ids=["wide", "third degree", "not numbers"]
)
def test_tables_that_would_change_are_not_made_dense(given):
    assert dense_table(given, EVEN) is given


def test_an_interval_may_be_wide_where_filters_are_flat():
    given = table(0.05, 28)
    given[:2] = table(0.2, 28)[:2]
    assert dense_table(given, Stretch(28, 5.0, 1.0)) is given
    assert dense_table(given, Stretch(28, 5.0, 0.1, 7.0)).dtype == torch.uint32


def test_a_dense_table_of_zeros_and_of_few_digits_is_exact():
    given = table(0.1)
    given[:, 4:] = torch.tensor([0.375, 0.25])[:, None, None] * 2.0**-12
    given[:, 5, 0] = 0
    found = coefficients_of(dense_table(given, EVEN))
    np.testing.assert_array_equal(found[:, 5], given[:, 5])
    assert (found[:, 4] - given[:, 4]).abs().max() < 2.0**-10 * 2.0**-13
