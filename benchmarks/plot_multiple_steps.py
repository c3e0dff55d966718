"""Draws docs/images/multiple_steps.svg from results/multiple_steps_modes.json: errors of bonds over outer steps."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from plot_speed import FAINT, GRID, framed, line, text

RECORD = Path(__file__).with_name("results") / "multiple_steps_modes.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "multiple_steps.svg"

Row = dict[str, Any]

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 96, 724, 78, 376
LONGEST = 8.0  # fs
PERCENT = (-1, 2)  # powers of ten; unstable steps are at the upper end
TITLE = "Largest error of the variance of a bond of a hydrogen"
# Mass of hydrogens and inner step: label and color.
SERIES: dict[tuple[Any, float], tuple[str, str]] = {
    ("normal", 0.5): ("masses of the elements, inner steps of 0.5 fs", "#c2571a"),
    (3.0, 1.0): ("hydrogens of 3 amu, inner steps of 1 fs", "#0b7a75"),
}


def across(outer: float) -> float:
    return LEFT + (RIGHT - LEFT) * outer / LONGEST


def up(percent: float) -> float:
    low, high = PERCENT
    power = min(high, max(low, math.log10(percent))) if percent > 0 else low
    return BOTTOM - (BOTTOM - TOP) * (power - low) / (high - low)


def worst(rows: list[Row], mass: Any, step: float) -> dict[float, float]:
    """The largest error of all molecules in percent, by outer step in fs; infinite where one is unstable."""
    found: dict[float, float] = {}
    for row in rows:
        if (row["hydrogen_mass"], row["step_fs"]) != (mass, step) or row["inner"] == 1:
            continue
        errors = [100 * abs(row[key] - 1) for key in ("bonds_low", "bonds_high")] if row["stable"] else [math.inf]
        found[row["outer_fs"]] = max(found.get(row["outer_fs"], 0.0), *errors)
    return dict(sorted(found.items()))


def axes() -> list[str]:
    parts = []
    for outer in range(int(LONGEST) + 1):
        x = across(outer)
        parts += [line((x, TOP), (x, BOTTOM), GRID), text(x, BOTTOM + 20, f"{outer}", color=FAINT)]
    for power in range(PERCENT[0], PERCENT[1] + 1):
        y = up(10.0**power)
        label = f"{10.0**power:g} %"
        parts += [line((LEFT, y), (RIGHT, y), GRID), text(LEFT - 10, y + 4, label, color=FAINT, anchor="end")]
    return [*parts, text((LEFT + RIGHT) / 2, BOTTOM + 46, "outer step, fs (at 100 %: unstable)")]


def curve(label: str, color: str, errors: dict[float, float]) -> tuple[list[str], str]:
    """The marks of a series, and their labels."""
    path = " ".join(f"{across(outer):.1f},{up(percent):.1f}" for outer, percent in errors.items())
    parts = [f'  <polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>']
    said = []
    for outer, percent in errors.items():
        name = f"{outer:g} fs: " + ("unstable" if math.isinf(percent) else f"{percent:.2g} %")
        place = f'cx="{across(outer):.1f}" cy="{up(percent):.1f}" r="4.5"'
        parts.append(f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{label}, {name}</title></circle>')
        said.append(name)
    return parts, f"{label}: {', '.join(said)}"


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    rows = record["rows"]
    count = len({row["system"] for row in rows})
    setting = f"organic-1 and organic-1-fast, {count} structures, harmonic limit, Langevin dynamics with 1/ps"
    body = [
        text(LEFT, 34, TITLE, anchor="start", more=' font-size="17"'),
        text(LEFT, 55, setting, color=FAINT, anchor="start"),
        *axes(),
    ]
    said = []
    for number, ((mass, step), (label, color)) in enumerate(SERIES.items()):
        marks, words = curve(label, color, worst(rows, mass, step))
        body += marks
        said.append(words)
        body.append(
            text(across(3.6), BOTTOM - 62 + 22 * number, label, color=color, anchor="start", more=' font-weight="600"')
        )
    return framed(WIDTH, HEIGHT, title=TITLE, description="; ".join(said) + ".", body=body)


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
