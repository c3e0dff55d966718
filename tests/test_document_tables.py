"""Tables of measurements: what README and documents print is what benchmarks/results/ records."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from documents.blocks import ROOT, prose

Row = dict[str, Any]
NUMBER = re.compile(r"^\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
OURS, PEER = {"by": "torchmdx"}, {"by": "torchmd-net"}
GRAPH, COMPILED, EAGER = ({**PEER, "mode": mode} for mode in ("graph", "compile", "eager"))
ONE, FOUR = {"members": 1}, {"members": 4}
NATIVE, PYTHON, OPENMM_ML = ({"transport": name} for name in ("native", "python", "openmm-ml 1.8, torchmd-net"))
STEP = {
    "torchmdx, ms": (OURS, "ms"),
    "ratio": (OURS, "speedup"),
    "force error": (OURS, "force_error"),
    "memory, GB": (OURS, "step_memory_GB"),
}
PEER_STEP = {"its force error": (PEER, "force_error"), "its memory, GB": (PEER, "memory_GB")}
# Page, record, and for each column the row that it quotes, beside its number of atoms, and the value in it.
CASES = [
    ("README.md", "step", {**STEP, "torchmd-net, ms": (PEER, "ms")}),
    (
        "docs/performance.md",
        "step",
        {
            **STEP,
            **PEER_STEP,
            "aimed at, ms": (OURS, "asked_ms"),
            "torchmd-net 3.1.0, ms": (PEER, "ms"),
            "its mode": (PEER, "mode"),
            "share of roofline": (OURS, "roofline_share"),
        },
    ),
    (
        "docs/performance.md",
        "tensornet2",
        {
            **STEP,
            **PEER_STEP,
            "CUDA graph, ms": (GRAPH, "ms"),
            "torch.compile, ms": (COMPILED, "ms"),
            "eager, ms": (EAGER, "ms"),
        },
    ),
    (
        "docs/performance.md",
        "kernels",
        {"ms": ({}, "ms"), "energy only, ms": ({}, "energy_only_ms"), "edges": ({}, "edges")},
    ),
    (
        "docs/performance.md",
        "first_step",
        {
            "side by side": ({"way": "side by side"}, "setup_s"),
            "one after the other": ({"way": "one after the other"}, "setup_s"),
            "on disk": ({"way": "on disk"}, "setup_s"),
            "of that, the capture": ({"way": "on disk"}, "capture_s"),
        },
    ),
    (
        "docs/performance.md",
        "coulomb",
        {
            "without Coulomb, ms": ({}, "ms_without"),
            "with it, ms": ({}, "ms"),
            "share of Coulomb": ({}, "share"),
            "force error at capture": ({}, "force_error"),
        },
    ),
    (
        "docs/ensembles.md",
        "ensemble",
        {
            "one, ms": (ONE, "ms"),
            "four, ms": (FOUR, "ms"),
            "times one": (FOUR, "times_single"),
            "four in turn, ms": (FOUR, "in_turn_ms"),
            "memory of one, GB": (ONE, "step_memory_GB"),
            "of four, GB": (FOUR, "step_memory_GB"),
        },
    ),
    (
        "docs/openmm.md",
        "openmm",
        {
            "native": (NATIVE, "ns_day"),
            "aimed at": (NATIVE, "asked_ns_day"),
            "python": (PYTHON, "ns_day"),
            "openmm-ml 1.8 with torchmd-net 3.1.0": (OPENMM_ML, "ns_day"),
            "native, µs beyond the bare replay": (NATIVE, "beyond_us"),
            "python, µs beyond": (PYTHON, "beyond_us"),
        },
    ),
]
SIZES = {str(size): {"batch": size} for size in (8, 32, 128, 512)}
RECORDED, NETWORK = {"by": "torchmdx float32"}, {"by": "torchmd-net 3.1.0"}
# The same for tables with a measurement in each row: what columns and rows quote.
LYING = [
    (
        "README.md",
        "training",
        SIZES,
        {
            "torchmdx, float32, ms": (RECORDED, "ms"),
            "torchmdx, tf32, ms": ({"by": "torchmdx tf32"}, "ms"),
            "torchmd-net 3.1.0, ms": (NETWORK, "ms"),
        },
    ),
    (
        "docs/performance.md",
        "training",
        SIZES,
        {
            "recorded, float32": (RECORDED, "ms"),
            "recorded, tf32": ({"by": "torchmdx tf32"}, "ms"),
            "recorded, bf16 in linear maps": ({"by": "torchmdx bf16"}, "ms"),
            "launched, float32": ({"by": "torchmdx float32, not recorded"}, "ms"),
            "torchmd-net 3.1.0, float32": (NETWORK, "ms"),
            "aimed at": (RECORDED, "asked_ms"),
            "memory, GB": (RECORDED, "gb"),
            "torchmd-net's memory, GB": (NETWORK, "gb"),
            "reading, padding and copying a batch, alone": ({"by": "reading and batching alone"}, "ms"),
        },
    ),
    (
        "docs/openmm.md",
        "openmm_mixed",
        {
            "force field alone": {"transport": "none"},
            "native": {"transport": "native"},
            "python": {"transport": "python"},
            "openmm-ml 1.8 with torchmd-net 3.1.0": {"transport": "peer"},
        },
        {"ns/day": ({}, "ns_day"), "ms a step": ({}, "step_ms")},
    ),
]


def speedups(rows: list[Row]) -> list[float]:
    """The smallest and the largest."""
    found = [row["speedup"] for row in rows if "speedup" in row]
    return [min(found), max(found)]


def ns_a_day(rows: list[Row]) -> list[float]:
    """By the plugin, then of the peer."""
    return [row["ns_day"] for row in rows if NATIVE.items() <= row.items() and row["asked_ns_day"]] + [
        row["ns_day"] for row in rows if OPENMM_ML.items() <= row.items()
    ]


def times_openmm_ml(rows: list[Row]) -> list[float]:
    both = ns_a_day(rows)
    half = len(both) // 2
    return [ours / peer for ours, peer in zip(both[:half], both[half:], strict=True)]


def beyond_replay(rows: list[Row]) -> list[float]:
    """µs from NumPy to NumPy beyond the replay, of 22, 166 and 2,489 atoms."""
    return [1e3 * (row["wall_ms"] - row["ms"]) for row in rows if OURS.items() <= row.items()][:3]


# Page, record, a sentence, and what its numbers are.
FIRST = r"torchmdx is ([\d.]+) to ([\d.]+) times as fast as torchmd-net"
SENTENCES: list[tuple[str, str, str, Callable[[list[Row]], list[float]]]] = [
    ("README.md", "step", FIRST, speedups),
    ("docs/performance.md", "step", FIRST, speedups),
    ("README.md", "tensornet2", r"TensorNet2 is ([\d.]+) to ([\d.]+) times as fast as torchmd-net", speedups),
    ("docs/performance.md", "tensornet2", r"That is ([\d.]+) to ([\d.]+) times as fast as torchmd-net", speedups),
    ("README.md", "step", r"takes (\d+) µs more than the replay at 22 atoms", lambda rows: beyond_replay(rows)[:1]),
    ("docs/performance.md", "step", r"adds (\d+) µs at 22 atoms, (\d+) at 166 and (\d+) at 2,489", beyond_replay),
    ("docs/openmm.md", "openmm", r"`native` is (\d+), (\d+) and (\d+) times as fast as openmm-ml", times_openmm_ml),
    (
        "README.md",
        "ensemble",
        r"take ([\d.]+) times one at 22 atoms, ([\d.]+) times at 166 and ([\d.]+) times at 2,489",
        lambda rows: [row["times_single"] for row in rows if FOUR.items() <= row.items()],
    ),
    (
        "README.md",
        "openmm",
        r"(\d+) ns/day at 1 fs for 22 atoms, (\d+) for 166 and (\d+) for 2,489 on an H200, "
        r"where openmm-ml with torchmd-net does (\d+), (\d+) and ([\d.]+)",
        ns_a_day,
    ),
]


def tables(page: str) -> list[list[dict[str, str]]]:
    """Every table of a page: its rows, by the heads of columns; the first column by its own and as "first"."""
    found = []
    for text in re.findall(r"(?:^\|.*\|\n)+", f"{prose(page)}\n", re.MULTILINE):
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line[1:-1])] for line in text.splitlines()]
        assert all(len(row) == len(set(cells[0])) for row in cells), f"{page}: columns of {cells[0]}"
        found.append([{"first": row[0], **dict(zip(cells[0], row, strict=True))} for row in cells[2:]])
    return found


def only_table(page: str, columns: set[str], rows: set[str]) -> list[dict[str, str]]:
    """The rows of the one table that has these columns, and these in its first one."""
    fitting = [t for t in tables(page) if columns <= set(t[0]) and rows <= {row["first"] for row in t}]
    assert len(fitting) == 1, f"{page} must have one table with {', '.join(sorted(columns | rows))}, got {len(fitting)}"
    return fitting[0]


def rows_of(record: str) -> list[Row]:
    return list(json.loads((ROOT / "benchmarks" / "results" / f"{record}.json").read_text())["rows"])


def value_of(recorded: list[Row], wanted: Row, name: str) -> Any:
    """The value in the row that has what is wanted; of several the fastest; None if there is none."""
    found = [row for row in recorded if wanted.items() <= row.items()]
    return min(found, key=lambda row: row.get("ms", 0)).get(name) if found else None


def compare(printed: str, value: Any, place: str) -> bool:
    """Whether both are there. Raises AssertionError if one is missing, or they differ."""
    number = NUMBER.match(printed)
    if isinstance(value, str):
        assert printed == value, f"{place}: {printed}, recorded is {value}"
        return True
    assert (number is None) == (value is None), f"{place}: {printed!r}, recorded is {value}"
    assert number is None or is_rounded(number[0], value), f"{place}: {printed}, recorded is {value}"
    return number is not None


def is_rounded(printed: str, value: float) -> bool:
    """Whether a number as printed, "1,234", "0.13" or "0.6e-6", is the value to its last digit."""
    digits, _, exponent = printed.replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(f"{digits}e{exponent or 0}") - value) <= 0.501 * unit


@pytest.mark.parametrize(("page", "record", "columns"), CASES, ids=[f"{page}-{record}" for page, record, _ in CASES])
def test_tables_are_those_of_the_records(page, record, columns):
    recorded, compared, printed_atoms = rows_of(record), 0, set()
    for row in only_table(page, {*columns, "atoms"}, set()):
        atoms = int(row["atoms"].replace(",", ""))
        printed_atoms.add(atoms)
        for column, (wanted, name) in columns.items():
            value = value_of(recorded, {"atoms": atoms, **wanted}, name)
            compared += compare(row[column], value, f"{row['first']}, {column}")
    assert compared > 10
    assert printed_atoms == {row["atoms"] for row in recorded}


@pytest.mark.parametrize(
    ("page", "record", "columns", "rows"), LYING, ids=[f"{page}-{record}" for page, record, *_ in LYING]
)
def test_tables_with_a_measurement_in_each_row_are_those_of_the_records(page, record, columns, rows):
    recorded = rows_of(record)
    lines = {row["first"]: row for row in only_table(page, set(columns), set(rows))}
    assert set(lines) == set(rows)
    for line, (wanted, name) in rows.items():
        for column, also in columns.items():
            assert compare(lines[line][column], value_of(recorded, {**wanted, **also}, name), f"{line}, {column}")


@pytest.mark.parametrize(("page", "record", "sentence", "values"), SENTENCES)
def test_sentences_that_sum_up_are_those_of_the_records(page, record, sentence, values):
    (found,) = re.finditer(sentence, " ".join(prose(page).split()))
    for printed, value in zip(found.groups(), values(rows_of(record)), strict=True):
        assert compare(printed, value, found[0])


def test_rounding_is_judged_by_the_last_digit():
    assert is_rounded("0.125", 0.12531)
    assert is_rounded("2,489", 2489)
    assert is_rounded("0.6e-6", 6.17e-7)
    assert not is_rounded("0.126", 0.12531)
    assert not is_rounded("0.7e-6", 6.17e-7)


@pytest.mark.parametrize(("printed", "value"), [("1.3", None), ("", 1.3), ("does not run", 1.3), ("graph", "eager")])
def test_numbers_that_only_one_side_has_would_be_seen(printed, value):
    with pytest.raises(AssertionError, match="a table, a column: .*recorded is"):
        compare(printed, value, "a table, a column")
    assert not compare("does not run", None, "a table, a column")


def test_of_several_rows_the_fastest_counts():
    recorded = [
        {"by": "b", "ms": 3.0, "mode": "eager"},
        {"by": "b", "ms": 2.0, "mode": "graph"},
        {"by": "a", "ms": 1.0},
    ]
    assert value_of(recorded, {"by": "b"}, "mode") == "graph"
    assert value_of(recorded, {"by": "c"}, "ms") is None
