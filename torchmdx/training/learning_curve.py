"""Learning curves: trainings with more and more frames, and the errors of all on the same test set."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.store import Store
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.scales import MILLI_EV
from torchmdx.report.style import require_matplotlib
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.data_section import DataSection
from torchmdx.training.loop import BEST
from torchmdx.training.open_data import open_data, say
from torchmdx.training.restore import is_finished
from torchmdx.training.run import train

FILE, PICTURE = "learning_curve.csv", "learning_curve.png"
COLUMNS = ("frames", "energy_mae", "energy_rmse", "forces_mae", "forces_rmse")
UNITS = {"energy": "meV/atom", "forces": "meV/Å"}


def sizes_of(text: str) -> list[int]:
    """Numbers of training frames from "100,300,1000". Raises ValueError for anything but increasing numbers."""
    words = [word.strip() for word in text.split(",")]
    sizes = [int(word) if word.isdecimal() else 0 for word in words]
    if len(sizes) < 2 or sizes[0] < 1 or sizes != sorted(set(sizes)):
        raise ValueError(f"--learning-curve needs increasing numbers of frames, as 100,300,1000, got {text!r}")
    return sizes


def learning_curve(config: Config, sizes: Sequence[int]) -> int:
    """Trains with each number of frames in output.directory/train-N, and writes a table and a picture next to them.

    All trainings have the same validation and test frames, and smaller ones train a part of the frames of larger ones.
    Those that have finished are kept, and those that were stopped continue. Returns the exit status of `train`.
    """
    directory = Path(config.output.directory)
    if config.data.part_files() or config.data.heads or config.data.split is not None or config.training.ensemble > 1:
        raise ValueError(
            "a learning curve draws its parts from data.path and trains one potential: data.heads and data.split must "
            "not be given, parts must be sizes, and training.ensemble must be 1"
        )
    require_matplotlib()  # before what may take days
    largest = config.data.model_copy(update={"train": sizes[-1]})
    store, parts = open_data(largest, directory)
    part = next((name for name in ("test", "validation") if len(parts[name])), None)
    if part is None:
        raise ValueError("a learning curve needs test or validation frames, got neither")
    rows = []
    for size in sizes:
        place = directory / f"train-{size}"
        status = _train(config, store, size, place)
        if status:
            return status
        rows.append((size, *_errors(place, store, parts[part])))
    _write(directory, rows)
    _plot(directory / PICTURE, rows, part)
    print("\n".join(lines(rows, part)))
    print(directory / PICTURE)
    return 0


def _train(config: Config, store: Store, size: int, place: Path) -> int:
    kept = ("validation", "test", "split_by", "seed", "references", "scale", "checks")
    data = DataSection(path=str(store.path), train=size, **{name: getattr(config.data, name) for name in kept})
    output = config.output.model_copy(update={"directory": str(place)})
    one = config.model_copy(update={"data": data, "output": output})
    state = is_finished(place)
    if state:
        say(f"{place}: finished before")
        return 0
    return train(one, resume=state is not None)


def _errors(place: Path, store: Store, indices: np.ndarray) -> tuple[float, ...]:
    potential = load_one(place / BEST)
    found = evaluate_sets(potential, {"": (store, indices)}, device="cpu", dtype=torch.float32).errors[""]
    scales = (MILLI_EV.energy.factor, MILLI_EV.forces.factor)
    moments = zip((found.energy, found.forces), scales, strict=True)
    return tuple(value * factor for one, factor in moments for value in (one.mae, one.rmse))


def lines(rows: Sequence[tuple[float, ...]], part: str) -> list[str]:
    """The table as text, with the exponents of the errors as powers of the number of frames."""
    head = ["frames", *(f"{kind} {what}" for kind in UNITS for what in ("MAE", "RMSE"))]
    cells = [head, *([f"{row[0]:,.0f}", *map(number, row[1:])] for row in rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    text = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]
    powers = ", ".join(f"{kind} {_exponent(rows, 2 + 2 * k):+.2f}" for k, kind in enumerate(UNITS))
    units = ", ".join(f"{kind} in {unit}" for kind, unit in UNITS.items())
    return [f"errors of {part}: {units}", *text, f"RMSE as a power of the number of frames: {powers}"]


def _exponent(rows: Sequence[tuple[float, ...]], column: int) -> float:
    frames, errors = np.log([row[0] for row in rows]), np.log([row[column] for row in rows])
    return float(np.polyfit(frames, errors, 1)[0]) if np.isfinite(errors).all() else float("nan")


def _write(directory: Path, rows: Sequence[tuple[float, ...]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([int(row[0]), *(f"{value:.6g}" for value in row[1:])] for row in rows)
    write_whole(directory / FILE, text.getvalue().encode())


def _plot(path: Path, rows: Sequence[tuple[float, ...]], part: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    for k, (kind, unit) in enumerate(UNITS.items()):
        for column, what in ((1 + 2 * k, "MAE"), (2 + 2 * k, "RMSE")):
            axes[k].loglog([row[0] for row in rows], [row[column] for row in rows], "o-", label=what)
        axes[k].set(xlabel="training frames", ylabel=f"{kind}, {part} / {unit}")
        axes[k].legend()
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    write_whole(path, content.getvalue())
