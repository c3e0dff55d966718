"""The plot docs/images/released.svg of results/released.json: times of released potentials, here and upstream.

tools/write_readme.py writes it.
"""

from __future__ import annotations

import math
from typing import Any

from plot_speed import COLORS
from svg import BOLD, FAINT, GRID, INK, framed, line, text

Row = dict[str, Any]

WIDTH, LEFT, RIGHT, TOP, EACH = 760, 236, 724, 84, 27
MILLISECONDS = (0.02, 100)
TITLE = "Released potentials: time of energy and forces"
NAMES = {
    "aceff-1.1": "AceFF-1.1",
    "aceff-2.0": "AceFF-2.0",
    "TensorNet-MatPES-PBE-v2025.1-PES": "MatPES",
    "alanine_dipeptide": "dipeptide",
    "dhfr": "DHFR",
    "peptide_in_water": "box of water",
    "peptide_in_water 12 Å": "box of water",
}


def compared(rows: list[Row]) -> list[tuple[str, float, float, str]]:
    """(label, ms of torchmdx, ms of the fastest other mode, its program) of each system with a `speedup`.

    Rows of another device than the record's are left out: the picture names one.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if "ms" in row and "device" not in row:
            found.setdefault((row["potential"], row["system"]), []).append(row)
    pairs = []
    for (potential, system), both in found.items():
        ours, others = ([row for row in both if (row["by"] == "torchmdx") == mine] for mine in (True, False))
        if ours and others and "speedup" in ours[0]:
            best = min(others, key=lambda row: float(row["ms"]))
            name = system.split()[0] if ours[0].get("kind") == "crystal" else NAMES.get(system, system)
            label = f"{NAMES.get(potential, potential)}, {name}, {ours[0]['atoms']:,}"
            pairs.append((label, ours[0]["ms"], best["ms"], best["by"]))
    return pairs


def across(ms: float) -> float:
    low, high = MILLISECONDS
    return LEFT + (RIGHT - LEFT) * math.log(ms / low) / math.log(high / low)


def axis(bottom: float) -> list[str]:
    parts = []
    for power in range(-1, 3):
        x = across(10.0**power)
        parts += [line((x, TOP - 12), (x, bottom), GRID), text(x, bottom + 20, f"{10.0**power:g}", color=FAINT)]
    return [*parts, text((LEFT + RIGHT) / 2, bottom + 42, "ms")]


def dot(ms: float, y: float, color: str, label: str) -> str:
    place = f'cx="{across(ms):.1f}" cy="{y:.1f}" r="5"'
    return f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{label}: {ms:.3g} ms</title></circle>'


def compare(y: float, label: str, ours: float, other: float, program: str) -> list[str]:
    """A line of the picture: both times, and between them how many times as fast torchmdx is."""
    middle = (across(ours) + across(other)) / 2
    return [
        text(LEFT - 16, y + 4.5, label, color=INK, anchor="end"),
        line((across(ours), y), (across(other), y), "#aab4c0", ' stroke-width="2"'),
        dot(ours, y, COLORS["torchmdx"], f"torchmdx, {label}"),
        dot(other, y, COLORS["torchmd-net"], f"{program}, {label}"),
        f'  <rect x="{middle - 20:.1f}" y="{y - 9:.1f}" width="40" height="18" fill="#fbfcfd"/>',
        text(middle, y + 4.5, f"{other / ours:.0f}×", more=BOLD),
    ]


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    pairs = compared(record["rows"])
    bottom = TOP + EACH * len(pairs)
    setting = f"float32, crystals with stress, one {record['environment']['device']}; number of atoms after each name"
    body = [
        text(24, 34, TITLE, anchor="start", more=' font-size="17"'),
        text(24, 56, setting, color=FAINT, anchor="start"),
        text(RIGHT - 92, 56, "torchmdx", color=COLORS["torchmdx"], anchor="end", more=BOLD),
        text(RIGHT, 56, "upstream", color=COLORS["torchmd-net"], anchor="end", more=BOLD),
        *axis(bottom),
    ]
    for k, pair in enumerate(pairs):
        body += compare(TOP + EACH * (k + 0.5), *pair)
    spelled = "; ".join(f"{label}: {ours:.3g} and {other:.3g} ms" for label, ours, other, _ in pairs)
    return framed(
        WIDTH,
        int(bottom) + 62,
        title="Time per step of released potentials in torchmdx and in the programs they were released with",
        description=f"{spelled}.",
        body=body,
    )
