"""Hints from the numbers of a report: wrong units, wrong signs, another zero of energy."""

from __future__ import annotations

from collections.abc import Sequence

from torchmdx.datasets.force_units import mistaken_unit
from torchmdx.report.composition import symbol
from torchmdx.report.errors import Errors
from torchmdx.runtime.wording import number

ALIKE = 0.8  # correlation above which forces are the same quantity
# Correlations of forces and of energies, without what composition explains, that contradict each other.
RIGHT, WRONG = 0.5, -0.3
OFFSET_FROM = 5e-3  # eV/atom


def hints(errors: Errors, references: Sequence[float], trained: Sequence[int] | None = None) -> list[str]:
    """Remarks on the errors, one sentence each.

    Args:
        references: [max_z+1] eV, of the potential.
        trained: Elements that it was trained on, None if unknown.
    """
    return [*_forces(errors), *_agreement(errors), *_energies(errors), *_elements(errors, references, trained)]


def disagreement(forces: float, energies: float) -> str | None:
    """A sentence if predictions correlate with the labels of forces and energies in opposite ways, else None."""
    if forces > RIGHT and energies < WRONG:
        right, wrong = f"forces (correlation {forces:.2f})", f"energies ({energies:.2f})"
    elif energies > RIGHT and forces < WRONG:
        right, wrong = f"energies (correlation {energies:.2f})", f"forces ({forces:.2f})"
    else:
        return None
    return (
        f"Predictions follow the labels of {right} but run against those of {wrong}: energies and forces of the labels "
        "contradict each other. The labels of forces may be gradients of the energy, which have the opposite sign."
    )


def _agreement(errors: Errors) -> list[str]:
    found = disagreement(errors.force_ratio[1], errors.energy_labels.correlation)
    return [] if found is None else [found]


def _forces(errors: Errors) -> list[str]:
    if not errors.forces.count:
        return ["There are no labels of forces."]
    ratio, correlation = errors.force_ratio
    if correlation < -ALIKE and not errors.energy_labels.correlation > RIGHT:
        return [
            f"The labels of the forces have the opposite sign of the predictions (correlation {correlation:.2f}): "
            "they may be gradients of the energy, which have the opposite sign."
        ]
    if not correlation > ALIKE:
        return []
    unit = mistaken_unit(ratio)
    if unit is None:
        return []
    return [
        f"The labels of the forces are {number(ratio)} times the predictions (correlation {correlation:.2f}), as if "
        f"they were {unit}."
    ]


def _energies(errors: Errors) -> list[str]:
    if not errors.energy.count:
        return ["There are no labels of energies."]
    mean, rest = errors.energy.mean, errors.shifted().rmse
    if errors.energy.count > 1 and abs(mean) > max(OFFSET_FROM, 5 * rest):
        return [
            f"All energies are off by about the same, {number(1e3 * mean)} meV/atom, and by {number(1e3 * rest)} "
            "meV/atom (RMSE) without that: labels of another method or with another zero of energy would look like "
            "this."
        ]
    return []


def _elements(errors: Errors, references: Sequence[float], trained: Sequence[int] | None) -> list[str]:
    if trained is not None:
        unknown = ", ".join(symbol(z) for z in sorted(set(errors.elements) - set(trained)))
        return [f"The potential was not trained on {unknown}: its predictions for it mean nothing."] * bool(unknown)
    known = {z for z, energy in enumerate(references) if energy != 0}
    missing = sorted(z for z in errors.elements if z not in known)
    if not known or not missing:
        return []
    names = ", ".join(symbol(z) for z in missing)
    return [f"The potential has reference energies, but none for {names}: it may never have been trained on {names}."]
