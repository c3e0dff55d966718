"""Weights as the kernels read them."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from torchmdx.engines.fused.weights import PACKED_ERROR, packed_table


def table(higher: float) -> torch.Tensor:
    """Coefficients [7,6,3,8] that fall with their power as those of narrow intervals do."""
    numbers = torch.randn(7, 6, 3, 8, generator=torch.Generator().manual_seed(0))
    return numbers * higher ** torch.arange(6.0)[:, None, None]


def test_a_packed_table_has_every_coefficient():
    given = table(0.05)
    words = packed_table(given)
    assert words.dtype == torch.int32
    assert words.shape == (7, 4, 3, 8)
    found = words.numpy()
    np.testing.assert_array_equal(found[:, :2].view(np.float32), given[:, :2])
    for row, power in ((2, 2), (3, 4)):
        low, high = (found[:, row] & 0xFFFF).astype(np.uint16), (found[:, row] >> 16).astype(np.int16)
        for bits, number in ((low, power), (high, power + 1)):
            np.testing.assert_array_equal(bits.view(np.float16), given[:, number].numpy().astype(np.float16))
            assert np.abs(bits.view(np.float16) - given[:, number].numpy()).max() < PACKED_ERROR * given.abs().max()


@pytest.mark.parametrize("given", [table(1.0), table(1e6), table(0.05)[:, :4]], ids=["wide", "huge", "third degree"])
def test_tables_that_need_all_digits_stay_as_they_are(given):
    assert packed_table(given) is given
