"""The sections of a report, with their pictures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchmdx.datasets.store import Store
from torchmdx.models.ensemble import Ensemble, members_of
from torchmdx.models.potential import Potential
from torchmdx.report import plots, spread_plot, tables
from torchmdx.report.composition import symbol
from torchmdx.report.errors import Errors
from torchmdx.report.history import EPOCHS, read_table
from torchmdx.report.page import PageSection, Picture
from torchmdx.report.scales import Scale, Scales
from torchmdx.report.style import DOTS_AN_INCH
from torchmdx.runtime.wording import fixed

CURVES_NOTE = (
    "After each epoch. Validation errors are those of the averaged weights, if the training averages them, so they "
    "may be smaller than training errors."
)
PARITY_NOTE = (
    "Colour shows the density of points. For many points, a random sample and the largest errors are drawn; the "
    "stated errors include all points."
)
SPREAD_NOTE = (
    "The spread is the standard deviation over the members of the ensemble, the error that of their mean. If errors "
    "grow with the spread, structures with a large spread are worth labelling. On the grey line both are equal; orange "
    "points are root mean squares in bins of spread."
)
UNCERTAINTY_NOTE = (
    "The uncertainty is that of the energy by the rigidity of the last layer, the error that of the prediction. If "
    "errors grow with the uncertainty, structures with a large one are worth labelling. On the grey line both are "
    "equal; orange points are root mean squares in bins of uncertainty."
)
CALIBRATION_NOTE = (
    "A share p of Gaussian errors is within an interval around zero whose half-width is a multiple of the standard "
    "deviation. The curve shows the share of errors that is. Below the grey line errors are larger than stated, above "
    "it smaller. The shaded area is the miscalibration area, 0 at best and at most 0.5."
)
ENERGY_NOTE = f"The potential's reference energies of the elements are subtracted from both. {PARITY_NOTE}"


def curves(directory: Path, history: Path | None) -> list[PageSection]:
    """Learning curves, if there is a history. history: epochs.csv or its folder."""
    if history is None:
        return []
    file = history / EPOCHS if history.is_dir() else history
    path = directory / "learning_curves.png"
    if not file.is_file() or not plots.learning_curves(path, read_table(file)):
        return []
    return [PageSection("Learning curves", [CURVES_NOTE], [_picture(path, "learning curves")])]


def parity(directory: Path, found: Mapping[str, Errors], units: Scales) -> list[PageSection]:
    """Parity plots of energies, forces and stress, a picture for each set."""
    sections = []
    for kind, heading, what, axis, unit, note in (
        ("energy", "energies", "energy per atom", units.label_energy, units.energy, ENERGY_NOTE),
        ("forces", "forces", "force component", units.label_forces, units.forces, PARITY_NOTE),
        ("stress", "stress", "stress component", units.pressure, units.pressure, PARITY_NOTE),
    ):
        noun = "energies" if kind == "energy" else f"{what}s"
        pictures = []
        for name, slug in zip(found, _slugs(found), strict=True):
            moments, sample = getattr(found[name], kind), getattr(found[name], f"{kind}_pairs")
            if moments.count:
                path = directory / f"parity_{kind}_{slug}.png"
                plots.parity(path, sample, moments, unit, axis, what, title=f"{name}: {moments.count:,} {noun}")
                pictures.append(_picture(path, f"parity plot, {what}, {name}"))
        if pictures:
            sections.append(PageSection(f"Predicted {heading}", [note], pictures))
    return sections


def distribution(directory: Path, found: Mapping[str, Errors], units: Scales) -> list[PageSection]:
    """Histograms of errors."""
    energies = {name: errors.energy_errors for name, errors in found.items()}
    forces = {name: errors.forces_pairs.pairs @ [-1.0, 1.0] for name, errors in found.items()}
    stresses = {name: errors.stress_pairs.pairs @ [-1.0, 1.0] for name, errors in found.items()}
    pictures = []
    for kind, errors, unit, title in (
        ("energy", energies, units.energy, "Errors of energies per atom"),
        ("forces", forces, units.forces, "Errors of force components"),
        ("stress", stresses, units.pressure, "Errors of stress components"),
    ):
        path = directory / f"error_histogram_{kind}.png"
        if plots.error_histogram(path, errors, unit, title):
            pictures.append(_picture(path, title))
    text = "The first and the last bar include all errors beyond them."
    return [PageSection("Distribution of errors", [text], pictures)] if pictures else []


def spreads(directory: Path, found: Mapping[str, Errors], units: Scales) -> list[PageSection]:
    """Spread of an ensemble against its error, for each set."""
    pictures = _doubts(directory, found, "energy_spread", "energy per atom", units.energy)
    pictures += _doubts(directory, found, "forces_spread", "the force on an atom", units.forces)
    pictures += _calibrations(directory, found, "energy_spread")
    return [PageSection("Spread and error", [SPREAD_NOTE, CALIBRATION_NOTE], pictures)] if pictures else []


def uncertainties(directory: Path, found: Mapping[str, Errors], units: Scales) -> list[PageSection]:
    """Uncertainty of a single potential against its error, for each set, and its calibration."""
    pictures = _doubts(directory, found, "energy_uncertainty", "energy per atom", units.energy)
    pictures += _calibrations(directory, found, "energy_uncertainty")
    notes = [UNCERTAINTY_NOTE, CALIBRATION_NOTE]
    return [PageSection("Uncertainty and error", notes, pictures)] if pictures else []


def _doubts(directory: Path, found: Mapping[str, Errors], kind: str, what: str, unit: Scale) -> list[Picture]:
    """A picture of the errors against a kind of doubt, such as "forces_spread", for each set."""
    pictures, (quantity, noun) = [], kind.split("_")
    for name, slug in zip(found, _slugs(found), strict=True):
        file = f"{noun}_{quantity}_{slug}.png" if noun == "spread" else f"{noun}_{slug}.png"
        path, both = directory / file, getattr(found[name], kind)
        title = f"{name}: {both.count:,} {'energies' if quantity == 'energy' else quantity}"
        if spread_plot.spread_and_error(path, both, unit, what, title=title, noun=noun):
            pictures.append(_picture(path, f"{noun} and error of {what}, {name}"))
    return pictures


def _calibrations(directory: Path, found: Mapping[str, Errors], kind: str) -> list[Picture]:
    """A picture of the calibration of a kind of doubt for each set."""
    pictures = []
    for name, slug in zip(found, _slugs(found), strict=True):
        path, both = directory / f"calibration_{slug}.png", getattr(found[name], kind)
        if both.count and spread_plot.calibration(path, both, title=f"{name}: {both.count:,} energies"):
            pictures.append(_picture(path, f"calibration of energies, {name}"))
    return pictures


def groups(directory: Path, found: Mapping[str, Errors], units: Scales) -> list[PageSection]:
    """Errors by element, size and formula."""
    pictures, shown = [], {}
    path = directory / "errors_by_element.png"
    if plots.errors_by_element(path, found, units.forces):
        pictures.append(_picture(path, "force errors by element"))
        shown[f"Forces by element / {units.forces.unit}"] = tables.by_element(found, units)
    for kind, unit, forces in (("energy", units.energy, False), ("forces", units.forces, True)):
        path = directory / f"errors_by_size_{kind}.png"
        if plots.errors_by_size(path, found, unit, forces=forces):
            pictures.append(_picture(path, f"{kind} errors by size"))
    if not pictures:
        return []
    shown |= tables.by_formula(found, units)
    return [PageSection("Errors by element and size", [], pictures, shown)]


def worst(found: Mapping[str, Errors], stores: Mapping[str, Store], units: Scales) -> list[PageSection]:
    """The frames with the largest errors, with file and number."""
    shown, most = {}, 10 if len(found) == 1 else 5
    for name, errors in found.items():
        origin, prefix = stores[name].origin, f", {name}" if len(found) > 1 else ""
        if errors.worst_energy:
            shown[f"Energies{prefix}"] = tables.worst_energies(errors.worst_energy[:most], origin, units)
        if errors.worst_forces:
            shown[f"Forces{prefix}"] = tables.worst_forces(errors.worst_forces[:most], origin, units)
    text = "Frames and atoms count from 0. For forces, the component with the largest error in its frame is given."
    return [PageSection("Worst frames", [text], tables=shown)] if shown else []


def described(potential: Potential | Ensemble) -> PageSection:
    """Architecture and constants; of an ensemble all that its members have, each once."""
    rows = [_described(member) for member in members_of(potential)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    shown = {name: "; ".join(dict.fromkeys(str(row.get(name, "none")) for row in rows)) for name in names}
    members = {"members": len(rows)} if isinstance(potential, Ensemble) else {}
    return PageSection("Potential", tables={"": tables.pairs(members | shown)})


def _described(potential: Potential) -> dict[str, object]:
    known = potential.reference_energies.nonzero().flatten().tolist()
    energies = ", ".join(f"{symbol(z)} {fixed(float(potential.reference_energies[z]), 4)}" for z in known)
    return {
        "network": type(potential.config).__name__.removesuffix("Config"),
        "weights": f"{sum(parameter.numel() for parameter in potential.parameters()):,}",
        **tables.flat(vars(potential.config)),
        "scale / eV": f"{float(potential.scale):g}",
        "shift / eV": f"{float(potential.shift):g}",
        "reference energies / eV": energies or "none",
    }


def _picture(path: Path, text: str) -> Picture:
    """Shown at two thirds of its resolution, so that it is sharp on high-resolution screens."""
    with path.open("rb") as file:
        width = int.from_bytes(file.read(24)[16:20], "big")  # of a PNG's first chunk
    return Picture(path, text, round(width * 96 / DOTS_AN_INCH))


def _slugs(names: Iterable[str]) -> list[str]:
    """A unique part of a file name for each set."""
    found: list[str] = []
    for name in names:
        slug = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("._").lower() or "set"
        tried, count = slug, 1
        while tried in found:
            count += 1
            tried = f"{slug}_{count}"
        found.append(tried)
    return found
