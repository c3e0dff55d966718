"""Parameters with which a test runs at night only."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from nightly import mark_nightly


def item(parameters: str, *names: str) -> SimpleNamespace:
    marks: list[str] = []
    return SimpleNamespace(
        nodeid=f"tests/test_a.py::test_b[{parameters}]",
        path=Path("tests/test_a.py"),
        originalname="test_b",
        get_closest_marker=lambda name: pytest.mark.nightly_for(*names).mark if names else None,
        add_marker=lambda mark: marks.append(mark.name),
        marks=marks,
    )


def test_whole_ids_and_parts_between_hyphens_are_marked():
    names = ("few-native", "PME")
    items = [item(parameters, *names) for parameters in ("few-native", "many-native", "PME-python", "PMEs")]
    items.append(item("PME"))
    mark_nightly(items, whole_files=True)
    assert [one.marks for one in items] == [["nightly"], [], ["nightly"], [], []]


def test_names_of_no_parameter_are_an_error():
    items = [item("few", "few", "fewer"), item("many", "few", "fewer")]
    mark_nightly(items, whole_files=False)
    with pytest.raises(pytest.UsageError, match=r"do not exist: test_a.py::test_b \['fewer'\]"):
        mark_nightly(items, whole_files=True)
