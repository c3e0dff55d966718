"""Draws docs/images/speed.svg from results/step.json: time per step over atoms."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("results") / "step.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "speed.svg"

Point = tuple[float, float]  # atoms, ms

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 84, 724, 78, 376
ATOMS = (10, 2_000_000)
MILLISECONDS = (0.05, 1000)
TITLE = "Time per step: energy and forces, with neighbour search"
INK, FAINT, GRID = "#243040", "#5c6878", "#e1e6ec"
COLORS = {"torchmdx": "#0b7a75", "torchmd-net": "#c2571a"}

# The background is part of the picture, so that it reads the same on light and on dark pages.
FRAME = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="title desc"
     font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="13">
  <title id="title">{title}</title>
  <desc id="desc">{description}</desc>
  <rect x="1" y="1" width="{inner_width}" height="{inner_height}" rx="12" fill="#fbfcfd" stroke="#c9d1db"/>
{body}
</svg>
"""


def framed(width: int, height: int, *, title: str, description: str, body: list[str]) -> str:
    """A picture as SVG."""
    return FRAME.format(
        width=width,
        height=height,
        inner_width=width - 2,
        inner_height=height - 2,
        title=title,
        description=description,
        body="\n".join(body),
    )


def read_points(rows: list[dict[str, Any]]) -> dict[str, list[Point]]:
    """The fastest time of each program at each size, sorted by size; batches of several systems are left out."""
    fastest: dict[str, dict[int, float]] = {name: {} for name in COLORS}
    for row in rows:
        if "x " in row["system"] or row["by"] not in fastest:
            continue
        times = fastest[row["by"]]
        times[row["atoms"]] = min(row["ms"], times.get(row["atoms"], math.inf))
    return {name: sorted(times.items()) for name, times in fastest.items()}


def across(atoms: float) -> float:
    return LEFT + (RIGHT - LEFT) * math.log(atoms / ATOMS[0]) / math.log(ATOMS[1] / ATOMS[0])


def up(ms: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * math.log(ms / MILLISECONDS[0]) / math.log(MILLISECONDS[1] / MILLISECONDS[0])


def text(x: float, y: float, content: str, *, color: str = INK, anchor: str = "middle", more: str = "") -> str:
    return f'  <text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{more}>{content}</text>'


def line(start: Point, end: Point, color: str, more: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    return f'  <line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


def axes() -> list[str]:
    parts = []
    for power in range(1, 7):
        x = across(10**power)
        parts.append(line((x, TOP), (x, BOTTOM), GRID))
        parts.append(text(x, BOTTOM + 20, f"{10**power:,}", color=FAINT))
    for power in range(-1, 4):
        y = up(10.0**power)
        parts.append(line((LEFT, y), (RIGHT, y), GRID))
        parts.append(text(LEFT - 10, y + 4, f"{10.0**power:,g}", color=FAINT, anchor="end"))
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 46, "atoms"))
    middle = (TOP + BOTTOM) / 2
    parts.append(text(28, middle, "ms per step", more=f' transform="rotate(-90 28 {middle:.0f})"'))
    return parts


def ratios(points: dict[str, list[Point]]) -> list[str]:
    """How many times as fast torchmdx is, between the two curves; left out where labels would overlap."""
    parts, last = [], -math.inf
    peer = dict(points["torchmd-net"])
    for atoms, ms in points["torchmdx"]:
        if atoms not in peer or across(atoms) - last < 40:
            continue
        last = across(atoms)
        parts.append(line((last, up(ms) - 8), (last, up(peer[atoms]) + 8), "#aab4c0", ' stroke-dasharray="2 4"'))
        middle = (up(ms) + up(peer[atoms])) / 2
        parts.append(f'  <rect x="{last - 20:.1f}" y="{middle - 9:.1f}" width="40" height="18" fill="#fbfcfd"/>')
        parts.append(text(last, middle + 4.5, f"{peer[atoms] / ms:.0f}×", more=' font-weight="600"'))
    return parts


def curve(name: str, points: list[Point]) -> list[str]:
    color = COLORS[name]
    path = " ".join(f"{across(atoms):.1f},{up(ms):.1f}" for atoms, ms in points)
    parts = [f'  <polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>']
    for atoms, ms in points:
        place = f'cx="{across(atoms):.1f}" cy="{up(ms):.1f}" r="4.5"'
        # The title is the number itself: a tooltip in browsers.
        label = f"{name}, {atoms:,} atoms: {ms:.3g} ms"
        parts.append(f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{label}</title></circle>')
    return parts


def draw(record: dict[str, Any]) -> str:
    """The picture of a record, rows and environment, as SVG."""
    points = read_points(record["rows"])
    setting = f"TensorNet, 2 layers, 128 channels, 5 Å, float32, one {record['environment']['device']}"
    body = [
        text(
            LEFT, 34, "Time per step: energy and forces, with neighbour search", anchor="start", more=' font-size="17"'
        ),
        text(LEFT, 55, setting, color=FAINT, anchor="start"),
        *axes(),
        *ratios(points),
    ]
    for name, its in points.items():
        body += curve(name, its)
    (atoms, ms), (peer_atoms, peer_ms) = points["torchmdx"][-3], points["torchmd-net"][-3]
    bold = ' font-weight="600" font-size="15"'
    body.append(text(across(atoms) + 26, up(ms) + 30, "torchmdx", color=COLORS["torchmdx"], anchor="start", more=bold))
    peer = text(
        across(peer_atoms) - 14, up(peer_ms) - 16, "torchmd-net", color=COLORS["torchmd-net"], anchor="end", more=bold
    )
    spelled = "; ".join(
        f"{name}: " + ", ".join(f"{ms:.3g} ms at {atoms:,} atoms" for atoms, ms in its) for name, its in points.items()
    )
    return framed(
        WIDTH,
        HEIGHT,
        title="Time per step of torchmdx and torchmd-net",
        description=f"{spelled}.",
        body=[*body, peer],
    )


def main() -> None:
    PICTURE.write_text(draw(json.loads(RECORD.read_text())), encoding="utf-8")
    print(PICTURE)


if __name__ == "__main__":
    main()
