"""Numbers and counts in messages, tables and pages."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Three digits, without an exponent unless it is needed."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "–"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        return f"{value:,.{digits}f}"
    return f"{value:.2e}"


def signed(value: float) -> str:
    """`number`, with its sign."""
    return f"+{number(value)}" if value > 0 else number(value)


def fixed(value: float, digits: int) -> str:
    """With this many decimal places; zero has no sign."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A count with its noun: "1 frame", "1,200 frames"."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
