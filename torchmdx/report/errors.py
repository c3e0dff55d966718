"""Errors of predictions against labels, accumulated batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.composition import compositions, formula, symbol
from torchmdx.report.energy_labels import EnergyLabels
from torchmdx.report.kept_frames import KeptFrames
from torchmdx.report.moments import Floats, Groups, Moments, Sample
from torchmdx.report.scales import MILLI_EV, Scale, Scales
from torchmdx.report.uncertainty import SpreadAndError

if TYPE_CHECKING:
    from torchmdx.report.predictions import Predictions

MOST_FORMULAS = 12  # more are no table for people
FEWEST = 10  # labels whose standard deviation is compared with


@dataclass(frozen=True)
class Worst:
    """A frame with a large error: its index in the store, and label and prediction in torchmdx's units.

    For energies they are of the structure; for forces they are the component that is furthest off, of `atom`.
    """

    index: int
    formula: str
    num_atoms: int
    label: float
    predicted: float
    atom: int | None = None

    @property
    def error(self) -> float:
        """The absolute error that frames are ranked by: eV/atom, or eV/Å."""
        return abs(self.predicted - self.label) / (self.num_atoms if self.atom is None else 1)


class Errors:
    """Accumulates errors; a label that is NaN counts as missing.

    energy eV/atom, total eV a structure, forces eV/Å (components), stress eV/Å³ (the nine components): Moments. charges
    e of atoms, dipole e Å (components): Moments, see `torchmdx.report.evaluation`. forces_by_element by atomic
    number; energy_by_size (eV/atom) and forces_by_size by the number of atoms. energy_by_formula (eV/atom) and
    forces_by_formula: None once there are more than MOST_FORMULAS.

    Args:
        reference_energies: [max_z+1] eV by element, subtracted from both sides of energy_pairs.

    Attributes:
        energy_pairs: A sample of energies per atom, less the reference energies; forces_pairs, stress_pairs: of
            components.
        labels: Moments of the labels themselves, "forces" and "stress".
        energy_labels: Those of energies, and how they correlate with predictions.
        energy_spread, forces_spread: Spreads of an ensemble and errors. energy_uncertainty: of a single potential;
            atoms_uncertainty: of the energies of its atoms, eV, and the errors of the forces on them, eV/Å.
        worst_energy, worst_forces: The frames with the largest errors, the worst first.
        kept: Some frames with their structures, for the interactive page. Memory: a few numbers for each structure,
            whatever the number of atoms.
    """

    def __init__(self, reference_energies: Any = None, *, num_worst: int = 10, sample: int = 100_000) -> None:
        self.num_frames = self.num_atoms = 0
        self.energy, self.total, self.forces, self.stress = Moments(), Moments(), Moments(), Moments()
        self.charges, self.dipole = Moments(), Moments()
        self.forces_by_element, self.energy_by_size, self.forces_by_size = Groups(), Groups(), Groups()
        self.energy_by_formula: dict[str, Moments] | None = {}
        self.forces_by_formula: dict[str, Moments] | None = {}
        self.energy_pairs, self.forces_pairs, self.stress_pairs = Sample(sample), Sample(sample), Sample(sample)
        self.labels = {kind: Moments() for kind in ("forces", "stress")}
        self.energy_labels = EnergyLabels()
        self.energy_spread, self.forces_spread = SpreadAndError(sample), SpreadAndError(sample)
        self.energy_uncertainty, self.atoms_uncertainty = SpreadAndError(sample), SpreadAndError(sample)
        self.worst_energy: list[Worst] = []
        self.worst_forces: list[Worst] = []
        self._references = np.zeros(0) if reference_energies is None else np.asarray(reference_energies, np.float64)
        self.kept = KeptFrames(self._references)
        self._num_worst = num_worst
        self._energy_errors: list[tuple[Floats, Floats]] = []
        self.elements: set[int] = set()  # atomic numbers that occur
        self._alike = np.zeros(3)  # sums of label², label · prediction and prediction², of forces

    def add(self, part: Predictions) -> None:
        """Takes in predictions of some frames. Raises ValueError for what does not match its labels in shape."""
        frames = part.frames
        _require_shape("energy", part.energy, frames.energy)
        _require_shape("forces", part.forces, frames.forces)
        self.num_frames += len(frames)
        self.num_atoms += int(frames.counts.sum())
        composition = compositions(frames)
        self.elements.update(np.flatnonzero(composition.sum(0)).tolist())
        self._add_energies(part, composition)
        self._add_forces(part, composition)
        self._add_formulas(part, composition)
        self.kept.add(part)
        if part.stress is not None:
            _require_shape("stress", part.stress, frames.stress)
            known = np.isfinite(frames.stress).all((1, 2)) & np.isfinite(part.stress).all((1, 2))
            label, predicted = frames.stress[known].astype(np.float64), part.stress[known]
            self.stress.add(predicted - label)
            self.stress_pairs.add(label, predicted)
            self.labels["stress"].add(label)

    def _add_energies(self, part: Predictions, composition: NDArray[np.int64]) -> None:
        frames = part.frames
        known = np.isfinite(frames.energy) & (frames.counts > 0)
        counts, composition = frames.counts[known], composition[known]
        label, predicted = frames.energy[known], part.energy[known]
        errors = predicted - label
        self.energy.add(errors / counts)
        self.total.add(errors)
        self.energy_by_size.add(counts, errors / counts)
        self._energy_errors.append((errors, counts.astype(np.float64)))
        if part.energy_spread is not None:
            self.energy_spread.add(part.energy_spread[known] / counts, np.abs(errors) / counts)
        if part.energy_uncertainty is not None:
            self.energy_uncertainty.add(part.energy_uncertainty[known] / counts, np.abs(errors) / counts)
        references = np.zeros(composition.shape[1])
        both = min(len(references), len(self._references))
        references[:both] = self._references[:both]
        base = composition @ references
        self.energy_pairs.add((label - base) / counts, (predicted - base) / counts)
        self.energy_labels.add(composition, label / counts, predicted / counts)
        for place in _largest(np.abs(errors) / counts, self._num_worst):
            index, name = int(part.indices[known][place]), formula(composition[place])
            found = Worst(index, name, int(counts[place]), float(label[place]), float(predicted[place]))
            self.worst_energy.append(found)
        self.worst_energy = sorted(self.worst_energy, key=lambda w: -w.error)[: self._num_worst]

    def _add_forces(self, part: Predictions, composition: NDArray[np.int64]) -> None:
        frames = part.frames
        known = np.isfinite(frames.forces).all(1)
        frame = frames.frame_index[known]
        label, predicted = frames.forces[known].astype(np.float64), part.forces[known].astype(np.float64)
        errors = predicted - label
        self.forces.add(errors)
        self.forces_by_element.add(frames.atomic_numbers[known], errors)
        self.forces_by_size.add(frames.counts[frame], errors)
        self.forces_pairs.add(label, predicted)
        self.labels["forces"].add(label)
        if part.forces_spread is not None:
            self.forces_spread.add(part.forces_spread[known], np.linalg.norm(errors, axis=1))
        if part.energies_uncertainty is not None:
            self.atoms_uncertainty.add(part.energies_uncertainty[known], np.linalg.norm(errors, axis=1))
        self._alike += [(label * label).sum(), (label * predicted).sum(), (predicted * predicted).sum()]
        largest = np.zeros(len(frames))
        np.maximum.at(largest, frame, np.abs(errors).max(1, initial=0.0))
        atoms = np.flatnonzero(known)
        for place in _largest(largest, self._num_worst):
            own = np.flatnonzero(frame == place)
            if not len(own):
                continue
            row, component = np.unravel_index(int(np.abs(errors[own]).argmax()), (len(own), 3))
            at = own[row]
            self.worst_forces.append(
                Worst(
                    int(part.indices[place]),
                    formula(composition[place]),
                    int(frames.counts[place]),
                    float(label[at, component]),
                    float(predicted[at, component]),
                    int(atoms[at] - frames.offsets[place]),
                )
            )
        self.worst_forces = sorted(self.worst_forces, key=lambda w: -w.error)[: self._num_worst]

    def _add_formulas(self, part: Predictions, composition: NDArray[np.int64]) -> None:
        if self.energy_by_formula is None or self.forces_by_formula is None:
            return
        frames = part.frames
        kinds, which = np.unique(composition, axis=0, return_inverse=True)
        which = which.reshape(-1)
        atoms = which[frames.frame_index]
        names = [formula(kind) for kind in kinds]
        if len({*self.energy_by_formula, *names}) > MOST_FORMULAS:
            self.energy_by_formula = self.forces_by_formula = None
            return
        energies = (part.energy - frames.energy) / np.maximum(frames.counts, 1)
        forces = part.forces - frames.forces
        for kind, name in enumerate(names):
            chosen = energies[which == kind]
            self.energy_by_formula.setdefault(name, Moments()).add(chosen[np.isfinite(chosen)])
            rows = forces[atoms == kind]
            self.forces_by_formula.setdefault(name, Moments()).add(rows[np.isfinite(rows).all(1)])

    @property
    def energy_errors(self) -> Floats:
        """Error of every labelled structure [n], eV/atom, in order of arrival."""
        return np.concatenate([np.zeros(0), *(errors / counts for errors, counts in self._energy_errors)])

    def median(self, kind: str) -> float:
        """Median absolute error of "energy", "forces" or "stress"; of the sample where there are more. NaN if none."""
        errors = self.energy_errors if kind == "energy" else getattr(self, f"{kind}_pairs").pairs @ [-1.0, 1.0]
        return float(np.median(np.abs(errors))) if len(errors) else math.nan

    def deviation(self, kind: str) -> float:
        """Standard deviation of the labels; of energies per atom, without what composition explains, and outliers."""
        return self.energy_labels.deviation if kind == "energy" else self.labels[kind].std

    def relative(self, kind: str) -> float:
        """RMSE over the standard deviation of the labels; NaN for fewer than FEWEST labels or equal ones."""
        rmse: float = getattr(self, kind).rmse
        if kind == "energy":
            return rmse / self.deviation(kind)
        labels = self.labels[kind]
        # The labels' own rounding leaves a deviation of equal ones.
        varied = labels.count >= FEWEST and labels.std > 1e-6 * max(labels.max, 1e-3)
        return rmse / labels.std if varied else math.nan

    def shifted(self, *, total: bool = False) -> Moments:
        """Moments of energy errors less their mean: eV/atom, or eV a structure."""
        errors = self.energy_errors
        if total:
            errors = np.concatenate([np.zeros(0), *(errors for errors, _ in self._energy_errors)])
        return Moments.of(errors - errors.mean()) if len(errors) else Moments()

    @property
    def force_ratio(self) -> tuple[float, float]:
        """(r, c): labels are best r times the predictions, and correlate with them by c; NaN without forces."""
        label, both, predicted = self._alike.tolist()
        if not (label > 0 and predicted > 0):
            return math.nan, math.nan
        return both / predicted, both / math.sqrt(label * predicted)

    def summary(self, scales: Scales = MILLI_EV) -> dict[str, Any]:
        """Every number, for JSON."""
        by: dict[str, Any] = {
            "forces_by_element": {
                symbol(z): m.summary(scales.forces) for z, m in sorted(self.forces_by_element.of.items())
            },
            "energy_by_size": {str(n): m.summary(scales.energy) for n, m in sorted(self.energy_by_size.of.items())},
            "forces_by_size": {str(n): m.summary(scales.forces) for n, m in sorted(self.forces_by_size.of.items())},
        }
        if self.energy_by_formula is not None and self.forces_by_formula is not None:
            by["energy_by_formula"] = {n: m.summary(scales.energy) for n, m in sorted(self.energy_by_formula.items())}
            by["forces_by_formula"] = {n: m.summary(scales.forces) for n, m in sorted(self.forces_by_formula.items())}
        for name, unit in (("charges", scales.charges), ("dipole", scales.dipole)):
            if getattr(self, name).count:
                by[name] = getattr(self, name).summary(unit)
        for kind, unit in (("energy", scales.energy), ("forces", scales.forces)):
            spreads: SpreadAndError = getattr(self, f"{kind}_spread")
            if spreads.count:
                by[f"{kind}_spread"] = spreads.summary(unit)
        if self.energy_uncertainty.count:
            by["energy_uncertainty"] = self.energy_uncertainty.summary(scales.energy)
        if self.atoms_uncertainty.count:
            found = self.atoms_uncertainty.rank_correlation
            by["atoms_uncertainty"] = {
                "rank_correlation_with_force_errors": found if math.isfinite(found) else None,
                "count": self.atoms_uncertainty.count,
            }
        return {
            "num_frames": self.num_frames,
            "num_atoms": self.num_atoms,
            "energy": self._summary("energy", scales.energy),
            "energy_mean_removed": self.shifted().summary(scales.energy),
            "energy_total": self.total.summary(scales.total),
            "energy_total_mean_removed": self.shifted(total=True).summary(scales.total),
            "forces": self._summary("forces", scales.forces),
            "stress": self._summary("stress", scales.stress),
            "stress_GPa": self._summary("stress", scales.pressure),
            **by,
        }

    def _summary(self, kind: str, scale: Scale) -> dict[str, Any]:
        more = {
            "median": self.median(kind) * scale.factor,
            "label_std": self.deviation(kind) * scale.factor,
            "rmse_over_label_std": self.relative(kind),
        }
        known = {name: value if math.isfinite(value) else None for name, value in more.items()}
        moments: Moments = getattr(self, kind)
        return moments.summary(scale) | known


def _largest(values: Floats, count: int) -> list[int]:
    """Indices of the largest values, the largest first."""
    return [int(place) for place in np.argsort(-values, kind="stable")[:count]]


def _require_shape(name: str, predicted: Any, label: Any) -> None:
    if np.shape(predicted) != np.shape(label):
        raise ValueError(f"predicted {name} must have shape {np.shape(label)}, got {np.shape(predicted)}")
