"""The terms of a force inside a region: their title, and which of two forces is the addition."""

import pytest

from torchmdx.openmm.inner_terms import InnerTerms, named


def terms(kind: str, count: int, name: str = "") -> InnerTerms:
    return InnerTerms(3, kind, name, (), [(k, k + 1) for k in range(count)])


@pytest.mark.parametrize(
    ("one", "other", "smaller"),
    [
        (terms("CustomBondForce", 9), terms("HarmonicBondForce", 2), True),
        (terms("HarmonicBondForce", 2), terms("CustomBondForce", 9), False),
        (terms("CustomBondForce", 2), terms("CustomBondForce", 9), True),
        (terms("CustomBondForce", 9), terms("CustomBondForce", 2), False),
        (terms("CustomBondForce", 2), terms("CustomBondForce", 2), True),  # either could be: both are refused
    ],
)
def test_the_addition_is_custom_or_has_fewer_terms(one, other, smaller) -> None:
    assert one.is_smaller([other]) is smaller


def test_titles_and_names() -> None:
    assert terms("CustomBondForce", 1, "mine").title == "CustomBondForce 'mine' (force 3)"
    assert terms("CustomBondForce", 1, "CustomBondForce").title == "CustomBondForce (force 3)"
    assert named((4, 6, 8)) == "4-6-8"
