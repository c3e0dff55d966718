"""The page of tested versions shows what the files of the repository say, and nothing newer."""

import sys
import tomllib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import tested_versions

ROOT = Path(__file__).parents[2]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs" / "versions.md").read_text()


def row(name: str) -> list[str]:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_page_is_that_of_the_files():
    assert tested_versions.tables() in PAGE, "run tools/tested_versions.py --write"


def test_rows_against_the_files_themselves():
    torch = next(line for line in PROJECT["dependencies"] if line.startswith("torch>="))
    pin = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    allowed, oldest, tests, measured = row("PyTorch")
    assert (allowed, tests) == (f"≥ {torch.removeprefix('torch>=')}", pin.removeprefix("torch=="))
    assert oldest == measured.split(", ")[0]  # the bound of torch is not installed by `make oldest`
    assert row("OpenMM")[1] == row("OpenMM")[0].removeprefix("≥ ")  # which that of OpenMM is


def test_every_pinned_dependency_of_the_package_has_a_row():
    names = {line.partition(">=")[0] for line in PROJECT["dependencies"]}
    assert names <= set(tested_versions.SHOWN)


def test_classifiers_are_of_pythons_that_were_tested():
    listed = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line}
    assert listed == set(row("Python")[0].split(", "))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["2.13.0", "2.9", "2.9+cpu", "2.11.0"], ["2.9", "2.11.0", "2.13.0"]),
        ([], []),
        (["2025.7.22.4.0"], ["2025.7.22.4.0"]),
    ],
)
def test_versions_are_in_order(given, expected):
    assert tested_versions.sorted_versions(given) == expected
