"""Pressures with their units, as text: alike in all commands."""

from __future__ import annotations

import argparse
import math
import re

GPA_IN = {"gpa": 1.0, "mpa": 1e-3, "kbar": 0.1, "bar": 1e-4, "atm": 1.01325e-4}  # GPa


def pressure_of(text: str, unit: str = "GPa") -> float:
    """A pressure such as "1", "2.5GPa", "500 bar" or "-1e3bar", in GPa; without a unit in the given one.

    Raises argparse.ArgumentTypeError.
    """
    found = re.fullmatch(r"\s*([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?inf|nan)\s*([A-Za-z]*)\s*", text)
    factor = GPA_IN.get((found[2] or unit).lower()) if found else None
    try:
        number = float(found[1]) if found else math.nan
    except ValueError:
        factor, number = None, math.nan
    if factor is None:
        raise argparse.ArgumentTypeError(f"must be a number with GPa, MPa, kbar, bar or atm, got {text!r}")
    return number * factor


def bar_of(text: str) -> float:
    """As `pressure_of`, in bar, also without a unit."""
    return pressure_of(text, "bar") / GPA_IN["bar"]
