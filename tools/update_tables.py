"""Checks or updates the numbers from benchmarks/results/ in tables and sentences of README.md and docs/.

tools/update_tables.py            lists the numbers that differ from the records; exits with 1 if there are any
tools/update_tables.py --write    replaces them, with as many digits as they had, and draws docs/images/speed.svg
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from quoted_results import SENTENCES
from quoted_tables import BY_ATOMS, BY_MEASUREMENT, Row, value_of

ROOT = Path(__file__).parents[1]

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
TABLE = re.compile(r"(?:^\|.*\|\n)+", re.MULTILINE)
BLOCK = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Quote:
    """A recorded value printed in a page: the span of its text, and a description of its place."""

    page: str
    start: int
    end: int
    printed: str
    value: Any
    place: str


def text_of(page: str) -> str:
    """A page as it is."""
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """A page with blank code blocks, so that positions are those of the page."""
    return BLOCK.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text_of(page) + "\n")


def rows_of(record: str) -> list[Row]:
    """The rows of benchmarks/results/RECORD.json."""
    return list(json.loads((ROOT / "benchmarks" / "results" / f"{record}.json").read_text())["rows"])


Cell = tuple[int, int, str]  # start and end of its text, and the text


def tables(page: str) -> list[list[dict[str, Cell]]]:
    """Every table of a page: its rows, by the heads of columns; the first column by its own head and as "first"."""
    found = []
    for table in TABLE.finditer(prose_of(page)):
        lines, start = [], table.start()
        for line in table[0].splitlines(keepends=True):
            bars = [bar.start() for bar in re.finditer(r"(?<!\\)\|", line)]
            spans = [(left + 1, right) for left, right in pairwise(bars)]
            lines.append([stripped(line, begin, end, start) for begin, end in spans])
            start += len(line)
        heads = [head for _, _, head in lines[0]]
        assert all(len(row) == len(set(heads)) for row in lines), f"{page}: columns of {heads}"
        found.append([{"first": row[0], **dict(zip(heads, row, strict=True))} for row in lines[2:]])
    return found


def stripped(line: str, begin: int, end: int, start: int) -> Cell:
    """The cell between two bars of a line that begins at `start`, without blanks around it."""
    raw = line[begin:end]
    begin += len(raw) - len(raw.lstrip()) if raw.strip() else 0
    text = raw.strip()
    return start + begin, start + begin + len(text), text


def only_table(page: str, columns: set[str], rows: set[str]) -> list[dict[str, Cell]]:
    """The rows of the one table that has these columns, and these in its first one."""
    fitting = [t for t in tables(page) if columns <= set(t[0]) and rows <= {row["first"][2] for row in t}]
    assert len(fitting) == 1, f"{page} must have one table with {', '.join(sorted(columns | rows))}, got {len(fitting)}"
    return fitting[0]


def quotes_by_atoms(page: str, record: str, columns: dict[str, tuple[Row, str]]) -> Iterator[Quote]:
    """Cells of a table with a structure in each row."""
    recorded = rows_of(record)
    for row in only_table(page, {*columns, "atoms"}, set()):
        atoms = int(row["atoms"][2].replace(",", ""))
        for column, (wanted, name) in columns.items():
            value = value_of(recorded, {"atoms": atoms, **wanted}, name)
            yield Quote(page, *row[column], value, f"{row['first'][2]}, {column}")


def quotes_by_measurement(
    page: str, record: str, columns: dict[str, Row], rows: dict[str, tuple[Row, str]]
) -> Iterator[Quote]:
    """Cells of a table with a measurement in each row."""
    recorded = rows_of(record)
    lines = {row["first"][2]: row for row in only_table(page, set(columns), set(rows))}
    assert set(lines) == set(rows), f"{page}, {record}: the rows must be {sorted(rows)}, got {sorted(lines)}"
    for line, (wanted, name) in rows.items():
        for column, also in columns.items():
            value = value_of(recorded, {**wanted, **also}, name)
            yield Quote(page, *lines[line][column], value, f"{line}, {column}")


def quotes_in_sentence(
    page: str, record: str, sentence: str, values: Callable[[list[Row]], list[float]]
) -> Iterator[Quote]:
    """Numbers in a sentence, whose spaces may be line breaks in the page."""
    found = list(re.finditer(sentence.replace(" ", r"\s+"), prose_of(page)))
    assert len(found) == 1, f"{page} must have one sentence {sentence!r}, got {len(found)}"
    for k, value in enumerate(values(rows_of(record)), 1):
        yield Quote(page, *found[0].span(k), found[0][k], value, found[0][0])


def all_quotes() -> list[Quote]:
    """All recorded values printed in pages."""
    found = [quote for case in BY_ATOMS for quote in quotes_by_atoms(*case)]
    found += [quote for case in BY_MEASUREMENT for quote in quotes_by_measurement(*case)]
    return found + [quote for case in SENTENCES for quote in quotes_in_sentence(*case)]


def is_rounded(printed: str, value: float) -> bool:
    """Whether a number as printed, "1,234", "0.13" or "0.6e-6", is the value to its last digit."""
    digits, _, exponent = printed.replace(",", "").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(float(f"{digits}e{exponent or 0}") - value) <= 0.501 * unit


def rounded_like(printed: str, value: float) -> str:
    """The value with as many digits as are printed: decimals if there is an exponent, else significant ones."""
    digits, _, exponent = printed.replace(",", "").partition("e")
    if exponent:
        return f"{value / 10.0 ** int(exponent):.{len(digits.partition('.')[2])}f}e{exponent}"
    if not value:
        return f"{0:.{len(digits.partition('.')[2])}f}"
    significant = len(digits.replace(".", "").lstrip("-0"))
    decimals = significant - 1 - math.floor(math.log10(abs(value)))
    # 9.996 to three digits is 10.0, not 10.00.
    if abs(round(value, decimals)) >= 10.0 ** (significant - decimals):
        decimals -= 1
    return f"{value:,.{max(decimals, 0)}f}"


def agrees(quote: Quote) -> bool:
    """Whether a page prints the recorded value."""
    number = NUMBER.match(quote.printed)
    if isinstance(quote.value, str) or quote.value is None or number is None:
        return (number is None and quote.value is None) or quote.printed == quote.value
    return is_rounded(number[0], quote.value)


def replacement(quote: Quote) -> str | None:
    """The text that the page should print; None if only one side has a number, which needs manual editing."""
    number = NUMBER.match(quote.printed)
    if isinstance(quote.value, str):
        return quote.value
    if quote.value is None or number is None:
        return None
    return rounded_like(number[0], quote.value) + quote.printed[number.end() :]


def write(quotes: list[Quote]) -> None:
    """Replaces what can be replaced, from the end of each page to the start."""
    for page in {quote.page for quote in quotes}:
        text = text_of(page)
        for quote in sorted((q for q in quotes if q.page == page), key=lambda q: -q.start):
            new = replacement(quote)
            if new is not None:
                text = text[: quote.start] + new + text[quote.end :]
        (ROOT / page).write_text(text, encoding="utf-8")


def main() -> int:
    """Lists or replaces the differences; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace what differs")
    options = parser.parse_args()
    different = [quote for quote in all_quotes() if not agrees(quote)]
    for quote in different:
        new = replacement(quote)
        then = f"now {new}" if new is not None else f"recorded is {quote.value}: change it by hand"
        print(f"{quote.page}: {quote.place}: {quote.printed!r}, {then}")
    if options.write:
        sys.path.append(str(ROOT / "benchmarks"))
        import plot_speed

        write(different)
        plot_speed.main()
        different = [quote for quote in different if replacement(quote) is None]
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
