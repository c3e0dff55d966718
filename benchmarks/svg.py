"""Parts of the plots that tools/write_readme.py writes, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Point = tuple[float, float]

INK, FAINT, GRID = "#243040", "#5c6878", "#e1e6ec"
BOLD = ' font-weight="600"'

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


def text(x: float, y: float, content: str, *, color: str = INK, anchor: str = "middle", more: str = "") -> str:
    return f'  <text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{more}>{content}</text>'


def heading(left: float, title: str, below: str) -> list[str]:
    """The two lines at the top."""
    size = ' font-size="17"'
    return [text(left, 34, title, anchor="start", more=size), text(left, 55, below, color=FAINT, anchor="start")]


def line(start: Point, end: Point, color: str, more: str = "") -> str:
    (x1, y1), (x2, y2) = start, end
    return f'  <line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


@dataclass(frozen=True)
class Panel:
    """A frame with axes, which maps values to places: `x` and `y` are the values at its ends.

    Attributes:
        logs: Whether each axis is logarithmic.
    """

    left: float
    right: float
    top: float
    bottom: float
    x: Point
    y: Point
    logs: tuple[bool, bool]

    def at(self, x: float, y: float) -> Point:
        across, up = _share(x, self.x, self.logs[0]), _share(y, self.y, self.logs[1])
        return self.left + (self.right - self.left) * across, self.bottom - (self.bottom - self.top) * up

    def axes(self, xs: Mapping[float, str], ys: Mapping[float, str]) -> list[str]:
        """Lines of the grid with their labels."""
        parts = []
        for value, label in xs.items():
            x, _ = self.at(value, self.y[0])
            parts += [line((x, self.top), (x, self.bottom), GRID), text(x, self.bottom + 20, label, color=FAINT)]
        for value, label in ys.items():
            _, y = self.at(self.x[0], value)
            parts.append(line((self.left, y), (self.right, y), GRID))
            parts.append(text(self.left - 10, y + 4, label, color=FAINT, anchor="end"))
        return parts

    def below(self, label: str, *, drop: int = 46, color: str = INK) -> str:
        """The label of the horizontal axis."""
        return text((self.left + self.right) / 2, self.bottom + drop, label, color=color)

    def curve(
        self, points: Sequence[Point], color: str, titles: Sequence[str] = (), *, small: bool = False, more: str = ""
    ) -> list[str]:
        """A line through points, and a dot for each title, which browsers show as a tooltip."""
        places = [self.at(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        width, radius = (2.2, 3.6) if small else (2.5, 4.5)
        parts = [f'  <polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{more}/>']
        for (x, y), title in zip(places, titles, strict=False):
            place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
            parts.append(f'  <circle {place} fill="{color}" stroke="#fbfcfd"><title>{title}</title></circle>')
        return parts


def _share(value: float, limits: Point, logarithmic: bool) -> float:
    low, high, value = (math.log(one) if logarithmic else one for one in (*limits, value))
    return (value - low) / (high - low)
