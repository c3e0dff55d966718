"""Tables and numbers of benchmarks/results/ as Markdown: for results.py in pages, for tools/write_readme.py in README.

A selection is a mapping. It names a value, and which recorded rows count: those that have its other keys and values. A
list of values admits any of them. Of several rows that have the value, the fastest counts (least `ms`).

    {by: torchmdx, atoms: 2489, value: ms}

value: key of the value; `a.b` is the key b of the object a.
over: conditions, which may name another value. The result is the value of the rows that meet them, divided by the
    selected value.
times, inverse: the result is multiplied by `times`, or is `inverse` divided by the value.
digits: significant digits, by default 3.
range: with true, the smallest and the largest value of all rows, "11.2 to 21.7".
record: another record than that of the table.
optional: with true, a column or row without any value is left out; otherwise that is an error.

A table has `rows` and `columns`, each either a list of keys (one line for each combination of values in the record) or
a mapping from labels to parts of a selection; `where`, a part of each selection; and `corner`, the head of labels. A
cell is what all its parts select together.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"
SETTINGS = ("value", "over", "times", "inverse", "digits", "range", "record", "optional")
TABLE = ("rows", "columns", "where", "corner")
NAMES = {
    "alanine_dipeptide": "alanine dipeptide",
    "dhfr": "DHFR",
    "factorIX": "Factor IX",
    "aceff-1.1": "AceFF-1.1",
    "aceff-2.0": "AceFF-2.0",
    "TensorNet-MatPES-PBE-v2025.1-PES": "TensorNet-MatPES-PBE",
    "TensorNet-MatPES-r2SCAN-v2025.1-PES": "TensorNet-MatPES-r2SCAN",
    "TensorNet-ANI-1x-Subset-PES": "TensorNet-ANI-1x",
    "QET-MatQ-PES": "QET-MatQ",
    "peptide_in_water": "peptide in water",
    "peptide_in_water 12 Å": "peptide in water, Coulomb to 12 Å",
    "water216, Ewald sum": "water, Ewald sum",
    "water216, reaction field, 10 Å": "water, reaction field of 10 Å",
    "1024x alanine_dipeptide": "1,024 x alanine dipeptide",
    "batch1024": "1,024 x alanine dipeptide",
}
HEADS = {"material": "crystal"}

Row = dict[str, Any]


@cache
def record(name: str) -> dict[str, Any]:
    """The environment and the rows of benchmarks/results/NAME.json. Raises ValueError if there is none."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise ValueError(f"a record must be a file of benchmarks/results, got {name!r}")
    return dict(json.loads(path.read_text(encoding="utf-8")))


def meets(row: Row, conditions: Row) -> bool:
    """Whether a row has these values; of a list, one of them."""
    return all(key in row and row[key] in (v if isinstance(v, list) else [v]) for key, v in conditions.items())


def conditions_of(selection: Row) -> Row:
    """What rows must have."""
    return {key: value for key, value in selection.items() if key not in SETTINGS}


def value_in(row: Row, name: str) -> Any:
    """The value of a row, None if it has none. "a.b": of an object in it."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def candidates(selection: Row) -> list[Row]:
    """The rows that meet the conditions, fastest first. Raises ValueError for a selection without a value."""
    if "value" not in selection:
        raise ValueError(f"a selection must have a value, got {selection}")
    rows = [row for row in record(selection["record"])["rows"] if meets(row, conditions_of(selection))]
    return sorted(rows, key=lambda row: row.get("ms") or math.inf)


@dataclass
class Cell:
    """The text of a cell, and the recorded rows that it was made from."""

    text: str = ""
    sources: list[Row] = field(default_factory=list)


def computed(row: Row, selection: Row) -> Any:
    """The value that a selection makes of one of its rows."""
    value = value_in(row, selection["value"])
    if value is None or isinstance(value, str):
        return value
    if "over" in selection:
        other = {**{key: v for key, v in selection.items() if key not in ("over", "times")}, **selection["over"]}
        found = [value_in(each, other["value"]) for each in candidates(other)]
        found = [each for each in found if each is not None]
        return found[0] / value * selection.get("times", 1) if found else None
    value = selection["inverse"] / value if "inverse" in selection else value
    return value * selection["times"] if "times" in selection else value


def cell(selection: Row) -> Cell:
    """The cell of a selection; empty if the record has no value, "fails" if it has an error instead."""
    rows, digits = candidates(selection), selection.get("digits", 3)
    found = [(computed(row, selection), row) for row in rows]
    found = [(value, row) for value, row in found if value is not None]
    if not found:
        return Cell("fails", rows[:1]) if any("error" in row for row in rows) else Cell()
    if selection.get("range"):
        values = [value for value, _ in found]
        return Cell(f"{shown(min(values), digits)} to {shown(max(values), digits)}", [row for _, row in found])
    return Cell(shown(found[0][0], digits), [found[0][1]])


def shown(value: Any, digits: int = 3) -> str:
    """A value as pages print it: 1,234, 0.0613, 4.5e-7."""
    if isinstance(value, str):
        return NAMES.get(value, "water" if value.startswith("water") and value[5:].isdigit() else value)
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    # of the rounded value: 9.996 has the digits 10.0
    power = int(f"{value:.{digits - 1}e}".partition("e")[2])
    return f"{value:,.{max(digits - 1 - power, 0)}f}"


def number(text: str) -> str:
    """The number of a sentence: the name of a record and a selection, "step {atoms: 22, by: torchmdx, value: ms}".

    "step {environment: device}" is what the record says of its environment.
    """
    name, _, selection = text.partition(" ")
    chosen = {"record": name, **yaml.safe_load(selection)}
    if "environment" in chosen:
        found = record(name)["environment"]
        return device_of(found) if chosen["environment"] == "device" else str(found[chosen["environment"]])
    made = cell(chosen).text
    if not made:
        raise ValueError(f"{name}.json must have {chosen['value']} where {conditions_of(chosen)}")
    return made


Line = tuple[list[str], Row]  # the labels of a row or column, and its part of each selection


def lines_of(axis: Any, rows: list[Row]) -> list[Line]:
    """The rows or columns of a table, from a list of keys or a mapping from labels."""
    if isinstance(axis, dict):
        return [([str(label)], part) for label, part in axis.items()]
    if not isinstance(axis, list):
        raise ValueError(f"rows and columns must be a list of keys or a mapping, got {axis!r}")
    distinct = {tuple(row[key] for key in axis): None for row in rows if all(key in row for key in axis)}
    return [([shown(v) for v in values], dict(zip(axis, values, strict=True))) for values in distinct]


def table(name: str, text: str) -> str:
    """A table in Markdown, and below it what it was recorded with. text: in YAML."""
    spec = yaml.safe_load(text)
    if unknown := set(spec) - set(TABLE):
        raise ValueError(f"a table has {', '.join(TABLE)}, got {', '.join(sorted(unknown))}")
    where = spec.get("where", {})
    mine = [row for row in record(name)["rows"] if meets(row, conditions_of(where))]
    rows, columns = lines_of(spec["rows"], mine), lines_of(spec["columns"], mine)
    selections = [[{"record": name, **where, **row, **column} for _, column in columns] for _, row in rows]
    cells = [[cell(each) for each in line] for line in selections]
    kept = [k for k, (labels, part) in enumerate(columns) if is_kept(name, labels, part, [line[k] for line in cells])]
    body = [
        [*marked(labels, line), *(line[k].text for k in kept)]
        for (labels, part), line in zip(rows, cells, strict=True)
        if is_kept(name, labels, part, line)
    ]
    keys: list[str] = spec["rows"] if isinstance(spec["rows"], list) else [spec.get("corner", "")]
    heads = [HEADS.get(key, key) for key in keys] + [columns[k][0][0] for k in kept]
    used = list(dict.fromkeys(each["record"] for line in selections for each in line))
    printed = ["| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *body)]
    return "\n".join([*printed, "", *(caption(each) for each in used)])


def is_kept(name: str, labels: list[str], part: Row, cells: list[Cell]) -> bool:
    """Whether a row or column has a value. Raises ValueError if not, unless it is optional."""
    if any(each.text for each in cells) or part.get("optional"):
        return any(each.text for each in cells)
    raise ValueError(f"{name}.json must have a value for {', '.join(labels)}: {part}")


def marked(labels: list[str], cells: list[Cell]) -> list[str]:
    """The labels of a row, marked if its values, or some of them, have another commit or device than the record."""
    sources = [source for each in cells for source in each.sources]
    other = dict.fromkeys(f"commit {row['commit']}" for row in sources if "commit" in row)
    other |= dict.fromkeys(device_of(row) for row in sources if "device" in row)
    part = "" if all({"commit", "device"} & set(row) for row in sources) else "in part "
    return [f"{labels[0]} ({part}{', '.join(other)})", *labels[1:]] if other else labels


def caption(name: str) -> str:
    """Device, versions and commit of a record, in a line."""
    found = record(name)["environment"]
    versions = [f"torch {found['torch'].partition('+')[0]}"]
    versions += [f"{label} {found[key]}" for key, label in (("triton", "Triton"), ("cuda", "CUDA")) if key in found]
    made = (
        f"commit {found['commit']}" if "commit" in found else f"torchmdx {found['torchmdx']}"
    )  # of `torchmdx bench --all`
    return f"{device_of(found)}; {', '.join(versions)}; {made} (`benchmarks/results/{name}.json`).  "


def device_of(found: Row) -> str:
    """The device of an environment or a row: "x86_64, 1 thread"."""
    return re.sub(r"\b1 threads\b", "1 thread", found["device"])
