"""Plot of a log against time: energies and temperature; volume if it changes; spread or uncertainty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchmdx.dynamics.log import read_log

DOUBTS = {
    "force_spread_eV_per_A": "largest force\nspread / eV/Å",
    "atom_uncertainty_eV": "largest uncertainty\nof an atom / eV",
}
MOST_POINTS = 5000  # more than the width of the figure in pixels


def plot_log(log: Path, picture: Path, title: str, temperature: float | None) -> None:
    """Writes a PNG. temperature: the thermostat's, K, or None. Raises ImportError without matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = read_log(log)
    stride = -(-max(len(columns["step"]), 1) // MOST_POINTS)
    columns = {name: values[::stride] for name, values in columns.items()}
    moves = "volume_A3" in columns and len(set(columns["volume_A3"])) > 1
    doubt = next((name for name in DOUBTS if name in columns), None)
    heights = [1.4, 1.0] + [1.0] * (moves + (doubt is not None))
    figure = Figure(figsize=(7.0, 2.3 * sum(heights)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    figure.suptitle(title, fontsize=11)
    _energies(panels[0], columns)
    _temperature(panels[1], columns, temperature)
    if moves:
        panels[2].plot(columns["time_ps"], columns["volume_A3"], color="tab:green", **_style(columns))
        panels[2].set_ylabel("volume / Å³")
    if doubt is not None:
        panels[-1].plot(columns["time_ps"], columns[doubt], color="tab:purple", **_style(columns))
        panels[-1].set_ylabel(DOUBTS[doubt])
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.ticklabel_format(axis="y", useOffset=False)
    panels[-1].set_xlabel("time / ps")
    figure.align_ylabels()
    figure.savefig(picture, format="png")


def _energies(panel: Any, columns: dict[str, Any]) -> None:
    start = columns["total_eV"][0] if len(columns["total_eV"]) else 0.0
    for name, colour in (("potential", "tab:blue"), ("total", "black")):
        panel.plot(columns["time_ps"], columns[f"{name}_eV"] - start, color=colour, label=name, **_style(columns))
    panel.set_ylabel("energy - E₀ / eV")
    panel.set_title(f"E₀ = {start:.4f} eV, the total energy at the start", fontsize=9, loc="left")
    panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _temperature(panel: Any, columns: dict[str, Any], target: float | None) -> None:
    panel.plot(columns["time_ps"], columns["temperature_K"], color="tab:red", **_style(columns))
    if target is not None:
        panel.axhline(target, color="black", linestyle="--", linewidth=1, label=f"{target:g} K")
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    panel.set_ylabel("temperature / K")


def _style(columns: dict[str, Any]) -> dict[str, Any]:
    """Style of a line; with markers in a short log, where a line may have a single point."""
    return {"linewidth": 1.0, "marker": "." if len(columns["step"]) < 30 else None}
