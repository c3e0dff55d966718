"""Padded numbers of channels and charges."""

from torchmdx.engines.plan.padding import padded_charges, power_of_two


def test_numbers_are_padded_to_powers_of_two():
    assert [power_of_two(count) for count in (2, 16, 17, 100, 128, 129)] == [16, 16, 32, 128, 128, 256]
    assert [padded_charges(count) for count in (1, 8, 9, 16, 17)] == [8, 8, 16, 16, 32]
