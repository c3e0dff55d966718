"""The plots of learning: docs/images/learning.svg and learning_pool.svg, errors over labels, and a proton transfer."""

from __future__ import annotations

import math
from typing import Any

from svg import BOLD, FAINT, INK, Panel, Point, framed, heading, line, text

Row = dict[str, Any]

WIDTH, HEIGHT = 960, 432
TOP, BOTTOM = 92, 330
PANELS = ((70, 330), (380, 640), (700, 930))  # left and right
COLORS = {"ensemble": "#0b7a75", "random": "#c2571a", "last_layer": "#5b4bb7"}
LABELS = {"ensemble": "by the spread of an ensemble", "random": "at random", "last_layer": "by a last layer"}
PROFILES = {"held": "#0b7a75", "free": "#c2571a"}
PROFILE_LABELS = {"held": "explored with restraints", "free": "explored without"}
SCAN = (-0.7, 0.7)  # Å
TITLE = "What torchmdx learn reaches with how many labels"
POOLS = {
    "alloy, rare": "last epoch, 350 steps",
    "alloy, rare, best epoch": "best epoch by ten frames, 700 steps",
}
POOL_PANELS = ((70, 455), (545, 930))
POOL_TITLE = "Alloy: errors of forces by the number of labels, which are selected from a pool"


def titled(panel: Panel, title: str, below: str) -> list[str]:
    return [text(panel.left, TOP - 14, title, anchor="start", more=BOLD), panel.below(below, drop=42, color=FAINT)]


def ticks(low: float, high: float) -> list[float]:
    """Numbers 1, 2, 5 times powers of ten between two values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]


def curves(rows: list[Row], case: str, across: tuple[int, int], title: str = "") -> list[str]:
    """Errors over labels of a case: means, and bars from the smallest to the largest of the seeds."""
    own = [row for row in rows if (row["kind"], row["case"], row["set"]) == ("mean curve", case, "all")]
    labels = sorted({row["labels"] for row in own})
    y = (0.9 * min(row["least"] for row in own), 1.1 * max(row["most"] for row in own))
    panel = Panel(*across, TOP, BOTTOM, x=(0.93 * labels[0], 1.07 * labels[-1]), y=y, logs=(True, True))
    shown = [one for k, one in enumerate(labels) if k % max(1, len(labels) // 5) == 0]
    parts = panel.axes({x: f"{x:g}" for x in shown}, {tick: f"{tick:g}" for tick in ticks(*y)})
    parts += titled(panel, title or f"{case}: RMSE of forces, meV/Å", "labels")
    for strategy, color in COLORS.items():
        mine = sorted((row for row in own if row["strategy"] == strategy), key=lambda row: row["labels"])
        for row in mine:
            parts.append(line(panel.at(row["labels"], row["least"]), panel.at(row["labels"], row["most"]), color))
        points = [(row["labels"], row["member_force_rmse_meV"]) for row in mine]
        parts += panel.curve(points, color, [f"{n:g}: {y:.3g}" for n, y in points], small=True) if mine else []
    return parts


def profiles(rows: list[Row], across: tuple[int, int]) -> list[str]:
    """Energies along the transfer: of the reference, and of one potential of each seed with as many labels."""
    barriers = [row for row in rows if row["kind"] == "barrier"]
    runs = {(row["strategy"], row["seed"]) for row in barriers}
    common = [n for n in range(99) if len([row for row in barriers if row["round"] == n]) == len(runs)][-1]
    last = {(row["strategy"], row["seed"]): row for row in barriers if row["round"] == common}
    reference = next(iter(last.values()))["reference_profile"]
    xs = [SCAN[0] + k * (SCAN[1] - SCAN[0]) / (len(reference) - 1) for k in range(len(reference))]
    every = [1e3 * energy for row in last.values() for energy in row["on_reference_path"]]
    low, high = min(0.0, *every), min(400.0, max(1.1e3 * max(reference), *every))
    panel = Panel(*across, TOP, BOTTOM, x=SCAN, y=(low, high), logs=(False, False))
    labels = max(row["labels"] for row in last.values())
    step = 50 if high - low < 300 else 100
    heights = range(step * math.ceil(low / step), int(high) + 1, step)
    parts = panel.axes({x: f"{x:g}" for x in (-0.6, -0.3, 0.0, 0.3, 0.6)}, {float(y): f"{y}" for y in heights})
    parts += titled(panel, "proton transfer: energy, meV", f"coordinate, Å; {labels} labels")

    def drawn(energies: list[float], color: str, more: str = "") -> list[str]:
        points: list[Point] = [(x, min(high, max(low, 1e3 * one))) for x, one in zip(xs, energies, strict=True)]
        return panel.curve(points, color, small=True, more=more)

    for (strategy, _), row in last.items():
        parts += drawn(row["on_reference_path"], PROFILES[strategy])
    return parts + drawn(reference, INK, ' stroke-dasharray="5 4"')


def legend(rows: list[Row], height: int) -> list[str]:
    """The strategies of the rows, in a line at the bottom of a picture."""
    shown = [key for key in COLORS if any(row["strategy"] == key for row in rows)]
    return [
        text(70 + 230 * number, height - 18, LABELS[key], color=COLORS[key], anchor="start", more=BOLD)
        for number, key in enumerate(shown)
    ]


def said(rows: list[Row], names: dict[str, str]) -> str:
    """The gains of the cases that have a name, as a sentence."""
    gains = [
        f"{names[row['case']]}, {LABELS[row['strategy']]}: {100 * row['share']:.0f} % of the labels of random ones"
        for row in rows
        if row["kind"] == "gain" and row["set"] == "all" and row["share"] and row["strategy"] in LABELS
    ]
    return ("; ".join(gains) or "Errors over labels") + "."


def num_seeds(rows: list[Row]) -> int:
    return len({row["seed"] for row in rows if row["kind"] == "curve"})


def draw(record: dict[str, Any]) -> str:
    """The picture of results/learning.json, rows and environment, as SVG."""
    rows = record["rows"]
    below = f"means, smallest and largest of {num_seeds(rows)} seeds; errors of a single potential"
    body = heading(40, TITLE, below)
    cases = [case for case in ("alloy", "ethanol") if any(row["case"] == case for row in rows)]
    for place, case in enumerate(cases):
        body += curves(rows, case, PANELS[place])
    body += profiles(rows, PANELS[2]) if any(row["kind"] == "barrier" for row in rows) else []
    body += legend(rows, HEIGHT)
    for number, (label, color) in enumerate([*((PROFILE_LABELS[k], PROFILES[k]) for k in PROFILES), ("GFN2-xTB", INK)]):
        x, y = 680 + 160 * (number % 2), HEIGHT - 32 + 18 * (number // 2)
        body.append(text(x, y, label, color=color, anchor="start"))
    description = said(rows, {row["case"]: row["case"] for row in rows if "case" in row})
    return framed(WIDTH, HEIGHT, title=TITLE, description=description, body=body)


def draw_pools(record: dict[str, Any]) -> str:
    """The picture of results/learning_pool.json."""
    rows, height = record["rows"], HEIGHT - 20
    below = f"root mean square, meV/Å; means, smallest and largest of {num_seeds(rows)} seeds; test frames of all kinds"
    body = heading(40, POOL_TITLE, below)
    for (case, title), across in zip(POOLS.items(), POOL_PANELS, strict=True):
        body += curves(rows, case, across, title)
    return framed(WIDTH, height, title=POOL_TITLE, description=said(rows, POOLS), body=[*body, *legend(rows, height)])
