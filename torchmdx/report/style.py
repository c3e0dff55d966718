"""Style of the pictures of a report: palette, sizes, PNG files that are written atomically."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchmdx.runtime.files import write_whole
from torchmdx.runtime.optional_package import require_package

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that colour-blind people can distinguish (Okabe and Ito).
KNOWN = {"train": "#0072B2", "validation": "#E69F00", "test": "#009E73"}
PALETTE = (*KNOWN.values(), "#CC79A7", "#56B4E9", "#D55E00", "#999933", "#882255")
INK, FAINT = "#333333", "#999999"
DOTS_AN_INCH = 160


def colours(names: Iterable[str]) -> dict[str, str]:
    """A colour for each set; train, validation and test have fixed ones."""
    names = list(names)
    found = {name: KNOWN[name] for name in names if name in KNOWN}
    free = [colour for colour in PALETTE if colour not in found.values()]
    others = [name for name in names if name not in KNOWN]
    return found | {name: free[place % len(free)] for place, name in enumerate(others)}


def require_matplotlib() -> None:
    """Raises ImportError without matplotlib."""
    require_package("matplotlib", "pictures need", "train")


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure, width and height in inches, written to `path`, PNG or SVG, at the end.

    Raises ImportError without matplotlib.
    """
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DOTS_AN_INCH, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    yield figure
    image = io.BytesIO()
    figure.savefig(image, format="svg" if path.suffix.lower() == ".svg" else "png")
    write_whole(path, image.getvalue())


def tidy(panel: Axes, title: str = "", x: str = "", y: str = "", *, grid: str = "both") -> None:
    """Sets labels, a faint grid, and no frame at the top and right."""
    if title:
        panel.set_title(title, fontsize=10, color=INK, loc="left")
    panel.set_xlabel(x, fontsize=9, color=INK)
    panel.set_ylabel(y, fontsize=9, color=INK)
    panel.tick_params(labelsize=8, colors=INK, which="both")
    panel.grid(axis=grid, color="#e4e4e4", linewidth=0.7)  # type: ignore[arg-type]
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        panel.spines[side].set_color(FAINT)


def log_axis(panel: Axes, values: Sequence[float]) -> None:
    """Makes the vertical axis logarithmic, with plain numbers, if the values span more than a factor of three."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    positive = [value for value in values if value > 0]
    if not positive or max(positive) < 3 * min(positive):
        return
    panel.set_yscale("log")
    near = max(positive) < 300 * min(positive)
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend(panel: Axes, **settings: Any) -> None:
    """Adds a small legend without a frame, if anything has a label."""
    if panel.get_legend_handles_labels()[1]:
        panel.legend(frameon=False, fontsize=8, labelcolor=INK, **settings)
