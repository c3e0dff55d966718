"""Tables of measurements: what README and documents print is what benchmarks/results/ records."""

import json
import sys
from pathlib import Path

import pytest
from documents.blocks import ROOT

sys.path += [str(ROOT / "tools"), str(ROOT / "benchmarks")]

import plot_speed
import update_tables
from quoted_results import SENTENCES
from quoted_tables import BY_ATOMS, BY_MEASUREMENT, value_of
from update_tables import NUMBER, Quote, is_rounded, replacement, rounded_like, rows_of


def compare(printed: str, value: object, place: str) -> bool:
    """Whether both are there. Raises AssertionError if one is missing, or they differ."""
    number = NUMBER.match(printed)
    if isinstance(value, str):
        assert printed == value, f"{place}: {printed}, recorded is {value}"
        return True
    assert (number is None) == (value is None), f"{place}: {printed!r}, recorded is {value}"
    assert number is None or is_rounded(number[0], value), f"{place}: {printed}, recorded is {value}"
    return number is not None


def ids(cases):
    return [f"{page}-{record}-{k}" for k, (page, record, *_) in enumerate(cases)]


@pytest.mark.parametrize(("page", "record", "columns"), BY_ATOMS, ids=ids(BY_ATOMS))
def test_tables_are_those_of_the_records(page, record, columns):
    quotes = list(update_tables.quotes_by_atoms(page, record, columns))
    assert sum(compare(quote.printed, quote.value, quote.place) for quote in quotes) >= 8
    rows = update_tables.only_table(page, {*columns, "atoms"}, set())
    assert {int(row["atoms"][2].replace(",", "")) for row in rows} == {row["atoms"] for row in rows_of(record)}


@pytest.mark.parametrize("case", BY_MEASUREMENT, ids=ids(BY_MEASUREMENT))
def test_tables_with_a_measurement_in_each_row_are_those_of_the_records(case):
    for quote in update_tables.quotes_by_measurement(*case):
        assert compare(quote.printed, quote.value, quote.place)


@pytest.mark.parametrize("case", SENTENCES, ids=ids(SENTENCES))
def test_sentences_that_sum_up_are_those_of_the_records(case):
    quotes = list(update_tables.quotes_in_sentence(*case))
    assert quotes
    for quote in quotes:
        assert compare(quote.printed, quote.value, quote.place)


def test_the_plot_is_that_of_the_record():
    assert plot_speed.PICTURE.read_text() == plot_speed.draw(json.loads(plot_speed.RECORD.read_text()))


def test_the_plot_shows_the_fastest_time_of_each_program_at_each_size():
    rows = [
        {"system": "b", "atoms": 200, "by": "torchmdx", "ms": 2.0},
        {"system": "a", "atoms": 20, "by": "torchmdx", "ms": 1.0},
        {"system": "a", "atoms": 20, "by": "torchmd-net", "ms": 9.0},
        {"system": "a", "atoms": 20, "by": "torchmd-net", "ms": 8.0},
        {"system": "8x a", "atoms": 160, "by": "torchmdx", "ms": 3.0},
    ]
    assert plot_speed.read_points(rows) == {"torchmdx": [(20, 1.0), (200, 2.0)], "torchmd-net": [(20, 8.0)]}


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


@pytest.mark.parametrize(
    ("printed", "value", "new"),
    [
        ("0.997", 1.0213, "1.02"),
        ("1.02", 0.99741, "0.997"),
        ("9.99", 9.9963, "10.0"),
        ("0.10", 0.1149, "0.11"),
        ("475", 1234.6, "1,235"),
        ("32", 9.71, "9.7"),
        ("0.8e-6", 1.26e-6, "1.3e-6"),
        ("2.0", 0.0, "0.0"),
        ("105", -250.4, "-250"),
        ("-250", -31.6, "-31.6"),
    ],
)
def test_new_numbers_have_the_digits_of_the_old_ones(printed, value, new):
    assert rounded_like(printed, value) == new
    assert is_rounded(new, value)


def test_what_only_one_side_has_is_left_to_people():
    assert replacement(Quote("p.md", 0, 0, "475 (eager)", 480.2, "")) == "480 (eager)"
    assert replacement(Quote("p.md", 0, 0, "graph", "eager", "")) == "eager"
    assert replacement(Quote("p.md", 0, 0, "does not run", 480.2, "")) is None
    assert replacement(Quote("p.md", 0, 0, "475", None, "")) is None


@pytest.fixture
def page(tmp_path, monkeypatch) -> Path:
    """A page with a table, a sentence and a block, in a folder of its own with its record."""
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    rows = [{"atoms": 22, "ms": 1.234}, {"atoms": 166, "ms": 2.5}]
    (tmp_path / "benchmarks" / "results" / "one.json").write_text(json.dumps({"rows": rows}))
    text = "```text\n| atoms | ms |\n```\n\nIt takes 9.9\nms.\n\n| a \\| b | atoms | ms |\n|---|---|---|\n"
    (tmp_path / "p.md").write_text(text + "| x | 22 | 1.11 |\n| y | 166 | 2.5 (eager) |\n")
    monkeypatch.setattr(update_tables, "ROOT", tmp_path)
    return tmp_path / "p.md"


def test_pages_are_rewritten_in_place(page):
    table = list(update_tables.quotes_by_atoms("p.md", "one", {"ms": ({}, "ms")}))
    sentence = list(update_tables.quotes_in_sentence("p.md", "one", r"takes ([\d.]+) ms", lambda rows: [rows[0]["ms"]]))
    assert [update_tables.agrees(quote) for quote in table + sentence] == [False, True, False]
    before = page.read_text()
    update_tables.write(table + sentence)
    assert page.read_text() == before.replace("9.9\n", "1.2\n").replace("1.11", "1.23")
