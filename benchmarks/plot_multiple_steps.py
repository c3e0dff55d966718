"""The plot docs/images/multiple_steps.svg of results/multiple_steps_modes.json: errors of bonds over outer steps."""

from __future__ import annotations

import math
from typing import Any

from svg import BOLD, Panel, framed, heading, text

Row = dict[str, Any]

WIDTH, HEIGHT = 760, 440
LONGEST = 8.0  # fs
POWERS = (-1, 2)  # of ten, percent; unstable steps are at the upper end
PANEL = Panel(96, 724, 78, 376, x=(0.0, LONGEST), y=(10.0 ** POWERS[0], 10.0 ** POWERS[1]), logs=(False, True))
TITLE = "Largest error of the variance of a bond of a hydrogen"
# Mass of hydrogens and inner step: label and color.
SERIES: dict[tuple[Any, float], tuple[str, str]] = {
    ("normal", 0.5): ("masses of the elements, inner steps of 0.5 fs", "#c2571a"),
    (3.0, 1.0): ("hydrogens of 3 amu, inner steps of 1 fs", "#0b7a75"),
}


def worst(rows: list[Row], mass: Any, step: float) -> dict[float, float]:
    """The largest error of all molecules in percent, by outer step in fs; infinite where one is unstable."""
    found: dict[float, float] = {}
    for row in rows:
        if (row["hydrogen_mass"], row["step_fs"]) != (mass, step) or row["inner"] == 1:
            continue
        errors = [100 * abs(row[key] - 1) for key in ("bonds_low", "bonds_high")] if row["stable"] else [math.inf]
        found[row["outer_fs"]] = max(found.get(row["outer_fs"], 0.0), *errors)
    return dict(sorted(found.items()))


def curve(label: str, color: str, errors: dict[float, float]) -> tuple[list[str], str]:
    """The marks of a series, and their labels."""
    low, high = PANEL.y
    points = [(outer, min(high, max(low, percent))) for outer, percent in errors.items()]
    said = [
        f"{outer:g} fs: " + ("unstable" if math.isinf(percent) else f"{percent:.2g} %")
        for outer, percent in errors.items()
    ]
    return PANEL.curve(points, color, [f"{label}, {one}" for one in said]), f"{label}: {', '.join(said)}"


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    rows = record["rows"]
    count = len({row["system"] for row in rows})
    setting = f"organic-1 and organic-1-fast, {count} structures, harmonic limit, Langevin dynamics with 1/ps"
    percents = [10.0**power for power in range(POWERS[0], POWERS[1] + 1)]
    body = [
        *heading(PANEL.left, TITLE, setting),
        *PANEL.axes({float(fs): f"{fs}" for fs in range(int(LONGEST) + 1)}, {y: f"{y:g} %" for y in percents}),
        PANEL.below("outer step, fs (at 100 %: unstable)"),
    ]
    said = []
    for number, ((mass, step), (label, color)) in enumerate(SERIES.items()):
        marks, words = curve(label, color, worst(rows, mass, step))
        said.append(words)
        x, y = PANEL.at(3.6, PANEL.y[0])
        body += [*marks, text(x, y - 62 + 22 * number, label, color=color, anchor="start", more=BOLD)]
    return framed(WIDTH, HEIGHT, title=TITLE, description="; ".join(said) + ".", body=body)
