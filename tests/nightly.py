"""The tests that `make test` leaves out since they take long: nightly.txt, a line each, by their pytest IDs.

The list comes from `pytest --durations`. The marker `nightly` in a test's file says the same of tests slow by nature.
"""

from pathlib import Path

import pytest

LIST = Path(__file__).with_name("nightly.txt")


def listed() -> frozenset[str]:
    """The IDs of nightly.txt."""
    return frozenset(LIST.read_text().split("\n")) - {""}


def mark(items: list[pytest.Item], whole_files: bool) -> None:
    """Marks the tests of the list. With `whole_files`, functions that a collected file does not have are an error."""
    ids = listed()
    for item in items:
        if item.nodeid in ids:
            item.add_marker(pytest.mark.nightly)
    if whole_files:
        # Parameters may differ between the CPU, a GPU and the interpreter; functions do not.
        functions = {_function(item.nodeid) for item in items}
        files = {name.partition("::")[0] for name in functions}
        unknown = {_function(name) for name in ids if name.partition("::")[0] in files} - functions
        if unknown:
            raise pytest.UsageError(f"{LIST.name} names tests that do not exist: {', '.join(sorted(unknown))}")


def _function(nodeid: str) -> str:
    return nodeid.partition("[")[0]
