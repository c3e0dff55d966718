"""The pictures of a report: learning curves, parity, errors by element and size, distribution of errors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torchmdx.report.composition import symbol
from torchmdx.report.errors import Errors
from torchmdx.report.moments import Floats, Moments, Sample
from torchmdx.report.scales import Scale
from torchmdx.report.style import FAINT, INK, colours, legend, log_axis, picture, tidy
from torchmdx.runtime.wording import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 20_000  # of a parity plot; more only hide each other
CELLS = 120  # of the histogram that says how dense points are
MOST_BARS = 12
# Panels of the learning curves: name of the column, label of the axis.
CURVES = {
    "loss": "loss",
    "energy": "energy MAE / meV/atom",
    "forces": "force MAE / meV/Å",
    "stress": "stress MAE / meV/Å³",
}


def learning_curves(path: Path, history: Mapping[str, Floats]) -> bool:
    """Train and validation errors and the learning rate by epoch. False, without a file, if there is none."""
    panels = {
        name: parts
        for name in CURVES
        if (
            parts := {
                kind: f"{kind}_{name}" for kind in ("train", "validation", "old") if _any(history, f"{kind}_{name}")
            }
        )
    }
    with_rate = _any(history, "lr")
    number = len(panels) + with_rate
    if not number:
        return False
    with picture(path, 7.2, 0.6 + 1.9 * number) as figure:
        axes = figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0]
        colour = colours(("train", "validation", "old"))
        for panel, (name, parts) in zip(axes, panels.items(), strict=False):
            for kind, column in parts.items():
                _curve(panel, history["epoch"], history[column], kind, colour[kind])
            log_axis(panel, np.concatenate([history[column] for column in parts.values()]).tolist())
            tidy(panel, y=CURVES[name])
            legend(panel, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        if with_rate:
            _curve(axes[-1], history["epoch"], history["lr"], None, INK)
            log_axis(axes[-1], history["lr"].tolist())
            tidy(axes[-1], y="learning rate")
        axes[-1].set_xlabel("epoch", fontsize=9, color=INK)
        axes[-1].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        axes[-1].set_xlim(history["epoch"].min() - 0.5, history["epoch"].max() + 0.5)
        figure.align_ylabels()
    return True


def _any(history: Mapping[str, Floats], name: str) -> bool:
    return name in history and bool(np.isfinite(history[name]).any())


def _curve(panel: Axes, epochs: Floats, values: Floats, kind: str | None, colour: str) -> None:
    known = np.isfinite(values)
    epochs, values = epochs[known], values[known]
    name = kind
    if kind == "validation":
        best = int(values.argmin())
        name = f"validation,\nlowest {number(values[best])}\nin epoch {epochs[best]:.0f}"
        panel.plot(epochs[best], values[best], "o", color=colour, markersize=4)
    marker = "." if len(epochs) < 30 else None
    panel.plot(epochs, values, color=colour, linewidth=1.3, marker=marker, markersize=5, label=name)


def parity(path: Path, sample: Sample, moments: Moments, unit: Scale, axis: Scale, what: str, *, title: str) -> None:
    """Predictions against labels, coloured by density. unit: of errors in the title; axis: of both axes."""
    pairs = np.concatenate([sample.pairs, sample.extreme]) * axis.factor
    base = _base(pairs[:, 0])
    pairs = pairs - base
    with picture(path, 4.0, 4.3) as figure:
        panel = figure.subplots()
        low, high = _limits(pairs)
        panel.plot([low, high], [low, high], color=FAINT, linewidth=0.8, zorder=1)
        density = point_density(pairs, low, high)
        kept = np.arange(len(pairs))
        if len(pairs) > MOST_POINTS:  # the extreme ones are the last, and stay
            kept = np.concatenate([kept[:MOST_POINTS], kept[len(sample.pairs) :]])
        order = kept[np.argsort(density[kept])]
        panel.scatter(
            pairs[order, 0], pairs[order, 1], c=np.log(density[order]), s=5, cmap="viridis", linewidths=0, zorder=2
        )
        panel.set_xlim(low, high)
        panel.set_ylim(low, high)
        panel.set_aspect("equal")
        less = f" {'−' if base > 0 else '+'} {abs(base):g}" if base else ""
        tidy(panel, x=f"{what}{less}, label / {axis.unit}", y=f"{what}{less}, predicted / {axis.unit}")
        mae, rmse = moments.mae * unit.factor, moments.rmse * unit.factor
        panel.set_title(
            f"{title}\nMAE {number(mae)}, RMSE {number(rmse)} {unit.unit}", fontsize=10, color=INK, loc="left"
        )
        panel.ticklabel_format(useOffset=False)
        panel.locator_params(nbins=6)


def _base(labels: Floats) -> float:
    """An offset to subtract from energies that hardly differ, so that the axes are readable."""
    middle = float(np.median(labels))
    return round(middle, 2) if abs(middle) > 20 * max(float(np.ptp(labels)), 1e-9) else 0.0


def _limits(pairs: Floats) -> tuple[float, float]:
    low, high = float(pairs.min()), float(pairs.max())
    margin = 0.04 * (high - low) or max(0.05 * abs(high), 0.05)
    return low - margin, high + margin


def point_density(pairs: Floats, low: float, high: float) -> Floats:
    """Number of points in and around the cell of each point."""
    place = np.clip(((pairs - low) / (high - low) * CELLS).astype(np.int64), 0, CELLS - 1)
    counts = np.zeros((CELLS + 2, CELLS + 2))
    np.add.at(counts, (place[:, 0] + 1, place[:, 1] + 1), 1.0)
    near = sum(counts[1 + dx : CELLS + 1 + dx, 1 + dy : CELLS + 1 + dy] for dx in (-1, 0, 1) for dy in (-1, 0, 1))
    return np.asarray(near, dtype=np.float64)[place[:, 0], place[:, 1]]


def errors_by_element(path: Path, sets: Mapping[str, Errors], unit: Scale) -> bool:
    """Bars of force MAE for each element, with the number of atoms. False, and no file, without forces."""
    found = {name: errors.forces_by_element.of for name, errors in sets.items() if errors.forces.count}
    elements = sorted({z for groups in found.values() for z in groups})
    if not elements:
        return False
    bars = {name: [groups.get(z, Moments()) for z in elements] for name, groups in found.items()}
    with picture(path, _width(len(elements), len(bars)), 3.4) as figure:
        panel = figure.subplots()
        _bars(panel, [symbol(z) for z in elements], bars, unit, list(sets), divide=3)
        tidy(panel, "Forces by element, with the number of atoms", "element", f"force MAE / {unit.unit}", grid="y")
        if len(bars) > 1:
            legend(panel, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True


def errors_by_size(path: Path, sets: Mapping[str, Errors], unit: Scale, *, forces: bool) -> bool:
    """Bars of energy or force MAE by the number of atoms. False, and no file, without errors."""
    groups = {name: (errors.forces_by_size if forces else errors.energy_by_size).of for name, errors in sets.items()}
    groups = {name: group for name, group in groups.items() if group}
    sizes = sorted({size for group in groups.values() for size in group})
    if not sizes:
        return False
    bins = size_bins(sizes)
    bars = {name: [_merged(group, one) for one in bins] for name, group in groups.items()}
    names = [str(low) if low == high else f"{low}–{high}" for low, high in bins]
    with picture(path, _width(len(bins), len(bars)), 3.4) as figure:
        panel = figure.subplots()
        _bars(panel, names, bars, unit, list(sets), divide=3 if forces else 1)
        title = (
            "Forces by size, with the number of atoms" if forces else "Energy by size, with the number of structures"
        )
        tidy(panel, title, "atoms in the structure", f"{'force' if forces else 'energy'} MAE / {unit.unit}", grid="y")
        if len(bars) > 1:
            legend(panel, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True


def size_bins(sizes: list[int]) -> list[tuple[int, int]]:
    """Numbers of atoms as ranges, both ends included: each for itself, or a dozen of one width; none is empty."""
    if len(sizes) <= MOST_BARS:
        return [(size, size) for size in sizes]
    edges = np.ceil(np.linspace(sizes[0], sizes[-1] + 1, MOST_BARS + 1)).astype(int).tolist()
    ranges = [(low, high - 1) for low, high in itertools.pairwise(edges)]
    return [one for one in ranges if any(one[0] <= size <= one[1] for size in sizes)]


def _merged(groups: Mapping[int, Moments], sizes: tuple[int, int]) -> Moments:
    merged = Moments()
    for size, moments in groups.items():
        if sizes[0] <= size <= sizes[1]:
            merged.merge(moments)
    return merged


def _width(num_groups: int, num_sets: int) -> float:
    return min(max(4.6, 1.6 + 0.36 * num_groups * max(num_sets, 1.6)), 16.0)


def _bars(
    panel: Axes, names: list[str], bars: Mapping[str, list[Moments]], unit: Scale, sets: list[str], *, divide: int
) -> None:
    """Groups of bars; divide: of the counts written above them."""
    colour, width = colours(sets), 0.8 / len(bars)
    highest = 0.0
    for place, (name, row) in enumerate(bars.items()):
        x = np.arange(len(names)) + (place - (len(bars) - 1) / 2) * width
        heights = np.nan_to_num([moments.mae * unit.factor for moments in row])
        highest = max(highest, float(heights.max()))
        panel.bar(x, heights, 0.92 * width, color=colour[name], label=name)
        for at, height, moments in zip(x, heights, row, strict=True):
            if moments.count:
                text, turned = f"{moments.count // divide:,}", 90 * (len(bars) > 1)
                settings: dict[str, Any] = dict(ha="center", va="bottom", fontsize=6.5, color=INK, rotation=turned)
                panel.annotate(text, (at, height), (0, 2), textcoords="offset points", **settings)
    panel.set_xticks(np.arange(len(names)), names)
    panel.set_ylim(0, 1.22 * highest or 1.0)
    panel.set_xlim(-0.7, len(names) - 0.3)


def error_histogram(path: Path, errors: Mapping[str, Floats], unit: Scale, title: str) -> bool:
    """Histogram of errors of the sets, in torchmdx's own unit. False, without a file, if there are none."""
    found = {name: values * unit.factor for name, values in errors.items() if len(values)}
    if not found:
        return False
    sizes = [np.abs(values) for values in found.values()]
    reach = max(min(float(size.max()), 3 * float(np.quantile(size, 0.95))) for size in sizes) * 1.05 or 1.0
    number_of_bins = 2 * int(np.clip(1.5 * min(len(size) for size in sizes) ** (1 / 3), 5, 40)) + 1
    edges = np.linspace(-reach, reach, number_of_bins + 1)
    with picture(path, 5.4, 3.4) as figure:
        panel = figure.subplots()
        shares = []
        for name, values in found.items():
            # Errors beyond the range are counted at its ends.
            counts = np.histogram(np.clip(values, -reach, reach), edges)[0]
            shares += (100 * counts / len(values)).tolist()
            panel.stairs(100 * counts / len(values), edges, color=colours(errors)[name], label=name, linewidth=1.3)
        panel.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        log_axis(panel, shares)
        panel.set_xlim(-reach, reach)
        tidy(panel, title, f"predicted − label / {unit.unit}", "share of all / %")
        if len(found) > 1:
            legend(panel, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return True
