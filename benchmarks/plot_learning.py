"""Draws docs/images/learning.svg from results/learning.json: errors over labels, and a proton transfer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from plot_speed import FAINT, GRID, INK, Point, framed, line, text

RECORD = Path(__file__).with_name("results") / "learning.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "learning.svg"

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


class Panel:
    """A frame with axes between two places across; maps values to places. log: both axes are logarithmic."""

    def __init__(self, across: tuple[int, int], xs: list[float], ys: list[float], *, log: bool) -> None:
        self.left, self.right = across
        self.log, self.x, self.y = log, (min(xs), max(xs)), (min(ys), max(ys))

    def at(self, x: float, y: float) -> Point:
        across, up = self._share(x, self.x), self._share(y, self.y)
        return self.left + (self.right - self.left) * across, BOTTOM - (BOTTOM - TOP) * up

    def _share(self, value: float, limits: tuple[float, float]) -> float:
        low, high, value = (math.log(one) if self.log else one for one in (*limits, value))
        return (value - low) / (high - low)

    def axes(self, title: str, below: str, xs: list[float], ys: list[float]) -> list[str]:
        parts = [text(self.left, TOP - 14, title, anchor="start", more=' font-weight="600"')]
        for x in xs:
            place = self.at(x, self.y[0])
            parts += [line((place[0], TOP), place, GRID), text(place[0], BOTTOM + 19, f"{x:g}", color=FAINT)]
        for y in ys:
            place = self.at(self.x[0], y)
            parts += [line(place, (self.right, place[1]), GRID)]
            parts += [text(self.left - 8, place[1] + 4, f"{y:g}", color=FAINT, anchor="end")]
        return [*parts, text((self.left + self.right) / 2, BOTTOM + 42, below, color=FAINT)]

    def curve(self, points: list[Point], color: str, *, dots: bool = True, dashed: bool = False) -> list[str]:
        places = [self.at(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        more = ' stroke-dasharray="5 4"' if dashed else ""
        parts = [f'  <polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.2"{more}/>']
        circles = [
            f'  <circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{color}" stroke="#fbfcfd">'
            f"<title>{n:g}: {value:.3g}</title></circle>"
            for (x, y), (n, value) in zip(places, points, strict=True)
        ]
        return parts + circles * dots


def ticks(low: float, high: float) -> list[float]:
    """Numbers 1, 2, 5 times powers of ten between two values."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [m * 10.0**p for p in powers for m in (1, 2, 5) if low <= m * 10.0**p <= high]


def curves(rows: list[Row], case: str, across: tuple[int, int], title: str = "") -> list[str]:
    """Errors over labels of a case: means, and bars from the smallest to the largest of the seeds."""
    own = [row for row in rows if (row["kind"], row["case"], row["set"]) == ("mean curve", case, "all")]
    labels = sorted({row["labels"] for row in own})
    lowest, highest = 0.9 * min(row["least"] for row in own), 1.1 * max(row["most"] for row in own)
    panel = Panel(across, [0.93 * labels[0], 1.07 * labels[-1]], [lowest, highest], log=True)
    shown = [one for k, one in enumerate(labels) if k % max(1, len(labels) // 5) == 0]
    parts = panel.axes(title or f"{case}: RMSE of forces, meV/Å", "labels", shown, ticks(lowest, highest))
    for strategy, color in COLORS.items():
        mine = sorted((row for row in own if row["strategy"] == strategy), key=lambda row: row["labels"])
        for row in mine:
            parts.append(line(panel.at(row["labels"], row["least"]), panel.at(row["labels"], row["most"]), color))
        parts += panel.curve([(row["labels"], row["member_force_rmse_meV"]) for row in mine], color) if mine else []
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
    panel = Panel(across, list(SCAN), [low, high], log=False)
    labels = max(row["labels"] for row in last.values())
    step = 50 if high - low < 300 else 100
    heights = [float(one) for one in range(step * math.ceil(low / step), int(high) + 1, step)]
    parts = panel.axes(
        "proton transfer: energy, meV", f"coordinate, Å; {labels} labels", [-0.6, -0.3, 0.0, 0.3, 0.6], heights
    )
    for (strategy, _), row in last.items():
        energies = [min(high, max(low, 1e3 * one)) for one in row["on_reference_path"]]
        points = list(zip(xs, energies, strict=True))
        parts += panel.curve(points, PROFILES[strategy], dots=False)
    points = [(x, 1e3 * energy) for x, energy in zip(xs, reference, strict=True)]
    return parts + panel.curve(points, INK, dots=False, dashed=True)


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    rows = record["rows"]
    seeds = len({row["seed"] for row in rows if row["kind"] == "curve"})
    body = [
        text(40, 34, TITLE, anchor="start", more=' font-size="17"'),
        text(
            40,
            55,
            f"means, smallest and largest of {seeds} seeds; errors of a single potential",
            color=FAINT,
            anchor="start",
        ),
    ]
    cases = [case for case in ("alloy", "ethanol") if any(row["case"] == case for row in rows)]
    for place, case in enumerate(cases):
        body += curves(rows, case, PANELS[place])
    body += profiles(rows, PANELS[2]) if any(row["kind"] == "barrier" for row in rows) else []
    legend = [(LABELS[key], COLORS[key]) for key in COLORS if any(row["strategy"] == key for row in rows)]
    for number, (label, color) in enumerate(legend):
        body.append(text(70 + 230 * number, HEIGHT - 18, label, color=color, anchor="start", more=' font-weight="600"'))
    for number, (label, color) in enumerate([*((PROFILE_LABELS[k], PROFILES[k]) for k in PROFILES), ("GFN2-xTB", INK)]):
        body.append(
            text(680 + 160 * (number % 2), HEIGHT - 32 + 18 * (number // 2), label, color=color, anchor="start")
        )
    gains = [row for row in rows if row["kind"] == "gain" and row["set"] == "all" and row["share"]]
    said = "; ".join(
        f"{row['case']}, {LABELS[row['strategy']]}: {100 * row['share']:.0f} % of the labels of a random selection"
        for row in gains
    )
    return framed(WIDTH, HEIGHT, title=TITLE, description=(said or "Errors over labels") + ".", body=body)


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
