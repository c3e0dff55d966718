"""The marker `nightly_for`: parameters with which a test runs at night only."""

from pathlib import Path

import pytest


def mark_nightly(items: list[pytest.Item], *, whole_files: bool) -> None:
    """Marks items as nightly whose parameters `nightly_for` names: a whole ID, or a part between hyphens.

    whole_files: names that fit no item of their function are an error.
    """
    unused: dict[tuple[Path, str], set[str]] = {}
    for item in items:
        if marker := item.get_closest_marker("nightly_for"):
            parameters = item.nodeid.partition("[")[2][:-1]
            fitting = {parameters, *parameters.split("-")} & set(marker.args)
            if fitting:
                item.add_marker(pytest.mark.nightly)
            left = unused.setdefault((item.path, item.originalname), set(marker.args))
            left -= fitting
    wrong = [f"{path.name}::{name} {sorted(names)}" for (path, name), names in unused.items() if names]
    if wrong and whole_files:
        raise pytest.UsageError(f"nightly_for names parameters that do not exist: {', '.join(wrong)}")
