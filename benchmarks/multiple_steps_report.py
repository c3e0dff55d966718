"""Compares the runs of `benchmarks.multiple_steps_physics` with single steps.

Those of 2 fs with heavy hydrogens, and those of the same inner step and masses.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import observables
from benchmarks.drift import slopes
from benchmarks.multiple_steps_runs import LONGEST, PAIR_EVERY, TEMPERATURE, Setting
from torchmdx.report.history import EPOCHS, read_table
from torchmdx.structures.units import BOLTZMANN

# Its distribution of positions is that of any masses, and harmonic vibrations are exact.
REFERENCE = Setting("nvt", 3.0, 2.0, 1)
MOST_ERRORS, MOST_SHARE = 3.0, 0.01  # of differences: in standard errors, and relative
LEAST_P, MOST_DISTANCE = 0.01, 0.01  # of distributions
RATIOS = {"configurational_k": ("squares", "laplacian"), "configurational_h_k": ("squares_h", "laplacian_h")}
SCALE = dict.fromkeys(RATIOS, 1 / BOLTZMANN)

Arrays = dict[str, Any]


def rows_of(name: str, folder: Path, settings: Sequence[Setting]) -> list[dict[str, Any]]:
    """A row of each setting that has a result in the folder."""
    held = {one: _load(folder / f"{name}.{one.name}.npz") for one in settings}
    reference = held.get(REFERENCE)
    rows = []
    for setting, arrays in held.items():
        if arrays is None:
            continue
        row: dict[str, Any] = dict(
            kind=setting.kind, system=name, hydrogen_mass=setting.hydrogen_mass or "normal", step_fs=setting.timestep,
            inner=setting.inner, outer_fs=setting.outer, seconds=_rounded(arrays["seconds"]),
        )  # fmt: skip
        if "potential" in arrays:
            row["potential"] = str(arrays["potential"])
        if "settled_ps" in arrays:
            row["settled_ps"] = _rounded(arrays["settled_ps"])
        if "failed" in arrays:
            rows.append(row | dict(error=str(arrays["failed"])))
            continue
        row |= dict(picoseconds=_rounded(arrays["picoseconds"]), frames=int(arrays["frames"]))
        single = held.get(replace(setting, inner=1)) if setting.inner > 1 else None
        if setting.kind == "nve":
            row |= _drift(arrays)
        elif setting.kind == "npt":
            row |= _pair("density_g_cm3", *observables.mean_and_error(arrays["density"]), 5)
        else:
            row |= _averages(arrays)
            if reference is not None and "failed" not in reference:
                row |= compared(arrays, reference)
        if single is not None and "failed" not in single and setting.kind != "nve":
            row |= against_single(arrays, single)
        rows.append(row)
    return rows


def distillations(folder: Path) -> list[dict[str, Any]]:
    """A row of each fast model that `torchmdx distill` made in the folder, NAME.distillation.

    With the tests of the fast model; if it was stopped during the training, with the epochs so far and the error of
    forces on frames for validation, eV/Å, of the best weights.
    """
    rows = []
    for path in sorted(folder.glob("*.distillation/distillation.json")):
        found = json.loads(path.read_text())
        potential = re.sub(r"\.[a-z]+$", "", found["asked"]["potential"]["name"])
        row = dict(kind="distillation", name=path.parent.stem, potential=potential)
        log = path.parent / "training" / EPOCHS
        table = read_table(log) if log.exists() else {}
        if "result" in found["chosen"]:
            result = found["chosen"]["result"]
            rows.append(row | {name: value for name, value in result.items() if name not in ("page", "kind", "name")})
        elif "validation_loss" in table:
            rmse = table["validation_forces_rmse"][np.nanargmin(table["validation_loss"])] / 1000
            rows.append(row | dict(epochs=int(table["epoch"][-1]), validation_force_rmse=_rounded(rmse, 3)))
    return rows


def _load(path: Path) -> Arrays | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as held:
        return {name: held[name] for name in held.files}


def _rounded(value: Any, digits: int = 4) -> float:
    value = float(value)
    return float(f"{value:.{digits}g}")


def _pair(name: str, value: float, error: float, digits: int = 6) -> dict[str, float]:
    return {name: _rounded(value, digits), f"{name}_error": _rounded(error, 2)}


def against_single(arrays: Arrays, single: Arrays) -> dict[str, Any]:
    """What differs from single steps with the same inner step and masses; differences in percent, with errors."""
    row, beyond = {}, []
    if "energy" in arrays:
        found = compared(arrays, single)
        beyond = [found["beyond"]] if found["beyond"] else []
        row = {
            f"{name}_to_single": value
            for name, value in found.items()
            if name.startswith("variance_") or name.removeprefix("p_") == "pairs"
        }
    for name in ("density", "diffusion"):
        if name in arrays and name in single and np.isfinite([arrays[name].sum(), single[name].sum()]).all():
            (value, error), (other, of_other) = (observables.mean_and_error(each[name]) for each in (arrays, single))
            difference, combined = value - other, math.hypot(error, of_other)
            if abs(difference) > MOST_ERRORS * combined:
                beyond.append(name)
            row[f"{name}_percent_to_single"] = _rounded(100 * difference / other, 3)
            row[f"{name}_percent_error_to_single"] = _rounded(100 * combined / other, 2)
    return row | dict(agrees_with_single=not beyond, beyond_single=", ".join(beyond))


def scalars(arrays: Arrays) -> dict[str, tuple[float, float]]:
    """Averages with errors, by name: those that an outer step may change."""
    found = {"energy_ev_atom": observables.mean_and_error(arrays["energy"])}
    for name, (above, below) in RATIOS.items():
        value, error = observables.ratio_and_error(arrays[above], arrays[below])
        found[name] = (value * SCALE[name], error * SCALE[name])
    for key in arrays:
        if key.startswith(("variance ", "mean ")):
            found[key] = observables.mean_and_error(arrays[key])
    return found


def _averages(arrays: Arrays) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, (value, error) in scalars(arrays).items():
        row |= _pair(name.replace(" ", "_"), value, error, 9 if name == "energy_ev_atom" else 5)
    for name, key in (("kinetic_k", "temperature"), ("kinetic_h_k", "temperature_h")):
        row |= _pair(name, *observables.mean_and_error(arrays[key]), 5)
    if "diffusion" in arrays and np.isfinite(arrays["diffusion"]).all():
        row |= _pair("diffusion_1e5_cm2_s", *observables.mean_and_error(arrays["diffusion"]), 4)
    if "counts pairs" in arrays:
        row |= _first_peak(arrays)
    for name in ("energy_time", "psi_time"):
        if name in arrays:
            row[f"{name}_ps"] = _rounded(arrays[name], 3)
    row |= dict(largest_difference_ev_a=_rounded(arrays["largest_difference"], 3))
    return row | dict(frames_over_limit=_rounded(arrays["over_limit"], 3))


def _first_peak(arrays: Arrays) -> dict[str, float]:
    """Height of g(r) of oxygens, by the volume of `volume`, and the distance of its maximum."""
    edge = float(np.mean(arrays["volume"])) ** (1 / 3)
    frames = math.ceil(int(arrays["frames"]) / PAIR_EVERY)
    found = observables.radial_distribution(arrays["counts pairs"], 216, frames, edge, LONGEST)
    place = int(found.mean(0).argmax())
    row = _pair("rdf_peak", *observables.mean_and_error(found[:, place]), 4)
    return row | {"rdf_peak_a": _rounded((place + 0.5) * LONGEST / found.shape[1])}


def compared(arrays: Arrays, reference: Arrays) -> dict[str, Any]:
    """What differs from the reference beyond errors and a percent; distances of distributions."""
    beyond, row = [], {}
    own, other = scalars(arrays), scalars(reference)
    for name, (value, error) in own.items():
        if name.startswith("mean ") or name not in other:
            continue
        least = MOST_SHARE * (1.5 * BOLTZMANN * TEMPERATURE if name == "energy_ev_atom" else other[name][0])
        difference, combined = value - other[name][0], math.hypot(error, other[name][1])
        if abs(difference) > max(MOST_ERRORS * combined, least):
            beyond.append(name)
        if name.startswith("variance "):
            row[name.replace(" ", "_") + "_percent"] = _rounded(100 * difference / other[name][0], 3)
            row[name.replace(" ", "_") + "_percent_error"] = _rounded(100 * combined / other[name][0], 2)
    for key in arrays:
        if key.startswith("counts ") and key in reference and arrays is not reference:
            found = observables.distance(arrays[key], reference[key])
            name = key.removeprefix("counts ").replace(" ", "_")
            row |= {
                f"distance_{name}": _rounded(found["distance"], 3),
                f"expected_{name}": _rounded(found["expected"], 3),
            }
            row[f"p_{name}"] = _rounded(found["p"], 3)
            if found["p"] < LEAST_P and found["distance"] > MOST_DISTANCE:
                beyond.append(name)
    return row | dict(agrees=not beyond, beyond=", ".join(beyond))


def _drift(arrays: Arrays) -> dict[str, Any]:
    """Slope of the energy, with its error over replicas, and its fluctuation, per atom."""
    times, energies = arrays["times"], arrays["energies"]
    found, error = slopes(times, energies)
    around = energies - energies.mean(0) - np.outer(times - times.mean(), found)
    return {
        **_pair("drift_ev_atom_ps", float(found.mean()), error, 3),
        "fluctuation_ev_atom": _rounded(np.sqrt((around**2).mean()), 3),
    }
