"""Slow tests: the marker `nightly_for`, for some parameters of a test, and halves of all slow tests."""

import zlib
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


def outside(items: list[pytest.Item], half: int) -> list[pytest.Item]:
    """The nightly items that are not in this half, 0 or 1. Those of one function are in one half, in every process."""
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    return [item for item in nightly if zlib.crc32(item.nodeid.partition("[")[0].encode()) % 2 != half]
