"""A verdict on the errors of a set in one line: how large they are compared with the variation of the labels."""

from __future__ import annotations

import math

from torchmdx.report.errors import Errors
from torchmdx.report.scales import Scale, Scales
from torchmdx.runtime.wording import number

# RMSE over the standard deviation of the labels, up to which a word holds.
GRADES = ((0.05, "very well"), (0.15, "well"), (0.4, "roughly"), (1.0, "poorly"))
WORST = "no better than by their mean"


def verdict(errors: Errors, scales: Scales) -> str:
    """One sentence on forces, energies and stress; without a grade where there are too few labels for one."""
    kinds: tuple[tuple[str, str, Scale], ...] = (
        ("forces", "forces", scales.forces),
        ("energy", "energies", scales.energy),
        ("stress", "stress", scales.pressure),
    )
    graded, others = [], []
    for kind, what, scale in kinds:
        rmse, relative = getattr(errors, kind).rmse, errors.relative(kind)
        shown = f"{number(rmse * scale.factor)} {scale.unit}"
        if math.isfinite(relative):
            graded.append(f"{what} {grade(relative)} ({shown}, {percent(relative)})")
        elif math.isfinite(rmse):
            others.append(f"{what} with an RMSE of {shown}")
    if not graded and not others:
        return "There are no labels to compare with."
    explained = ": RMSE, and its share of the standard deviation of the labels" if graded else ""
    return f"Predicts {', '.join([*others, *graded])}{explained}."


def grade(relative: float) -> str:
    """The word for an RMSE relative to the standard deviation of the labels."""
    return next((word for most, word in GRADES if relative <= most), WORST)


def percent(ratio: float) -> str:
    """With two digits below 100: "0.34 %", "5.1 %", "140 %"."""
    if not math.isfinite(ratio):
        return "–"
    value = 100 * ratio
    return f"{value:.2f} %" if value < 1 else f"{value:.1f} %" if value < 10 else f"{value:,.0f} %"
