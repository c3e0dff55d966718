"""What all sections of a configuration refuse."""

import pytest
from pydantic import ValidationError

from torchmdx.training.section import Part, Section


class Example(Section):
    size: Part = 1


@pytest.mark.parametrize("values", [{"sise": 1}, {"size": True}, {"size": "3"}, {"size": -1}, {"size": 1.5}])
def test_unknown_keys_and_wrong_values_are_refused(values):
    with pytest.raises(ValidationError):
        Example(**values)


def test_counts_and_fractions_are_parts():
    assert [Example(size=value).size for value in (0, 7, 0.25)] == [0, 7, 0.25]
