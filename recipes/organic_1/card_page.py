"""Fills the model card: writes the numbers of card/*.json between the marks in docs/organic-1.md."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from card_tables import Cards, alone, chains, large_ions, limits, pairs, protons, rotors, table, torsions, waters

MARK = "<!-- begin:{0} (recipes/organic_1/evaluate.py writes this) -->\n{1}\n<!-- end:{0} -->"
BLOCK = re.compile(r"<!-- begin:(\w+) [^\n]*-->\n.*?<!-- end:\1 -->", re.DOTALL)


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
                f"learning rate {stage['learning_rate']:g}, {stage['precision']}, {stage['device']}",
            ]
        )
        rows.append(
            [
                f"the epoch of {'the file' if number == len(facts['stages']) else 'that file'}",
                f"{stage['best_epoch']}, of lowest validation loss; forces {stage['validation_forces']:.1f} meV/Å "
                f"in validation and {stage['training_forces']:.1f} in training, energy "
                f"{stage['validation_energy']:.1f} and {stage['training_energy']:.1f} meV/atom",
            ]
        )
        rows.append(
            [
                "lowest validation forces",
                f"{stage['lowest_forces']:.1f} meV/Å, after epoch {stage['lowest_forces_epoch']}",
            ]
        )
    if facts["frames"]:
        rows.insert(3, ["training frames", f"{facts['frames']:,}"])
    return table("what | value", rows)


def _dynamics(cards: Cards) -> str:
    run = cards["dynamics"]
    kept = [row for row in run["molecules"] if not row["broken"]]
    number = run.get("contexts", 1)
    contexts = "one context" if number == 1 else f"{number} contexts"
    lengths = Counter(row["reached_ps"] for row in kept)
    each = " and ".join(f"{count} for {ps:g} ps" for ps, count in sorted(lengths.items(), reverse=True))
    first = (
        f"{len(kept)} of {len(run['molecules'])} molecules kept every bond and formed no new one, {each} "
        f"({run['device']}, {run['atoms']} atoms in {contexts}, "
    )
    first += f"{run['ns_per_day']:.3g} ns/day of each molecule)." if run["ns_per_day"] else "no speed measured)."
    first += f" Bonds were checked every {run['check_every_ps']:g} ps."
    if run["reached_ps"] < run["length_ps"]:
        first += f" **Those of less than {run['length_ps']:g} ps were stopped early.**"
    if run["weights"] != cards["training"]["weights"]:
        first += f" **These were other weights than those of the tables above: SHA-256 `{run['weights'][:16]}…`.**"
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
    return first + "\n\n" + table("molecule | charge | atoms | outcome | longest bond / its start | mean T, K", rows)


def _time_step(cards: Cards) -> str:
    rows = [
        [
            f"{r['timestep_fs']:g}",
            f"{r['hydrogen_amu']:g}",
            f"{r['temperature_K']:g}",
            f"{r['ps']:,.0f}",
            str(r["lost"]),
        ]
        for r in cards["time_step"]
    ]
    return table("time step, fs | hydrogen, amu | K | of ethane with GFN2-xTB, ps | hydrogens lost", rows)


def _made(cards: Cards) -> str:
    run = cards["run"]
    return (
        f"Measured on {run['checkpoint']}, {run['device']}, torch {run['torch']}, tblite {run['tblite']}, in "
        f"{run['seconds']:.0f} s; {run['test_frames']:,} of {run['test_all']:,} test frames, "
        f"{run['heldout_frames']} of {run['heldout_all']} frames of large molecules, seed {run['seed']}."
    )


# The JSON files that each block needs, and the function that writes it.
BLOCKS: dict[str, tuple[tuple[str, ...], Callable[[Cards], str]]] = {
    "headline": (("test", "heldout"), _headline),
    "charge": (("test",), lambda cards: error_table("total charge", cards["test"]["charge"])),
    "kind": (("test",), _groups("kind")),
    "size": (("test",), _groups("size")),
    "force": (("test",), _groups("force")),
    "worst": (("test",), _worst),
    "training": (("training",), _training),
    "torsions": (("torsions",), torsions),
    "waters": (("waters",), waters),
    "pairs": (("pairs",), pairs),
    "dynamics": (("dynamics", "training"), _dynamics),
    "time_step": (("time_step",), _time_step),
    "rotors": (("rotors",), rotors),
    "alone": (("ions",), alone),
    "chains": (("ions",), chains),
    "large": (("heldout",), large_ions),
    "protons": (("protons",), protons),
    "limits": (("test", "heldout", "pairs", "ions", "protons"), limits),
    "made": (("run",), _made),
}
