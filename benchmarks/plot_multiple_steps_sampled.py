"""The plot docs/images/multiple_steps_sampled.svg of results/multiple_steps_physics.json: bonds over outer steps."""

from __future__ import annotations

import math
from typing import Any

from svg import BOLD, Panel, framed, heading, line, text

Row = dict[str, Any]
Point = tuple[float, float, float]  # outer step fs, difference and its standard error in percent; infinite: blew up

WIDTH, HEIGHT = 760, 440
LONGEST, PERCENT = 8.4, (-10, 30)  # fs
PANEL = Panel(96, 724, 78, 376, x=(0.0, LONGEST), y=PERCENT, logs=(False, False))
TITLE = "Variance of the bonds of hydrogens, relative to single steps"
# Structure, mass of hydrogens and inner steps: bond, label, color, and a shift that keeps marks apart, fs.
SERIES: dict[tuple[str, Any, tuple[float, ...]], tuple[str, str, str, float]] = {
    ("water216", "normal", (0.5, 1.0)): ("O-H", "liquid water, masses of the elements", "#c2571a", -0.06),
    ("water216", 3.0, (1.0, 2.0)): ("O-H", "liquid water, hydrogens of 3 amu", "#0b7a75", -0.02),
    ("alanine_dipeptide", "normal", (0.5, 1.0)): ("C-H", "alanine dipeptide, masses of the elements", "#d9a441", 0.02),
    ("alanine_dipeptide", 3.0, (1.0, 2.0)): ("C-H", "alanine dipeptide, hydrogens of 3 amu", "#5b7fb5", 0.06),
}


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


def marks(label: str, color: str, shift: float, found: list[Point]) -> tuple[list[str], str]:
    """The marks of a series, with bars of one standard error, and their labels."""
    parts, said = [], []
    for outer, percent, error in found:
        name = f"{outer:g} fs: " + ("blew up" if math.isinf(percent) else f"{percent:+.1f} ± {error:.1f} %")
        low, middle, high = (
            PANEL.at(outer + shift, _shown(value)) for value in (percent - error, percent, percent + error)
        )
        parts.append(line(low, high, color, ' stroke-width="1.5"'))
        place = f'cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" r="4.5"'
        parts.append(f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{label}, {name}</title></circle>')
        said.append(name)
    return parts, f"{label}: {', '.join(said)}"


def _shown(percent: float) -> float:
    return min(PERCENT[1], max(PERCENT[0], percent))


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    below = "single steps of the same inner step; Langevin dynamics with 1/ps, 300 K; one standard error"
    percents = {float(value): f"{value:+d} %" if value else "0" for value in range(PERCENT[0], PERCENT[1] + 1, 10)}
    body = [
        *heading(PANEL.left, TITLE, below),
        *PANEL.axes({float(fs): f"{fs}" for fs in range(int(LONGEST) + 1)}, percents),
        PANEL.below(f"outer step, fs (at {PERCENT[1]:+d} %: blew up, or more)"),
    ]
    said = []
    for number, ((system, mass, steps), (bond, label, color, shift)) in enumerate(SERIES.items()):
        drawn, words = marks(label, color, shift, points(record["rows"], system, mass, steps, bond))
        said.append(words)
        x, y = PANEL.left + 14, PANEL.top + 22 + 20 * number
        body += [*drawn, text(x, y, f"{bond}, {label}", color=color, anchor="start", more=BOLD)]
    return framed(WIDTH, HEIGHT, title=TITLE, description="; ".join(said) + ".", body=body)
