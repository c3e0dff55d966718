"""What a distillation says at its end: a page like that of a report, and one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.datasets.splits import Split
from torchmdx.datasets.store import Store
from torchmdx.models.origin import Origin
from torchmdx.models.potential import Potential
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.report.page import PageSection
from torchmdx.report.tables import Table
from torchmdx.report.verdict import percent
from torchmdx.report.write import write_evaluation
from torchmdx.runtime.wording import number
from torchmdx.training.distillation import outer_steps
from torchmdx.training.distillation.fit import FOLDER
from torchmdx.training.distillation.outer_steps import HEAVY, MOST_DRIFT, MOST_RATIO, Speed, Trial
from torchmdx.training.distillation.settings import DistillRecord

REPORT = "report"
NANOSECONDS_A_DAY = 86_400 * 1e-6  # of 1 fs a second
ABOUT = (
    "Runs at constant energy from unseen frames, at the temperature of the dynamics. Inner steps have the fast model's "
    "forces, outer steps the difference to the potential's. Stable: the energy drifts by at most "
    f"{MOST_DRIFT:g} eV/atom/ps within its standard error, and deviates by at most {MOST_RATIO:g} times as much as "
    "with single steps, which are shown for comparison. With a thermostat, check averages at the outer step that you "
    "use."
)


def write(
    folder: Path,
    fast: Potential,
    origin: Origin,
    data: tuple[Store, Split],
    found: Sequence[Trial],
    speed: Speed,
    record: DistillRecord,
) -> dict[str, Any]:
    """Writes the page; returns all numbers, as JSON values."""
    store, parts = data
    sets = {"test": (store, parts["test"]), "train": (store, _some(parts["train"], len(parts["test"])))}
    errors = evaluate_sets(fast, sets, device=fast.device, dtype=fast.dtype)
    test = errors.errors["test"]
    steps = PageSection("Multiple time steps", [ABOUT, closing_steps(found, speed)], tables={"": table(found, speed)})
    chosen = PageSection("Choices", tables={"": _choices(record)})
    written = write_evaluation(
        folder / REPORT,
        errors,
        history=folder / FOLDER,
        title=f"{fast.card.name}: a fast model of {origin}",
        more=[steps, chosen],
    )
    return {
        "page": str(written),
        "force_rmse": float(test.forces.rmse),
        "force_rmse_relative": float(test.relative("forces")),
        "seconds_of_a_step": speed.whole,
        "seconds_of_a_fast_step": speed.fast,
        "trials": outer_steps.plain(found),
    }


def _some(indices: np.ndarray, count: int) -> np.ndarray:
    """At most this many, spread over all."""
    return indices[:: max(1, len(indices) // max(count, 1))]


def described(trial: Trial) -> str:
    """A trial in a line."""
    masses = "" if trial.hydrogen is None else f", hydrogens of {trial.hydrogen:g} amu"
    steps = f"{trial.inner:g} fs, single" if trial.count == 1 else f"{trial.inner:g} fs x {trial.count}"
    said = trial.failed or f"energy ±{number(trial.deviation)} meV, drift {_drift(trial)} eV/atom/ps"
    return f"{steps}{masses}: {said} ({trial.length:.2g} ps)"


def _drift(trial: Trial) -> str:
    return f"{trial.drift:.1e} ± {trial.uncertainty:.0e}"


def table(found: Sequence[Trial], speed: Speed) -> Table:
    """All trials, with their expected speed."""
    head = ["hydrogens / amu", "inner step / fs", "inner steps", "outer step / fs", "length / ps"]
    head += ["energy's deviation / meV", "drift / eV/atom/ps", "stable", "ns/day"]
    rows = [
        [
            "as the element" if one.hydrogen is None else f"{one.hydrogen:g}",
            f"{one.inner:g}",
            "single" if one.count == 1 else f"{one.count}",
            f"{one.outer:g}",
            number(one.length),
            "–" if one.failed else number(one.deviation),
            one.failed or _drift(one),
            "yes" if one.is_stable else "no",
            number(_nanoseconds(one, speed)),
        ]
        for one in found
    ]
    return Table(head, rows, words=(0, 2, 7))


def _nanoseconds(one: Trial, speed: Speed) -> float:
    """Expected ns/day."""
    seconds = speed.whole + (one.count * speed.fast if one.count > 1 else 0.0)
    return NANOSECONDS_A_DAY * one.outer / seconds


def closing_steps(found: Sequence[Trial], speed: Speed) -> str:
    """The largest stable outer steps, and the expected speed."""
    said = []
    for hydrogen in (None, HEAVY):
        tried = [one for one in found if one.hydrogen == hydrogen]
        if not tried:
            continue
        masses = "masses of the elements" if hydrogen is None else f"hydrogens of {hydrogen:g} amu"
        best = outer_steps.largest(found, hydrogen)
        if best is None:
            said.append(f"no stable outer step with {masses}")
            continue
        single = tried[0].outer
        gain = speed.gain(best.inner, best.count, single)
        most = " or more" if best is tried[-1] else ""
        said.append(
            f"largest stable outer step {best.outer:g} fs{most} with {masses} ({number(_nanoseconds(best, speed))} "
            f"ns/day, {gain:.2f} times single steps of {single:g} fs)"
        )
    return "; ".join(said)


def closing(result: dict[str, Any], found: Sequence[Trial], speed: Speed) -> str:
    """Force error, cost, outer steps and speed in a line."""
    return (
        f"forces of unseen frames {number(1e3 * result['force_rmse'])} meV/Å RMSE "
        f"({percent(result['force_rmse_relative'])}), cost {speed.ratio:.2f} of the potential's; "
        f"{closing_steps(found, speed)}"
    )


def _choices(record: DistillRecord) -> Table:
    """Everything that was asked for or chosen."""
    rows = [[f"asked: {name}", str(value)] for name, value in record.asked["request"].items() if value is not None]
    model = record["network"]["model"]
    rows += [[f"network: {name}", str(model[name])] for name in ("num_layers", "num_channels", "cutoff", "priors")]
    for name in ("schedule", "frames", "training"):
        rows += [[f"{name}: {key}", str(value)] for key, value in record[name].items()]
    for cost in record["network"]["costs"]:
        row = f"{cost['milliseconds']:.3g} ms, {cost['ratio']:.2f} of the potential's"
        rows.append([f"measured: {cost['layers']}x{cost['channels']}", row])
    return Table(["", ""], rows, words=(0, 1))
