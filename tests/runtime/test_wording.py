"""Numbers and counts as people write them."""

import pytest

from torchmdx.runtime.wording import counted, fixed, number, signed


def test_numbers_are_short():
    assert [number(x) for x in (0, 0.01234, 1.0, 12.345, 999.96, 1300, 12345.6, 3e-7, 4e9, float("nan"))] == [
        "0",
        "0.0123",
        "1.00",
        "12.3",
        "1,000",
        "1,300",
        "12,346",
        "3.00e-07",
        "4.00e+09",
        "–",
    ]
    assert [signed(x) for x in (2.0, -2.0, 0.0)] == ["+2.00", "-2.00", "0"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.00001, "0.0000"), (0.0, "0.0000"), (-0.0, "0.0000"), (-0.00006, "-0.0001"), (13.6, "13.6000")],
)
def test_zero_has_no_sign(value, text):
    assert fixed(value, 4) == text


def test_counts():
    assert [counted(n, "frame") for n in (0, 1, 2, 1200)] == ["0 frames", "1 frame", "2 frames", "1,200 frames"]
    assert [counted(n, "energy", "energies") for n in (1, 2)] == ["1 energy", "2 energies"]
