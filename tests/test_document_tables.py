"""Measurements in documents: every table and number is there, and made from the records as docs/recorded.py says."""

import json
import re
import sys

import pytest
import torch
from documents.blocks import ROOT, pages

import torchmdx
from torchmdx.commands.bench_all import environment
from torchmdx.engines.plan import MACHINES

sys.path += [str(ROOT / name) for name in ("docs", "benchmarks")]

import plan_table
import plot_released
import plot_speed
import recorded
from plan_table import table_of
from recorded import cell, number, shown, table

DIRECTIVE = re.compile(r"^```\{(results|plans)\} (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROLE = re.compile(r"\{result\}`([^`]+)`")


def sources(pattern, page):
    return pattern.findall((ROOT / page).read_text(encoding="utf-8"))


TABLES = [(page, *found[1:]) for page in pages() for found in sources(DIRECTIVE, page) if found[0] == "results"]
NUMBERS = [(page, " ".join(text.split())) for page in pages() for text in sources(ROLE, page)]
ENVIRONMENT = {"device": "One GPU", "torch": "2.11.0+cu130", "triton": "3.6.0", "cuda": "13.0", "commit": "abc"}


@pytest.mark.parametrize(("page", "name", "text"), TABLES, ids=[f"{page}-{name}" for page, name, _ in TABLES])
def test_every_table_can_be_made(page, name, text):
    made = table(name, text)
    assert made.count("\n| ") >= 2
    assert f"; commit {recorded.record(name)['environment']['commit']} (" in made


@pytest.mark.parametrize(("page", "text"), NUMBERS, ids=[f"{page}-{k}" for k, (page, _) in enumerate(NUMBERS)])
def test_every_number_of_a_sentence_is_recorded(page, text):
    assert re.match(r"\w+ \w+" if "environment" in text else r"-?\d", number(text))


def test_pages_have_tables_and_sentences_of_records():
    assert len(TABLES) >= 25
    assert len(NUMBERS) >= 25


def test_a_record_of_bench_all_makes_a_table(records, tmp_path):
    """What a user measures on a card becomes a file of results as it is."""
    row = {"structure": "C6H6", "atoms": 12, "mode": "graph", "ms": 0.05, "engine": "kernels, float32"}
    content = {"environment": environment(torch.device("cpu")), "waiting_blocks": None, "rows": [row]}
    (tmp_path / "card.json").write_text(json.dumps(content))
    made = table("card", "{rows: [structure, atoms], columns: {ms: {mode: graph, value: ms}}}")
    assert "| C6H6 | 12 | 0.0500 |" in made
    assert f"; torchmdx {torchmdx.__version__} (`benchmarks/results/card.json`)" in made


def test_tables_show_no_targets():
    assert not [(page, name) for page, name, text in TABLES if "asked" in text or "target" in text]


@pytest.fixture
def records(tmp_path, monkeypatch):
    """A function that writes a record; pages read these records only."""
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    recorded.record.cache_clear()

    def write(name, *rows, **environment):
        content = {"environment": {**ENVIRONMENT, **environment}, "rows": list(rows)}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))

    yield write
    recorded.record.cache_clear()


DHFR = {"system": "dhfr", "atoms": 2489}
OURS = {**DHFR, "by": "ours", "ms": 0.9021, "nested": {"a b": 7}}
THEIRS = [
    {"system": "dhfr", "atoms": 2489, "by": "other", "mode": mode, "ms": ms} for mode, ms in (("a", 9), ("b", 3.0))
]


def test_a_table_has_a_row_for_each_system_and_says_what_recorded_it(records):
    records("one", {**OURS, "system": "chignolin", "atoms": 166, "ms": 0.2}, OURS, *THEIRS)
    text = """
        rows: [system, atoms]
        columns:
          ours, ms: {by: ours, value: ms}
          mode: {by: other, value: mode, optional: true}
          ratio: {by: ours, value: ms, over: {by: other}}
    """
    assert table("one", text).splitlines() == [
        "| system | atoms | ours, ms | mode | ratio |",
        "| --- | --- | --- | --- | --- |",
        "| chignolin | 166 | 0.200 |  |  |",
        "| DHFR | 2,489 | 0.902 | b | 3.33 |",
        "",
        "One GPU; torch 2.11.0, Triton 3.6.0, CUDA 13.0; commit abc (`benchmarks/results/one.json`).  ",
    ]


def test_a_table_has_labels_for_rows_and_values_for_columns(records):
    records("one", {"batch": 8, "ms": 1.0}, {"batch": 32, "ms": 2.0})
    records("two", {"batch": 8, "ms": 5.0}, device="Another GPU")
    text = "{corner: frames, rows: {first: {value: ms}, second: {record: two, value: ms}}, columns: [batch]}"
    made = table("one", text)
    assert made.startswith("| frames | 8 | 32 |\n| --- | --- | --- |\n| first | 1.00 | 2.00 |\n| second | 5.00 |  |\n")
    assert "One GPU; " in made
    assert "Another GPU; " in made


def test_rows_of_another_commit_or_device_are_marked(records):
    records("one", {"atoms": 1, "ms": 1.0}, {"atoms": 2, "ms": 1.0, "commit": "old", "device": "Old GPU"})
    made = table("one", "{rows: [atoms], columns: {'time, ms': {value: ms}}}")
    assert "\n| 1 | 1.00 |\n| 2 (commit old, Old GPU) | 1.00 |\n" in made


def test_a_row_of_which_a_part_is_older_says_so(records):
    records("one", {"by": "a", "atoms": 1, "ms": 1.0}, {"by": "b", "atoms": 1, "ms": 2.0, "commit": "old"})
    made = recorded.table("one", "rows: [atoms]\ncolumns: {a: {by: a, value: ms}, b: {by: b, value: ms}}")
    assert "\n| 1 (in part commit old) | 1.00 | 2.00 |\n" in made


def test_of_several_rows_the_fastest_counts(records):
    records("one", OURS, *THEIRS)
    assert cell({"record": "one", "by": "other", "value": "mode"}).text == "b"
    assert cell({"record": "one", "by": ["ours", "other"], "value": "ms"}).text == "0.902"


def test_what_failed_is_said(records):
    records("one", {"by": "other", "mode": "a", "error": "out of memory"}, {"by": "ours", "ms": 1.0})
    assert cell({"record": "one", "by": "other", "value": "ms"}).text == "fails"
    assert cell({"record": "one", "by": "third", "value": "ms"}).text == ""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("one {by: ours, value: ms}", "0.902"),
        ("one {by: ours, value: ms, times: 1000, digits: 2}", "902"),
        ("one {by: ours, value: ms, inverse: 86.4}", "95.8"),
        ("one {by: ours, value: ms, over: {by: other}, digits: 2}", "3.3"),
        ("one {by: ours, value: atoms, over: {value: ms}, times: 2, digits: 2}", "0.00072"),
        ("one {by: other, value: ms, range: true}", "3.00 to 9"),
        ("one {by: ours, value: nested.a b}", "7"),
        ("one {environment: device}", "One GPU"),
    ],
)
def test_numbers(records, text, printed):
    records("one", OURS, *THEIRS)
    assert number(text) == printed


@pytest.mark.parametrize(
    ("value", "digits", "printed"),
    [
        (2489, 3, "2,489"),
        (1011.6, 3, "1,012"),
        (0.0613, 3, "0.0613"),
        (9.9963, 3, "10.0"),
        (0.99, 2, "0.99"),
        (4.47e-7, 3, "4.5e-7"),
        (0.0, 3, "0"),
        (-250.4, 3, "-250"),
        ("alanine_dipeptide", 3, "alanine dipeptide"),
        ("water8000", 3, "water"),
        ("waterproof", 3, "waterproof"),
    ],
)
def test_how_values_are_printed(value, digits, printed):
    assert shown(value, digits) == printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{rows: [atoms], columns: {x: {by: third, value: ms}}}", "one.json must have a value for x"),
        ("{rows: [atoms], columns: {x: {by: ours}}}", "a selection must have a value"),
        (
            "{rows: [atoms], columns: {x: {value: ms}}, colums: 1}",
            "a table has rows, columns, where, corner, got colums",
        ),
        (
            "{rows: atoms, columns: {x: {value: ms}}}",
            "must be a list of keys or a mapping, got 'atoms'",
        ),
    ],
)
def test_mistakes_in_a_table(records, text, message):
    records("one", OURS, *THEIRS)
    with pytest.raises(ValueError, match=re.escape(message)):
        table("one", text)


def test_mistakes_in_a_number(records):
    records("one", OURS)
    with pytest.raises(ValueError, match=re.escape("one.json must have ms where {'by': 'third'}")):
        number("one {by: third, value: ms}")
    with pytest.raises(ValueError, match="a record must be a file of benchmarks/results, got 'none'"):
        number("none {value: ms}")


def test_the_plot_shows_the_fastest_time_of_each_program_at_each_size():
    rows = [
        {"system": "b", "atoms": 200, "by": "torchmdx", "ms": 2.0},
        {"system": "a", "atoms": 20, "by": "torchmdx", "ms": 1.0},
        {"system": "a", "atoms": 20, "by": "torchmd-net", "ms": 9.0},
        {"system": "a", "atoms": 20, "by": "torchmd-net", "ms": 8.0},
        {"system": "8x a", "atoms": 160, "by": "torchmdx", "ms": 3.0},
    ]
    assert plot_speed.read_points(rows) == {"torchmdx": [(20, 1.0), (200, 2.0)], "torchmd-net": [(20, 8.0)]}


def test_the_plot_of_released_potentials_shows_systems_with_both_sides():
    head = {"potential": "aceff-1.1", "system": "dhfr", "atoms": 2489}
    crystal = {"potential": "TensorNet-MatPES-PBE-v2025.1-PES", "system": "Fe 54", "kind": "crystal", "atoms": 54}
    rows = [
        {**head, "by": "torchmdx", "ms": 0.5, "speedup": 16.0},
        {**head, "by": "torchmd-net", "mode": "graph", "ms": 8.0},
        {**head, "by": "torchmd-net", "mode": "eager", "ms": 20.0},
        {**head, "system": "toluene", "by": "torchmdx", "ms": 0.1},
        {**head, "system": "toluene", "by": "torchmd-net", "mode": "graph", "ms": 900.0},
        {**head, "system": "toluene", "by": "torchmd-net", "mode": "compile", "error": "did not end in 1 s"},
        {**head, "system": "chignolin", "by": "torchmdx", "ms": 0.2, "speedup": 10.0, "device": "NVIDIA H200"},
        {**head, "system": "chignolin", "by": "torchmd-net", "ms": 2.0, "device": "NVIDIA H200"},
        {**crystal, "by": "torchmdx", "ms": 0.1, "speedup": 400.0},
        {**crystal, "by": "matgl", "mode": "eager", "ms": 40.0},
    ]
    assert plot_released.compared(rows) == [
        ("AceFF-1.1, DHFR, 2,489", 0.5, 8.0, "torchmd-net"),
        ("MatPES, Fe, 54", 0.1, 40.0, "matgl"),
    ]
    picture = plot_released.draw({"environment": {"device": "NVIDIA H100"}, "rows": rows})
    assert "16×" in picture
    assert "one NVIDIA H100" in picture


def test_the_page_of_what_runs_has_the_plans_of_networks_and_potentials():
    found = [name for kind, name, _ in sources(DIRECTIVE, "docs/what_runs.md") if kind == "plans"]
    assert found == ["tensornet", "tensornet2", "released"]
    assert "| 2,489 | blocks of atoms; tiles of atoms, and messages, in CUDA C++ |" in table_of("tensornet")
    assert table_of("tensornet2").count("\n") == 7
    with pytest.raises(ValueError, match="network must be one of tensornet, tensornet2, released, got 'painn'"):
        table_of("painn")
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table_of("released").splitlines()]
    assert ["AceFF-2.0, 15 atoms", "one program per atom; one launch of CUDA C++"] in rows
    assert ["TensorNet-MatPES, 8 atoms, periodic", "one program per atom; one launch of CUDA C++"] in rows
    assert ["QET-MatQ, 8 atoms, periodic", "pairs of atoms, by autograd"] in rows


def test_the_page_of_what_runs_shows_every_known_card(monkeypatch):
    assert {card for cards in plan_table.COLUMNS.values() for card in cards} == set(MACHINES)
    monkeypatch.setattr(plan_table, "COLUMNS", {"both": ("H100", "A100")})
    with pytest.raises(ValueError, match="all of both must have the same plan for 22 atoms, got"):
        table_of("tensornet")
