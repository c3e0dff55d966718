"""Draws docs/images/multiple_steps_sampled.svg from results/multiple_steps_physics.json: bonds over outer steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from plot_speed import FAINT, GRID, framed, line, text

RECORD = Path(__file__).with_name("results") / "multiple_steps_physics.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "multiple_steps_sampled.svg"

Row = dict[str, Any]
Point = tuple[float, float, float]  # outer step fs, difference and its standard error in percent; infinite: blew up

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 96, 724, 78, 376
LONGEST = 8.4  # fs
PERCENT = (-10, 30)
TITLE = "Variance of the bonds of hydrogens, relative to single steps"
# Structure, mass of hydrogens and inner steps: bond, label, color, and a shift that keeps marks apart, fs.
SERIES: dict[tuple[str, Any, tuple[float, ...]], tuple[str, str, str, float]] = {
    ("water216", "normal", (0.5, 1.0)): ("O-H", "liquid water, masses of the elements", "#c2571a", -0.06),
    ("water216", 3.0, (1.0, 2.0)): ("O-H", "liquid water, hydrogens of 3 amu", "#0b7a75", -0.02),
    ("alanine_dipeptide", "normal", (0.5, 1.0)): ("C-H", "alanine dipeptide, masses of the elements", "#d9a441", 0.02),
    ("alanine_dipeptide", 3.0, (1.0, 2.0)): ("C-H", "alanine dipeptide, hydrogens of 3 amu", "#5b7fb5", 0.06),
}


def across(outer: float) -> float:
    return LEFT + (RIGHT - LEFT) * outer / LONGEST


def up(percent: float) -> float:
    low, high = PERCENT
    return BOTTOM - (BOTTOM - TOP) * (min(high, max(low, percent)) - low) / (high - low)


def points(rows: list[Row], system: str, mass: Any, steps: tuple[float, ...], bond: str) -> list[Point]:
    """Of all outer steps of a series, by their length."""
    found = []
    for row in rows:
        if (row["kind"], row.get("system"), row.get("hydrogen_mass")) != ("nvt", system, mass) or row["inner"] == 1:
            continue
        difference = row.get(f"variance_{bond}_percent_to_single")
        if "error" in row:
            found.append((row["outer_fs"], math.inf, 0.0))
        elif row["step_fs"] in steps and difference is not None:
            found.append((row["outer_fs"], difference, row[f"variance_{bond}_percent_error_to_single"]))
    return sorted(found)


def axes() -> list[str]:
    parts = []
    for outer in range(int(LONGEST) + 1):
        x = across(outer)
        parts += [line((x, TOP), (x, BOTTOM), GRID), text(x, BOTTOM + 20, f"{outer}", color=FAINT)]
    for percent in range(PERCENT[0], PERCENT[1] + 1, 10):
        y = up(percent)
        label = f"{percent:+d} %" if percent else "0"
        parts += [line((LEFT, y), (RIGHT, y), GRID), text(LEFT - 10, y + 4, label, color=FAINT, anchor="end")]
    return [*parts, text((LEFT + RIGHT) / 2, BOTTOM + 46, f"outer step, fs (at {PERCENT[1]:+d} %: blew up, or more)")]


def marks(label: str, color: str, shift: float, found: list[Point]) -> tuple[list[str], str]:
    """The marks of a series, with bars of one standard error, and their labels."""
    parts, said = [], []
    for outer, percent, error in found:
        x, name = across(outer + shift), f"{outer:g} fs: "
        if math.isinf(percent):
            name += "blew up"
        else:
            name += f"{percent:+.1f} ± {error:.1f} %"
            parts.append(line((x, up(percent - error)), (x, up(percent + error)), color, ' stroke-width="1.5"'))
        place = f'cx="{x:.1f}" cy="{up(percent):.1f}" r="4.5"'
        parts.append(f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{label}, {name}</title></circle>')
        said.append(name)
    return parts, f"{label}: {', '.join(said)}"


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    body = [
        text(LEFT, 34, TITLE, anchor="start", more=' font-size="17"'),
        text(
            LEFT, 55, "single steps of the same inner step; Langevin dynamics with 1/ps, 300 K; one standard error",
            color=FAINT, anchor="start",
        ),
        *axes(),
    ]  # fmt: skip
    said = []
    for number, ((system, mass, steps), (bond, label, color, shift)) in enumerate(SERIES.items()):
        found = points(record["rows"], system, mass, steps, bond)
        drawn, words = marks(label, color, shift, found)
        body += drawn
        said.append(words)
        named = f"{bond}, {label}"
        body.append(
            text(LEFT + 14, TOP + 22 + 20 * number, named, color=color, anchor="start", more=' font-weight="600"')
        )
    return framed(WIDTH, HEIGHT, title=TITLE, description="; ".join(said) + ".", body=body)


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
