"""The precisions of an evaluation by name, and what becomes of those that earlier versions had."""

from __future__ import annotations

import argparse
import warnings

PRECISIONS = ("float32", "float64")
REMOVED = ("half", "tf32", "bfloat16")
WHY = "was removed: it lost accuracy and hardly saved time"


def require_precision(name: str, argument: str = "precision") -> str:
    """The name of a precision. Raises ValueError for another name of this argument."""
    if name not in PRECISIONS:
        why = f", which {WHY}" if name in REMOVED else ""
        raise ValueError(f"{argument} must be one of {', '.join(PRECISIONS)}, got {name!r}{why}")
    return name


def precision_option(text: str) -> str:
    """A type for argparse, whose choices do not say why one is gone."""
    try:
        return require_precision(text) if text in REMOVED else text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def saved_precision(name: str) -> str:
    """The precision for one that is saved in a file: float32, with a warning, for one that was removed."""
    if name not in REMOVED:
        return name
    warnings.warn(f"precision {name!r} {WHY}; what was saved with it is evaluated in float32", stacklevel=3)
    return "float32"
