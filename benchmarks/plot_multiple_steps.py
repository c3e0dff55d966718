"""Draws docs/images/multiple_steps.svg from results/multiple_steps_physics.json: the drift of the energy over outer
steps.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from plot_speed import FAINT, FRAME, GRID, line, text

RECORD = Path(__file__).with_name("results") / "multiple_steps_physics.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "multiple_steps.svg"

Row = dict[str, Any]

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 96, 724, 78, 376
LONGEST = 8.0  # fs
DRIFTS = (-7, 0)  # powers of ten, eV/atom/ps
SYSTEM = "alanine_dipeptide"
# Masses of hydrogens: the label, its color, and whether the label stands to the left of the last point.
SERIES: dict[Any, tuple[str, str]] = {
    "normal": ("masses of the elements", "#c2571a"),
    3.0: ("hydrogens of 3 amu", "#0b7a75"),
}


def across(outer: float) -> float:
    return LEFT + (RIGHT - LEFT) * outer / LONGEST


def up(drift: float) -> float:
    low, high = DRIFTS
    power = min(high, max(low, math.log10(drift))) if drift > 0 else low
    return BOTTOM - (BOTTOM - TOP) * (power - low) / (high - low)


def axes() -> list[str]:
    parts = []
    for outer in range(int(LONGEST) + 1):
        x = across(outer)
        parts += [line((x, TOP), (x, BOTTOM), GRID), text(x, BOTTOM + 20, f"{outer}", color=FAINT)]
    for power in range(DRIFTS[0], DRIFTS[1] + 1):
        y = up(10.0**power)
        parts += [line((LEFT, y), (RIGHT, y), GRID), text(LEFT - 10, y + 4, f"1e{power}", color=FAINT, anchor="end")]
    middle = (TOP + BOTTOM) / 2
    turned = f' transform="rotate(-90 28 {middle:.0f})"'
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 46, "outer step, fs (single steps: open circles)"))
    return [*parts, text(28, middle, "drift, eV per atom and ps", more=turned)]


def drawn(rows: list[Row], mass: Any) -> tuple[list[str], list[str]]:
    """The marks of a series, and what they say in words. Upper bounds where the drift is less than its error."""
    label, color = SERIES[mass]
    parts, said, points = [], [], []
    for row in sorted(rows, key=lambda row: row["outer_fs"]):
        if row["hydrogen_mass"] != mass:
            continue
        failed, outer = "error" in row, row["outer_fs"]
        drift = 10.0 ** DRIFTS[1] if failed else max(abs(row["drift_ev_atom_ps"]), row["drift_ev_atom_ps_error"])
        name = f"{label}, {row['inner']} x {row['step_fs']:g} fs: " + ("unstable" if failed else f"{drift:.1e}")
        single = row["inner"] == 1
        place = f'cx="{across(outer):.1f}" cy="{up(drift):.1f}" r="4.5"'
        fill = f'fill="#fbfcfd" stroke="{color}" stroke-width="2"' if single else f'fill="{color}" stroke="#fbfcfd"'
        parts.append(f"  <circle {place} {fill}><title>{name}</title></circle>")
        said.append(name)
        if not single:
            points.append((across(outer), up(drift)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return [f'  <polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>', *parts], said


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    rows = [row for row in record["rows"] if row["kind"] == "nve" and row["system"] == SYSTEM]
    title = "Drift of the energy with multiple time steps, alanine dipeptide"
    bold = ' font-weight="600" font-size="15"'
    body = [
        text(LEFT, 34, title, anchor="start", more=' font-size="17"'),
        text(LEFT, 55, f"constant energy, 300 K; {record['environment']['device']}", color=FAINT, anchor="start"),
        *axes(),
    ]
    said: list[str] = []
    for number, (mass, (label, color)) in enumerate(SERIES.items()):
        marks, words = drawn(rows, mass)
        body += marks
        said += words
        body.append(text(LEFT + 14, TOP + 22 + 22 * number, label, color=color, anchor="start", more=bold))
    return FRAME.format(
        width=WIDTH, height=HEIGHT, inner_width=WIDTH - 2, inner_height=HEIGHT - 2, title=title,
        description="; ".join(said) + ".", body="\n".join(body),
    )  # fmt: skip


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
