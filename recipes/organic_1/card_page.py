"""Fills the model card: numbers of docs/organic-1.md stand between marks, and come from the JSON files of card/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from card_figures import SUBSETS

MARK = "<!-- begin:{0} (recipes/organic_1/evaluate.py writes this) -->\n{1}\n<!-- end:{0} -->"
BLOCK = re.compile(r"<!-- begin:(\w+) [^\n]*-->\n.*?<!-- end:\1 -->", re.DOTALL)
Cards = dict[str, Any]  # what the JSON files hold, by name


def render(page: Path, folder: Path) -> list[str]:
    """Fills every block whose JSON files are there; the names of those that are left as they are."""
    cards = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    left: list[str] = []

    def fill(found: re.Match[str]) -> str:
        name = found[1]
        if name not in BLOCKS:
            raise ValueError(f"a block of {str(page)!r} must be one of {', '.join(BLOCKS)}, got {name!r}")
        needed, write = BLOCKS[name]
        if not set(needed) <= set(cards):
            left.append(name)
            return found[0]
        return MARK.format(name, write(cards))

    page.write_text(BLOCK.sub(fill, page.read_text()))
    return left


def table(header: str, rows: list[list[str]]) -> str:
    """A table of Markdown. header: its columns, as `a | b`."""
    lines = [f"| {header} |", "|" + "---|" * (header.count("|") + 1)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


ERRORS = "frames | forces, MAE | median of frames | RMSE | energy, MAE | median | 95% below | within one molecule"


def error_table(first: str, rows: dict[str, dict[str, float]]) -> str:
    """Summaries of card_errors. first: what the first column says."""
    return table(f"{first} | {ERRORS}", [[name, *_errors(row)] for name, row in rows.items()])


def _errors(row: dict[str, float]) -> list[str]:
    relative = row["relative_mae"]
    return [
        f"{row['frames']:,}",
        f"{row['forces_mae']:.0f}",
        f"{row['forces_median']:.0f}",
        f"{row['forces_rmse']:.0f}",
        f"{row['energy_mae']:.1f}",
        f"{row['energy_median']:.1f}",
        f"{row['energy_p95']:.1f}",
        "" if relative is None else f"{relative:.2f}",
    ]


def _headline(cards: Cards) -> str:
    rows, large = cards["test"]["headline"], cards["heldout"]["headline"]
    names = {"neutral": "**neutral**", "ions": "**ions**", "all": "all"}
    unseen = {f"unseen molecules, {names[k]}": row for k, row in rows.items()}
    return error_table("", unseen | {f"twice the size, {names[k]}": row for k, row in large.items()})


def _groups(kind: str) -> Callable[[Cards], str]:
    def write(cards: Cards) -> str:
        tables = cards["test"]
        both = {f"neutral, {name}": row for name, row in tables[f"{kind}_neutral"].items()}
        return error_table("", both | {f"ions, {name}": row for name, row in tables[f"{kind}_ions"].items()})

    return write


def _worst(cards: Cards) -> str:
    rows = [
        [
            row["formula"],
            f"{row['charge']:+d}" if row["charge"] else "0",
            row["kind"],
            str(row["frames"]),
            f"{row['energy_mae']:.0f}",
            f"{row['forces_mae']:.0f}",
        ]
        for row in cards["test"]["worst_neutral"] + cards["test"]["worst_ions"]
    ]
    return table("atoms | charge | first met as | frames | energy, MAE | forces, MAE", rows)


def _training(cards: Cards) -> str:
    facts = cards["training"]
    rows = [
        ["file", f"{facts['megabytes']:.1f} MB, SHA-256 `{facts['sha256'][:16]}…`"],
        ["network", facts["network"]],
        ["trained on", f"{facts['elements']}; total charges {facts['charges']} e; closed shells"],
    ]
    for number, stage in enumerate(facts["stages"], start=1):
        name = f"training, stage {number}" if len(facts["stages"]) > 1 else "training"
        rows.append(
            [
                name,
                f"{stage['epochs']} of {stage['planned']} epochs in batches of {stage['batch_size']}, largest "
                f"learning rate {stage['learning_rate']:g}, {stage['precision']}, {stage['device']}; validation forces "
                f"{stage['validation_forces']:.1f} meV/Å, energy {stage['validation_energy']:.2f} meV/atom",
            ]
        )
    if facts["frames"]:
        rows.insert(3, ["training frames", f"{facts['frames']:,}"])
    return table("what | value", rows)


def _torsions(cards: Cards) -> str:
    rows = [
        [
            f"ACE-{row['residue']}-NME",
            SUBSETS[row["subset"]],
            "φ" if row["angle"] == "phi" else "ψ",
            f"{row['height']:.1f}",
            f"{row['rmse']:.2f}",
            f"{row['largest']:.2f}",
        ]
        for row in cards["torsions"]
    ]
    return table("molecule | which is | angle | GFN2-xTB's curve is high | RMSE | largest error", rows)


def _waters(cards: Cards) -> str:
    numbers = sorted({row["number"] for row in cards["waters"]})
    rows = []
    for number in numbers:
        same = [row for row in cards["waters"] if row["number"] == number]
        error = sum(abs(row["network"] - row["gfn2"]) for row in same) / len(same)
        bound = sum(row["gfn2"] for row in same) / len(same)
        forces = sum(row["forces_mae"] for row in same) / len(same)
        rows.append(
            [
                str(number),
                SUBSETS[same[0]["subset"]],
                f"{bound:.1f}",
                f"{error:.2f}",
                f"{error / number:.2f}",
                f"{forces:.0f}",
            ]
        )
    return table("waters | which are | binding energy | MAE | MAE of each molecule | forces, MAE, meV/Å", rows)


def _pairs(cards: Cards) -> str:
    rows = [
        [
            f"{row['pair']} ({row['contact']})",
            f"{row['minimum']:.2f}",
            f"{row['depth_gfn2']:.2f}",
            f"{row['depth_network']:.2f}",
            f"{row['rmse']:.2f}",
            f"{row['far_gfn2']:.2f}",
            f"{row['far_network']:.2f}",
        ]
        for row in cards["pairs"]
    ]
    header = (
        "pair | minimum, Å | depth, GFN2-xTB | organic-1 | RMSE from 0.95 of it on | at 3 times, GFN2-xTB | organic-1"
    )
    return table(header, rows)


def _dynamics(cards: Cards) -> str:
    run = cards["dynamics"]
    kept = [row for row in run["molecules"] if not row["broken"]]
    first = (
        f"{len(kept)} of {len(run['molecules'])} molecules kept every bond for {run['length_ps']:g} ps and made no new "
        f"one ({run['device']}, {run['atoms']} atoms in one context, "
    )
    first += f"{run['ns_per_day']:.3g} ns/day of each molecule)." if run["ns_per_day"] else "no speed measured)."
    first += f" Bonds were looked at every {run['check_every_ps']:g} ps."
    if run["sha256"] != cards["training"]["sha256"]:
        first += f" **This was another file than that of the tables above: SHA-256 `{run['sha256'][:16]}…`.**"
    rows = [
        [
            f"`{row['molecule']}`",
            f"{row['charge']:+d}" if row["charge"] else "0",
            str(row["atoms"]),
            f"{row['fault']} at {row['ended_ps']:g} ps" if row["broken"] else "whole",
            f"{row['longest_bond']:.2f}",
            "" if row["temperature"] is None else f"{row['temperature']:.0f}",
        ]
        for row in run["molecules"]
    ]
    return (
        first
        + "\n\n"
        + table("molecule | charge | atoms | what came of it | longest bond / its start | mean T, K", rows)
    )


def _limits(cards: Cards) -> str:
    rows, pairs = cards["test"]["headline"], {row["pair"]: row for row in cards["pairs"]}
    ions, neutral = rows["ions"], rows["neutral"]
    lines = [
        "- **Ions of families that training has no member of.** The median error of energy is "
        f"{ions['energy_median']:.0f} meV/atom and the mean {ions['energy_mae']:.0f} ({neutral['energy_median']:.1f} "
        f"and {neutral['energy_mae']:.1f} of neutral molecules); of forces, {ions['forces_mae']:.0f} meV/Å "
        f"({neutral['forces_mae']:.0f}). A network that knows only the total charge does not know where it sits."
    ]
    for name, text in (
        ("benzene, benzene", "stacked benzene"),
        ("methane, methane", "a pair of methanes"),
        ("chloride, water", "chloride and water"),
    ):
        row = pairs[name]
        lines.append(
            f"- **{text[0].upper()}{text[1:]}**: the lowest point of the scan is {row['depth_gfn2']:.1f} kcal/mol with "
            f"GFN2-xTB, {row['depth_network']:.1f} with organic-1."
        )
    row = pairs["ammonium, water"]
    lines.append(
        "- **Ions beside molecules, far apart**: the total charge acts on every atom, however far the ion is. Ammonium "
        f"and water at {row['distances'][-1]:.1f} Å: {row['far_gfn2']:.1f} kcal/mol by GFN2-xTB, "
        f"{row['far_network']:.1f} by organic-1."
    )
    return "\n".join(lines)


def _made(cards: Cards) -> str:
    run = cards["run"]
    return (
        f"Measured on {run['checkpoint']}, {run['device']}, torch {run['torch']}, tblite {run['tblite']}, in "
        f"{run['seconds']:.0f} s; {run['test_frames']:,} of {run['test_all']:,} test frames, "
        f"{run['heldout_frames']} of {run['heldout_all']} frames of large molecules, seed {run['seed']}."
    )


# What each block needs, and what writes it.
BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Cards], str]]] = {
    "headline": (("test", "heldout"), _headline),
    "charge": (("test",), lambda cards: error_table("total charge", cards["test"]["charge"])),
    "kind": (("test",), _groups("kind")),
    "size": (("test",), _groups("size")),
    "force": (("test",), _groups("force")),
    "worst": (("test",), _worst),
    "training": (("training",), _training),
    "torsions": (("torsions",), _torsions),
    "waters": (("waters",), _waters),
    "pairs": (("pairs",), _pairs),
    "dynamics": (("dynamics", "training"), _dynamics),
    "limits": (("test", "pairs"), _limits),
    "made": (("run",), _made),
}
