"""Pictures of spreads or uncertainties: against the errors, and how well they are calibrated."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from torchmdx.report.plots import MOST_POINTS, point_density
from torchmdx.report.scales import Scale
from torchmdx.report.style import FAINT, INK, legend, picture, tidy
from torchmdx.report.uncertainty import SpreadAndError
from torchmdx.runtime.wording import number

FEWEST = 3  # points of a plot


def spread_and_error(
    path: Path, found: SpreadAndError, unit: Scale, what: str, *, title: str, noun: str = "spread"
) -> bool:
    """Errors against spreads on logarithmic axes, coloured by density.

    With the root mean square error in bins of spread, and the line on which both are equal. Returns False, without a
    file, for fewer than three pairs above zero.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    pairs = found.pairs * unit.factor
    pairs = pairs[(pairs > 0).all(1)]
    if len(pairs) < FEWEST:
        return False
    logs = np.log10(pairs)
    # A few errors are very near to zero by chance; the axes begin where they are rare.
    low, high = float(np.quantile(logs, 0.01, axis=0).min()) - 0.1, float(logs.max()) + 0.1
    with picture(path, 4.0, 4.5) as figure:
        panel = figure.subplots()
        panel.plot([10**low, 10**high], [10**low, 10**high], color=FAINT, linewidth=0.8, zorder=1)
        density = point_density(np.clip(logs, low, high), low, high)
        kept = np.arange(len(pairs))[:MOST_POINTS]
        order = kept[np.argsort(density[kept])]
        x, y = pairs[order].T
        panel.scatter(x, y, c=np.log(density[order]), s=5, cmap="viridis", linewidths=0, zorder=2)
        bins = found.binned() * unit.factor
        panel.plot(bins[:, 0], bins[:, 1], "o-", color="#D55E00", linewidth=1.2, markersize=3, label="RMS error")
        panel.set(xscale="log", yscale="log", xlim=(10**low, 10**high), ylim=(10**low, 10**high))
        panel.set_aspect("equal")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high - low < 2.5 else (1.0,)))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        tidy(panel, x=f"{noun} of {what} / {unit.unit}", y=f"error of {what} / {unit.unit}")
        legend(panel, loc="upper left")
        panel.set_title(f"{title}\n{correlations(found, noun)}", fontsize=10, color=INK, loc="left")
    return True


def calibration(path: Path, found: SpreadAndError, *, title: str) -> bool:
    """Shares of errors within intervals against those of Gaussians. False, without a file, for few pairs."""
    if len(found.pairs) < FEWEST:
        return False
    expected, observed = found.calibration().T
    with picture(path, 4.0, 4.5) as figure:
        panel = figure.subplots()
        panel.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8, zorder=1)
        panel.fill_between(expected, expected, observed, color="#0072B2", alpha=0.15, linewidth=0)
        panel.plot(expected, observed, color="#0072B2", linewidth=1.4, label="energies")
        panel.set(xlim=(0, 1), ylim=(0, 1))
        panel.set_aspect("equal")
        tidy(panel, x="expected share within the interval", y="share of errors within it")
        panel.set_title(f"{title}\nmiscalibration area {found.miscalibration:.3f}", fontsize=10, color=INK, loc="left")
    return True


def correlations(found: SpreadAndError, noun: str = "spread") -> str:
    """Both correlations and the ratio of error to spread, as text."""
    if math.isnan(found.correlation):
        return "no correlation: values do not vary"
    return (
        f"correlation {found.correlation:.2f}, of ranks {found.rank_correlation:.2f},\n"
        f"RMS error / RMS {noun} {number(found.ratio)}"
    )
