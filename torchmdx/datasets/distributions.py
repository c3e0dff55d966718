"""Statistics of a store: counts, elements, sizes, distributions of labels, reference energies, outliers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.energy_changes import Agreement, EnergyChanges
from torchmdx.datasets.energy_changes import text as agreement_text
from torchmdx.datasets.references import composition, fit_references
from torchmdx.datasets.robust_fit import FAR_OUT
from torchmdx.datasets.store import Store
from torchmdx.datasets.store_arrays import LABELS
from torchmdx.runtime.wording import counted, fixed, number

CHUNK = 4096
LEAST_SPREAD = 1e-6  # eV, eV/Å: rounding of nearly constant labels makes no outliers
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Distribution:
    """Mean, standard deviation and range of a quantity over frames or components."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Values) -> Distribution | None:
        """The distribution of these values; None if there are none."""
        if not len(values):
            return None
        return cls(float(values.mean()), float(values.std()), float(values.min()), float(values.max()))


@dataclass(frozen=True)
class Outlier:
    """A frame with an extreme label: its value, in eV per atom or eV/Å, and its robust z-score."""

    index: int
    file: str
    frame: int
    quantity: str
    value: float
    score: float


@dataclass(frozen=True)
class Statistics:
    """Statistics of a store. elements: atoms of each atomic number. references: eV, by atomic number.

    Attributes:
        energy: eV per atom after references; forces: components, eV/Å; force_rms: of components, eV/Å; stress:
            components, eV/Å³; charges: frames of each total charge.
        agreements: Of the forces of each file with its energies, if the store has both.
        outliers: The most extreme first.
    """

    path: str
    digest: str
    units: dict[str, str]
    num_frames: int
    num_atoms: int
    labelled: dict[str, int]
    periodic: int
    elements: dict[int, int]
    sizes: dict[int, int]
    formulas: int
    charges: dict[float, int]
    files: dict[str, int]
    references: dict[int, float]
    energy: Distribution | None
    forces: Distribution | None
    force_rms: float | None
    stress: Distribution | None
    agreements: tuple[Agreement, ...]
    num_outliers: int
    outliers: tuple[Outlier, ...]

    def json(self) -> dict[str, Any]:
        """As a dictionary of plain types."""
        return asdict(self)


def statistics(store: Store, *, most_outliers: int = 20) -> Statistics:
    """Reads a store once, and its energies twice."""
    last = max(store.elements, default=1)
    bonded = np.flatnonzero(~store.isolated)
    references = fit_references(store, bonded, last) if "energy" in store.labels and len(bonded) else np.zeros(last + 1)
    found = _Pass(store, references)
    for start in range(0, len(store), CHUNK):
        found.take(np.arange(start, min(start + CHUNK, len(store))))
    energy, force = np.concatenate(found.energy), np.concatenate(found.largest)
    energy[store.isolated] = np.nan  # they are references, not structures
    outliers = [*_outliers(store, "energy", energy), *_outliers(store, "largest force", force)]
    outliers.sort(key=lambda one: -abs(one.score))
    sizes, of_size = np.unique(store.counts, return_counts=True)
    labelled = {name: found.labelled[name] for name in LABELS}
    return Statistics(
        path=str(store.path),
        digest=store.digest,
        units=store.units,
        num_frames=len(store),
        num_atoms=store.num_atoms,
        labelled=labelled,
        periodic=found.periodic,
        elements={z: int(found.elements[z]) for z in store.elements},
        sizes=dict(zip(sizes.tolist(), of_size.tolist(), strict=True)),
        formulas=len(found.formulas),
        charges=dict(sorted(found.charges.items())),
        files=_files(store),
        references={z: float(references[z]) for z in store.elements} if "energy" in store.labels else {},
        energy=Distribution.of(energy[~np.isnan(energy)]),
        forces=found.forces.distribution(),
        force_rms=found.forces.rms(),
        stress=found.stress.distribution(),
        agreements=tuple(found.changes.agreements()) if {"energy", "forces"} <= set(store.labels) else (),
        num_outliers=len(outliers),
        outliers=tuple(outliers[:most_outliers]),
    )


class _Moments:
    """Mean, standard deviation and range of a stream of values."""

    def __init__(self) -> None:
        self.count, self.sum, self.squares = 0, 0.0, 0.0
        self.least, self.most = np.inf, -np.inf

    def add(self, values: Any) -> None:
        values = values[~np.isnan(values)].astype(np.float64)
        if values.size:
            self.count, self.sum = self.count + values.size, self.sum + float(values.sum())
            self.squares += float((values**2).sum())
            self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))

    def distribution(self) -> Distribution | None:
        if not self.count:
            return None
        mean = self.sum / self.count
        return Distribution(mean, max(self.squares / self.count - mean**2, 0.0) ** 0.5, self.least, self.most)

    def rms(self) -> float | None:
        return float((self.squares / self.count) ** 0.5) if self.count else None


class _Pass:
    """Data gathered in one pass over the store."""

    def __init__(self, store: Store, references: Values) -> None:
        self.store, self.references = store, references
        self.elements = np.zeros(len(references), np.int64)
        self.labelled = dict.fromkeys(LABELS, 0)
        self.periodic = 0
        self.formulas: set[bytes] = set()
        self.charges: dict[float, int] = {}
        self.energy: list[Values] = []
        self.largest: list[Values] = []
        self.forces, self.stress = _Moments(), _Moments()
        self.changes = EnergyChanges()

    def take(self, indices: NDArray[np.int64]) -> None:
        frames = self.store.gather(indices)
        counts = composition(frames.counts, frames.atomic_numbers, len(self.references) - 1)
        self.elements += counts.sum(0).astype(np.int64)
        self.formulas |= {row.tobytes() for row in np.unique(counts, axis=0).astype(np.int32)}
        self.periodic += int(frames.pbc.any(1).sum())
        for name in LABELS:
            self.labelled[name] += int(frames.has(name).sum())
        for charge, count in zip(*np.unique(frames.charge, return_counts=True), strict=True):
            self.charges[float(charge)] = self.charges.get(float(charge), 0) + int(count)
        self.energy.append((frames.energy - counts @ self.references) / frames.counts)
        norms = np.linalg.norm(frames.forces.astype(np.float64), axis=1)
        # Stores have no frame without atoms, so every frame begins where the previous one ends.
        self.largest.append(np.maximum.reduceat(norms, frames.offsets[:-1]))
        self.forces.add(frames.forces)
        self.stress.add(frames.stress)
        self.changes.add(frames, [self.store.sources[k] for k in self.store.origin_files[indices]])


def _outliers(store: Store, quantity: str, values: Values) -> list[Outlier]:
    """Frames far from the median, in units of the standard deviation estimated from the median absolute deviation."""
    there = np.flatnonzero(~np.isnan(values))
    if len(there) < 10:
        return []
    middle = np.median(values[there])
    deviation = max(float(np.median(np.abs(values[there] - middle))) / 0.6745, LEAST_SPREAD)
    scores = (values - middle) / deviation
    return [
        Outlier(int(k), *store.origin(int(k)), quantity, float(values[k]), float(scores[k]))
        for k in there
        if abs(scores[k]) > FAR_OUT
    ]


def _files(store: Store) -> dict[str, int]:
    numbers = np.bincount(store.origin_files, minlength=len(store.sources))
    return {name: int(number) for name, number in zip(store.sources, numbers, strict=True)}


def text(found: Statistics) -> str:
    """The statistics as text."""
    from ase.data import chemical_symbols

    labels = [f"{name} of {counted(count, 'frame')}" for name, count in found.labelled.items() if count]
    lines = [
        f"{found.path}: {counted(found.num_frames, 'frame')}, {counted(found.num_atoms, 'atom')}, "
        f"{counted(found.formulas, 'formula')}, {counted(found.periodic, 'frame')} periodic",
        "files      " + ", ".join(f"{name} ({count})" for name, count in found.files.items()),
        "units      " + (", ".join(f"{what} {name}" for what, name in found.units.items()) or "not recorded"),
        "labels     " + ", ".join(labels),
        "charges    " + ", ".join(f"{charge:+g} ({count})" for charge, count in found.charges.items()),
        "",
        "element      atoms   reference, eV",
    ]
    for z, count in found.elements.items():
        reference = f"{fixed(found.references[z], 6):>15}" if z in found.references else ""
        lines.append(f"{chemical_symbols[z]:<7} {count:10d} {reference}".rstrip())
    lines += ["", "atoms a frame", *histogram(found.sizes), ""]
    for name, unit, values in (
        ("energy", "eV an atom after references", found.energy),
        ("forces", "eV/Å, components", found.forces),
        ("stress", "eV/Å³, components", found.stress),
    ):
        if values:
            # The mean of forces and of fitted energies is zero but for rounding.
            mean = 0.0 if abs(values.mean) < 1e-6 * values.std else values.mean
            ends = f"{number(values.min)} to {number(values.max)}"
            lines.append(f"{name:<10} mean {number(mean)}, deviation {number(values.std)}, {ends} {unit}")
    if found.agreements:
        lines += agreement_text(found.agreements)
    lines += ["", f"outliers   {found.num_outliers} (robust z-score beyond {FAR_OUT:g})"]
    for one in found.outliers:
        unit = "eV an atom" if one.quantity == "energy" else "eV/Å"
        lines.append(f"  z {one.score:8.1f}  {one.quantity} {number(one.value)} {unit}  {one.file}, frame {one.frame}")
    if found.num_outliers > len(found.outliers):
        lines.append(f"  ... and {found.num_outliers - len(found.outliers)} more")
    return "\n".join(lines)


def histogram(sizes: Mapping[int, int], bins: int = 12, width: int = 40) -> list[str]:
    """A histogram of integers, given by how often each occurs, with at most `bins` equal ranges."""
    least, most = min(sizes), max(sizes)
    step = max(1, -(-(most - least + 1) // bins))
    heights: dict[int, int] = {}
    for size, count in sizes.items():
        first = least + (size - least) // step * step
        heights[first] = heights.get(first, 0) + count
    top = max(heights.values())
    lines = []
    for first, count in sorted(heights.items()):
        last = min(first + step - 1, most)
        label = f"{first}" if first == last else f"{first}-{last}"
        lines.append(f"{label:>11} {count:9d} {'#' * max(1, round(width * count / top))}")
    return lines
