"""Parameters with which a test runs at night only, and halves of the tests that do."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from nightly import mark_nightly, outside


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


def test_each_nightly_item_is_in_one_half_with_others_of_its_function():
    def made(name: str, nightly: bool) -> SimpleNamespace:
        return SimpleNamespace(nodeid=f"tests/test_a.py::test_{name}", get_closest_marker=lambda _: nightly or None)

    items = [made(f"{k}[{way}]", True) for k in range(200) for way in "abc"] + [made("quick", False)]
    left = [outside(items, half) for half in (0, 1)]
    names = [{item.nodeid.partition("[")[0] for item in each} for each in left]
    assert not names[0] & names[1]
    assert sum(map(len, left)) == 600
    assert min(map(len, left)) > 200
