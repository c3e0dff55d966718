"""The plot docs/images/speed.svg of results/step.json: time per step over atoms. tools/write_readme.py writes it."""

from __future__ import annotations

import math
from typing import Any

from svg import BOLD, Panel, Point, framed, heading, line, text

WIDTH, HEIGHT = 760, 440
PANEL = Panel(84, 724, 78, 376, x=(10, 2_000_000), y=(0.05, 1000), logs=(True, True))  # atoms, ms
COLORS = {"torchmdx": "#0b7a75", "torchmd-net": "#c2571a"}


def read_points(rows: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """The fastest time of each program at each size, sorted by size; batches of several systems are left out."""
    fastest: dict[str, dict[int, float]] = {name: {} for name in COLORS}
    for row in rows:
        if "x " in row["system"] or row["by"] not in fastest:
            continue
        times = fastest[row["by"]]
        times[row["atoms"]] = min(row["ms"], times.get(row["atoms"], math.inf))
    return {name: sorted(times.items()) for name, times in fastest.items()}


def axes() -> list[str]:
    atoms, times = ([10.0**power for power in powers] for powers in (range(1, 7), range(-1, 4)))
    middle = (PANEL.top + PANEL.bottom) / 2
    return [
        *PANEL.axes({x: f"{x:,.0f}" for x in atoms}, {y: f"{y:,g}" for y in times}),
        PANEL.below("atoms"),
        text(28, middle, "ms per step", more=f' transform="rotate(-90 28 {middle:.0f})"'),
    ]


def ratios(points: dict[str, list[Point]]) -> list[str]:
    """How many times as fast torchmdx is, between the two curves; left out where labels would overlap."""
    parts, last = [], -math.inf
    peer = dict(points["torchmd-net"])
    for atoms, ms in points["torchmdx"]:
        if atoms not in peer or PANEL.at(atoms, ms)[0] - last < 40:
            continue
        (last, low), (_, high) = PANEL.at(atoms, ms), PANEL.at(atoms, peer[atoms])
        parts.append(line((last, low - 8), (last, high + 8), "#aab4c0", ' stroke-dasharray="2 4"'))
        middle = (low + high) / 2
        parts.append(f'  <rect x="{last - 20:.1f}" y="{middle - 9:.1f}" width="40" height="18" fill="#fbfcfd"/>')
        parts.append(text(last, middle + 4.5, f"{peer[atoms] / ms:.0f}×", more=BOLD))
    return parts


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    points = read_points(record["rows"])
    setting = f"TensorNet, 2 layers, 128 channels, 5 Å, float32, one {record['environment']['device']}"
    body = heading(PANEL.left, "Time per step: energy and forces, with neighbour search", setting)
    body += [*axes(), *ratios(points)]
    for name, its in points.items():
        body += PANEL.curve(its, COLORS[name], [f"{name}, {atoms:,} atoms: {ms:.3g} ms" for atoms, ms in its])
    for name, across, down, anchor in (("torchmdx", 26, 30, "start"), ("torchmd-net", -14, -16, "end")):
        x, y = PANEL.at(*points[name][-3])
        more = f'{BOLD} font-size="15"'
        body.append(text(x + across, y + down, name, color=COLORS[name], anchor=anchor, more=more))
    spelled = "; ".join(
        f"{name}: " + ", ".join(f"{ms:.3g} ms at {atoms:,} atoms" for atoms, ms in its) for name, its in points.items()
    )
    title = "Time per step of torchmdx and torchmd-net"
    return framed(WIDTH, HEIGHT, title=title, description=f"{spelled}.", body=body)
