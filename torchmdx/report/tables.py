"""The tables of a report, as rows of text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchmdx.report.composition import symbol
from torchmdx.report.errors import Errors, Worst
from torchmdx.report.moments import Moments
from torchmdx.report.scales import Scale, Scales
from torchmdx.report.uncertainty import SpreadAndError
from torchmdx.report.verdict import percent
from torchmdx.runtime.wording import number, signed

Origin = Callable[[int], tuple[str, int]]  # file and frame of an index in the store


@dataclass(frozen=True)
class Table:
    """head and rows of text; columns are numbers but for those in `words`. A row of one cell is a heading."""

    head: list[str]
    rows: list[list[str]]
    words: tuple[int, ...] = (0,)


def summary(sets: Mapping[str, Errors], scales: Scales) -> Table:
    """All errors of all sets, the sets side by side."""
    all_errors = list(sets.values())
    rows = [
        ["structures", *(f"{errors.num_frames:,}" for errors in all_errors)],
        ["atoms", *(f"{errors.num_atoms:,}" for errors in all_errors)],
    ]
    largest = ("MAE", "RMSE", "max", "count")
    first, rest = ("MAE", "median", "RMSE", "max"), ("labels' deviation", "RMSE / labels' deviation", "count")
    kinds: list[tuple[str, str, Scale, list[Moments], tuple[str, ...]]] = [
        ("Energy per atom", "energy", scales.energy, [e.energy for e in all_errors], (*first, "mean", *rest)),
        ("Energy per atom, mean error removed", "", scales.energy, [e.shifted() for e in all_errors], ("MAE", "RMSE")),
        ("Energy of a structure", "", scales.total, [e.total for e in all_errors], ("MAE", "RMSE", "max")),
        (
            "Energy of a structure, mean error removed",
            "",
            scales.total,
            [e.shifted(total=True) for e in all_errors],
            ("MAE", "RMSE"),
        ),
        ("Forces, by component", "forces", scales.forces, [e.forces for e in all_errors], (*first, *rest)),
        ("Stress, by component", "stress", scales.pressure, [e.stress for e in all_errors], (*first, *rest)),
        ("Stress, by component", "stress", scales.stress, [e.stress for e in all_errors], first),
        ("Partial charges", "", scales.charges, [e.charges for e in all_errors], largest),
        ("Dipole moments, by component", "", scales.dipole, [e.dipole for e in all_errors], largest),
    ]
    for what, kind, scale, moments, names in kinds:
        if any(m.count for m in moments):
            rows.append([f"{what} / {scale.unit}"])
            for name in names:
                cells = [_cell(e, kind, m, name, scale) for e, m in zip(all_errors, moments, strict=True)]
                rows.append([name, *cells])
    rows += _spreads(all_errors, scales) + _uncertainties(all_errors, scales)
    return Table(["", *sets], rows)


def _cell(errors: Errors, kind: str, moments: Moments, name: str, scale: Scale) -> str:
    """A number of a kind of errors by the name of its row."""
    if name == "median":
        return number(errors.median(kind) * scale.factor)
    if name == "labels' deviation":
        return number(errors.deviation(kind) * scale.factor)
    if name == "RMSE / labels' deviation":
        return percent(errors.relative(kind))
    return _value(moments, name, scale)


def _spreads(all_errors: Sequence[Errors], scales: Scales) -> list[list[str]]:
    """Spread of an ensemble, and how it relates to the errors."""
    rows = []
    for what, scale, found in (
        ("energy per atom", scales.energy, [errors.energy_spread for errors in all_errors]),
        ("force on an atom", scales.forces, [errors.forces_spread for errors in all_errors]),
    ):
        if any(one.count for one in found):
            rows.append([f"Spread of the ensemble, {what} / {scale.unit}"])
            rows += _compared(found, "spread", scale, ("correlation", "rank_correlation"))
            if what.startswith("energy"):  # errors of forces are lengths of vectors
                rows += _correlations(found, ("miscalibration",))
    return rows


def _uncertainties(all_errors: Sequence[Errors], scales: Scales) -> list[list[str]]:
    """Uncertainty of a single potential, and how it relates to the errors."""
    rows, found = [], [errors.energy_uncertainty for errors in all_errors]
    if any(one.count for one in found):
        rows.append([f"Uncertainty, energy per atom / {scales.energy.unit}"])
        rows += _compared(found, "uncertainty", scales.energy, ("rank_correlation", "miscalibration"))
    atoms = [errors.atoms_uncertainty for errors in all_errors]
    if any(one.count for one in atoms):
        rows.append(["Uncertainty of the energies of atoms"])
        rows += _correlations(atoms, ("rank_correlation",), " with force errors")
    return rows


def _compared(found: Sequence[SpreadAndError], noun: str, scale: Scale, names: Sequence[str]) -> list[list[str]]:
    """The sizes of spreads and errors, and how they relate."""
    sizes = ((f"RMS {noun}", [one.rms_spread for one in found]), ("RMS error", [one.rms_error for one in found]))
    rows = [[name, *(number(value * scale.factor) for value in values)] for name, values in sizes]
    return rows + _correlations(found, names)


def _correlations(found: Sequence[SpreadAndError], names: Sequence[str], more: str = "") -> list[list[str]]:
    """A row for each of these attributes."""
    titles = {"miscalibration": "miscalibration area"}
    values = {name: [getattr(one, name) for one in found] for name in names}
    return [
        [titles.get(name, name.replace("_", " ")) + more, *("–" if math.isnan(one) else f"{one:.2f}" for one in row)]
        for name, row in values.items()
    ]


def by_element(sets: Mapping[str, Errors], scales: Scales) -> Table:
    """Force errors of each element."""
    groups = {name: {symbol(z): m for z, m in errors.forces_by_element.of.items()} for name, errors in sets.items()}
    elements = sorted({z for errors in sets.values() for z in errors.forces_by_element.of})
    return _grouped("element", [symbol(z) for z in elements], groups, scales.forces, "atoms")


def by_formula(sets: Mapping[str, Errors], scales: Scales) -> dict[str, Table]:
    """Energy and force errors of each formula, by title; empty if there is one formula, or too many."""
    found = {}
    for title, attribute, scale, counted in (
        ("Energy per atom by formula", "energy_by_formula", scales.energy, "structures"),
        ("Forces by formula", "forces_by_formula", scales.forces, "atoms"),
    ):
        groups = {name: getattr(errors, attribute) for name, errors in sets.items()}
        if None in groups.values():
            return {}
        names = sorted({name for group in groups.values() for name, moments in group.items() if moments.count})
        if len(names) > 1:
            found[f"{title} / {scale.unit}"] = _grouped("formula", names, groups, scale, counted)
    return found


def _grouped(
    what: str, keys: Sequence[str], groups: Mapping[str, Mapping[str, Moments]], scale: Scale, counted: str
) -> Table:
    """A row for each key and set in which it occurs."""
    several, divide = len(groups) > 1, 3 if counted == "atoms" else 1
    rows = []
    for key in keys:
        shown = key
        for name, group in groups.items():
            moments = group.get(key, Moments())
            if moments.count:
                numbers = [_value(moments, kind, scale) for kind in ("MAE", "RMSE", "max")]
                rows.append([shown, *[name] * several, *numbers, f"{moments.count // divide:,}"])
                shown = ""
    return Table([what, *["set"] * several, "MAE", "RMSE", "max", counted], rows, words=(0, 1)[: 1 + several])


def worst_energies(found: Sequence[Worst], origin: Origin, scales: Scales) -> Table:
    """The structures with the largest energy errors."""
    errors = [(one.predicted - one.label) / one.num_atoms * scales.energy.factor for one in found]
    return _worst(found, errors, origin, scales.energy, scales.label_total, "atoms", [one.num_atoms for one in found])


def worst_forces(found: Sequence[Worst], origin: Origin, scales: Scales) -> Table:
    """The structures with the largest errors of a force component, and its atom."""
    errors = [(one.predicted - one.label) * scales.forces.factor for one in found]
    return _worst(found, errors, origin, scales.forces, scales.label_forces, "atom", [one.atom for one in found])


def _worst(
    found: Sequence[Worst],
    errors: Sequence[float],
    origin: Origin,
    unit: Scale,
    label: Scale,
    what: str,
    numbers: Sequence[int | None],
) -> Table:
    rows = []
    for one, error, count in zip(found, errors, numbers, strict=True):
        source, frame = origin(one.index)
        values = [f"{value * label.factor:,.3f}" for value in (one.label, one.predicted)]
        rows.append([one.formula, str(frame), f"{count:,}", signed(error), *values, source])
    head = ["formula", "frame", what, f"error / {unit.unit}", f"label / {label.unit}", "predicted", "file"]
    return Table(head, rows, words=(0, 6))


def pairs(rows: Mapping[str, Any]) -> Table:
    """A table of names and values, without a head."""
    return Table([], [[name, str(value)] for name, value in rows.items()], words=(0, 1))


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = "none" if value is None else value
    return found


def _value(moments: Moments, name: str, scale: Scale) -> str:
    if name == "count":
        return f"{moments.count:,}"
    value = getattr(moments, name.lower()) * scale.factor
    return signed(value) if name == "mean" else number(value)
