"""Tables of measurements: what README and documents print is what benchmarks/results/ records."""

import json
import re

import pytest
from documents.blocks import ROOT, prose

NUMBER = re.compile(r"^\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
OURS, PEER = {"by": "torchmdx"}, {"by": "torchmd-net"}
KERNELS = {"ms": ({}, "ms"), "energy only, ms": ({}, "energy_only_ms"), "edges": ({}, "edges")}
# page, record, and for each column the row that it quotes, beside its number of atoms, and the value in it.
CASES = [
    (
        "README.md",
        "step",
        {"torchmdx, ms": (OURS, "ms"), "torchmd-net, ms": (PEER, "ms"), "force error": (OURS, "force_error")},
    ),
    (
        "docs/performance.md",
        "step",
        {
            "torchmdx, ms": (OURS, "ms"),
            "torchmd-net 3.1.0, ms": (PEER, "ms"),
            "force error": (OURS, "force_error"),
            "memory, GB": (OURS, "step_memory_GB"),
        },
    ),
    ("docs/performance.md", "kernels", KERNELS),
    (
        "docs/openmm.md",
        "openmm",
        {name: ({"transport": name}, "ns_day") for name in ("native", "python", "torch")},
    ),
]


def table(page: str, columns: set[str]) -> list[dict[str, str]]:
    """Rows of the table that has these columns, and one of atoms."""
    for text in re.findall(r"(?:^\|.*\|\n)+", f"{prose(page)}\n", re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        if columns | {"atoms"} <= set(cells[0]):
            return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]
    raise AssertionError(f"{page} has no table with the columns {', '.join(sorted(columns))}")


def is_rounded(printed: str, value: float) -> bool:
    """Whether a number as printed, "1,234", "0.13" or "0.6e-6", is the value to its last digit."""
    digits, _, exponent = printed.replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(f"{digits}e{exponent or 0}") - value) <= 0.501 * unit


@pytest.mark.parametrize(("page", "record", "columns"), CASES, ids=[f"{page}-{record}" for page, record, _ in CASES])
def test_tables_are_those_of_the_records(page, record, columns):
    recorded = json.loads((ROOT / "benchmarks" / "results" / f"{record}.json").read_text())["rows"]
    compared = 0
    for row in table(page, set(columns)):
        atoms = int(row["atoms"].replace(",", ""))
        for column, (wanted, name) in columns.items():
            found = NUMBER.match(row[column])
            of_structure = [r for r in recorded if r["atoms"] == atoms and wanted.items() <= r.items()]
            if found and of_structure and of_structure[0].get(name) is not None:
                value = of_structure[0][name]
                assert is_rounded(found[0], value), f"{row['system']}, {column}: {found[0]}, recorded is {value}"
                compared += 1
    assert compared > 10


def test_rounding_is_judged_by_the_last_digit():
    assert is_rounded("0.125", 0.12531)
    assert is_rounded("2,489", 2489)
    assert is_rounded("0.6e-6", 6.17e-7)
    assert not is_rounded("0.126", 0.12531)
    assert not is_rounded("0.7e-6", 6.17e-7)
