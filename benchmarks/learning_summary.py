"""Means over seeds, and labels at equal errors, of what benchmarks/learning.py has measured."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Row = dict[str, Any]
MEASURED, TAIL = "member_force_rmse_meV", "tail_meV"
BASELINE = "random"


def summarized(rows: list[Row]) -> list[Row]:
    """The rows, and after them those of means and of gains."""
    return [*rows, *means(rows), *gains(rows)]


def means(rows: list[Row]) -> list[Row]:
    """Means over seeds of each round that all seeds of a strategy have completed; seed is their number."""
    found = []
    for key, own in _grouped(rows, ("kind", "case", "strategy", "round", "set")).items():
        kind, case, strategy, number, name = key
        seeds = {row["seed"] for row in rows if (row["case"], row["strategy"]) == (case, strategy)}
        if len(own) < len(seeds):
            continue
        row = {"kind": f"mean {kind}", "case": case, "strategy": strategy, "seed": len(own), "round": number}
        row |= {"set": name, "labels": _mean(own, "labels")}
        if kind == "barrier":
            known = [one for one in own if one["barrier"] is not None]
            errors = [one["barrier"] - one["reference_barrier"] for one in known]
            row |= {"barriers": len(known), "reference_meV": 1e3 * own[0]["reference_barrier"]}
            row |= {"rms_error_meV": 1e3 * float(np.sqrt(np.square(errors).mean()))} if known else {}
            row |= {"path_rmse_meV": 1e3 * float(np.sqrt(np.mean([_on_path(one) ** 2 for one in own])))}
        else:
            names = (MEASURED, TAIL, "force_rmse_meV", "member_energy_rmse_meV", "energy_rmse_meV", "rank")
            row |= {one: _mean(own, one) for one in names if all(x.get(one) is not None for x in own)}
            row |= {"least": min(x[MEASURED] for x in own), "most": max(x[MEASURED] for x in own)}
        found.append(row)
    return found


def gains(rows: list[Row], measured: str = MEASURED) -> list[Row]:
    """Of each strategy the labels for the lowest error that random selection reaches.

    share: of the labels with which random selection reaches it; 0.5 is half the labels for the same error. None where
    it is not reached; strategies with fewer labels in all are left out. least_share, most_share: of curves of single
    seeds, for the same error; 1 stands for a curve that does not reach it with fewer labels.

    Args:
        measured: The error that is compared. The kind of the rows is "gain", with another than MEASURED "gain, NAME".
    """
    found = []
    averages = [row for row in means(rows) if row["kind"] == "mean curve" and measured in row]
    curves = _curves(averages, ("case", "strategy", "set"), measured)
    seeds = _curves([row for row in rows if measured in row], ("case", "strategy", "set", "seed"), measured)
    for (case, strategy, name), curve in curves.items():
        other = curves.get((case, BASELINE, name))
        if strategy == BASELINE or other is None:
            continue
        error, last = min((error, labels) for labels, error in other.items())
        if max(curve) < last:
            continue
        share = None if (needed := labels_for(curve, error)) is None else needed / last
        each = [labels_for(own, error) or last for key, own in seeds.items() if key[:3] == (case, strategy, name)]
        shares = [min(1.0, one / last) for one in each]
        row = {"kind": "gain" if measured == MEASURED else f"gain, {measured}"}
        row |= {"case": case, "strategy": strategy, "seed": 0, "round": 0, "set": name, "error_meV": error}
        row |= {"random_labels": last, "labels": needed, "share": share}
        found.append(row | {"least_share": min(shares), "most_share": max(shares)})
    return found


def halves(rows: list[Row], measured: str = MEASURED) -> list[Row]:
    """Of each strategy its error with n labels, next to that of a random selection with 2 n.

    Where the first is smaller, the strategy takes less than half the labels for the same error.

    error_meV, random_meV: means over seeds; most, random_least: the largest of the strategy, the smallest of the random
    selection. In the rows labels is n, and the kind "half", with another than MEASURED "half, NAME".
    """
    found = []
    values = _grouped([row for row in rows if measured in row], ("case", "strategy", "set", "labels"))
    for (case, strategy, name, labels), own in values.items():
        other = values.get((case, BASELINE, name, 2 * labels))
        if strategy == BASELINE or other is None:
            continue
        row = {"kind": "half" if measured == MEASURED else f"half, {measured}", "case": case, "strategy": strategy}
        row |= {"seed": len(own), "round": own[0]["round"], "set": name, "labels": labels}
        row |= {"error_meV": _mean(own, measured), "most": max(one[measured] for one in own)}
        row |= {"random_labels": 2 * labels, "random_meV": _mean(other, measured)}
        found.append(row | {"random_least": min(one[measured] for one in other), "random_seeds": len(other)})
    return found


def _curves(rows: list[Row], keys: tuple[str, ...], measured: str) -> dict[tuple[Any, ...], dict[float, float]]:
    """Errors by labels of all curves."""
    return {key: {row["labels"]: row[measured] for row in own} for key, own in _grouped(rows, keys).items()}


def labels_for(curve: dict[float, float], error: float) -> float | None:
    """Labels at which an error is reached, by interpolation of logarithms; None if it is not.

    curve: errors by labels.
    """
    points = sorted(curve.items())
    if points[0][1] <= error:
        return float(points[0][0])
    for (n0, e0), (n1, e1) in itertools.pairwise(points):
        if e1 <= error < e0:
            share = np.log(e0 / error) / np.log(e0 / e1)
            return float(np.exp((1 - share) * np.log(n0) + share * np.log(n1)))
    return None


def _on_path(row: Row) -> float:
    """Largest error of the energies of the structures of the reference, eV."""
    return float(np.abs(np.subtract(row["on_reference_path"], row["reference_profile"])).max())


def _mean(rows: list[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _grouped(rows: list[Row], keys: tuple[str, ...]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found
