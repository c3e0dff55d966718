"""The tool that measures the layout, on a small package with everything in it."""

import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import measure_layout

    yield measure_layout
    sys.modules.pop("measure_layout")


FILES = {
    "__init__.py": "",
    "base.py": "def one():\n    '''One.'''\n    return 1\n",
    "kernel.c": "/* Two\nlines. */\n\n// One.\nint one(void) { return 1; }\n",
    "top.py": "from house.room import low\n\ndef here():\n    from house import base\n    return base\n",
    "room/__init__.py": "",
    "room/low.py": "import house.base\n\n\ndef long():\n" + "    x = 1\n" * 70,
    "room/left.py": "from house.room.right import r\nl = 1\n",
    "room/right.py": "from typing import TYPE_CHECKING\nr = 1\nif TYPE_CHECKING:\n    from house.room.left import l\n",
}


def test_a_package_is_measured(tool, tmp_path):
    for name, text in FILES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = {what.strip(): value for what, value in tool.measure(tmp_path / "house")}
    assert found["files"] == 7
    assert found["files at the top of the package"] == 2
    assert found["lines of all languages"] == found["lines of Python"] + 5
    assert found["of those, code"] == 2 + 4 + 72 + 2 + 4 + 1  # base, top, low, left, right, kernel
    assert found["class names that exist twice"] == 0
    assert found["functions"] == 3
    assert found["median lines of a function's body"] == 2
    assert found["functions over 60 lines"] == 1
    assert (found["folders"], found["levels"], found["imports between folders"]) == (3, 3, 3)
    assert found["import cycles of files"] == 0
    assert found["with those for type checkers"] == 1
    assert found["cycles of folders"] == 0


def test_cycles_are_found(tool):
    assert tool.cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [["a", "b", "c"]]
    assert tool.num_levels({"a": {"b"}, "b": {"a", "c"}, "c": set()}) == 2
