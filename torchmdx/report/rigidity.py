"""The uncertainty of a potential from labelled frames: a covariance by one set, calibrated by the errors on another.

The formulas are those of torchmdx/models/uncertainty.py. For a regulariser r the factor that makes the errors e of the
calibration frames most likely, if they are Gaussian, is a² = mean(e² / u), with u = fᵀ (C + r)⁻¹ f; r is the one whose
mean of log u plus log a² is smallest. The conformal quantile of a coverage p among n frames is the ⌈(n + 1) p⌉-th
smallest |e| / σ(E), so that another frame of the same kind is within it with a probability of at least p.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.evaluation.properties.force_uncertainty import force_uncertainties
from torchmdx.models.potential import Potential
from torchmdx.models.uncertainty import Uncertainty, last_layer_size, with_uncertainty
from torchmdx.report.composition import compositions
from torchmdx.report.predictor import Predictor
from torchmdx.runtime.isolation import isolated
from torchmdx.structures.system_fields import LAST_ELEMENT

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Progress = Callable[[int, int], None]

FEWEST = 10  # frames, from which a factor is taken
COVERAGES = (0.5, 0.683, 0.8, 0.9, 0.95, 0.99)
# Regularisers that are tried, relative to the largest eigenvalue of the covariance. With smaller ones the rounding of
# float32 in rare directions would count.
REGULARISERS = tuple(10.0 ** (-k / 2) for k in range(2, 17))
# If a fit of the composition reduces the errors by this factor or more, the labels seem to have other references.
OTHER_REFERENCES = 5.0


class NoCalibration(ValueError):
    """The frames do not suffice for an uncertainty; says why."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Of the last layer, of labelled frames.

    Attributes:
        sums: [F,D], over the atoms of a frame.
        counts: [F] atoms.
        errors: [F] eV, of the energy.
        composition: [F,Z] atoms of each element.
    """

    sums: Floats
    counts: Indices
    errors: Floats
    composition: Indices

    def __len__(self) -> int:
        return len(self.counts)

    def without_references(self) -> Inputs:
        """The same with errors that the composition does not explain, as a fit of an energy for each element does."""
        used = self.composition[:, self.composition.any(0)].astype(np.float64)
        fitted = used @ np.linalg.lstsq(used, self.errors, rcond=None)[0]
        return replace(self, errors=self.errors - fitted)

    @property
    def have_other_references(self) -> bool:
        """Whether energies of elements explain most of the errors: the labels count from other references."""
        if len(self) < 2 * np.count_nonzero(self.composition.any(0)):
            return False
        left = self.without_references().errors
        return bool(np.sqrt((self.errors**2).mean()) > OTHER_REFERENCES * np.sqrt((left**2).mean()))


def inputs_of(
    potential: Potential,
    store: Store,
    indices: Indices,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Inputs:
    """Inputs of the last layer for the frames with an energy among those at `indices`.

    Raises:
        ValueError: For a potential without a last layer that is known, and what `Predictor.parts` raises.
    """
    size = last_layer_size(potential)
    blank = Uncertainty(covariance=torch.zeros(size, size, dtype=torch.float64, device="cpu"), regulariser=1.0)
    device = potential.device if device is None else device
    predictor = Predictor(with_uncertainty(potential, blank), device=device, dtype=dtype)
    sums, counts, errors, kinds = [np.zeros((0, size))], [], [], []
    for part in predictor.last_inputs(store, np.asarray(indices, np.int64), progress=progress):
        known = np.isfinite(part.frames.energy)
        sums.append(part.sums[known])
        counts.append(part.frames.counts[known])
        errors.append((part.energy - part.frames.energy)[known])
        found = compositions(part.frames)[known]
        kinds.append(np.pad(found, ((0, 0), (0, LAST_ELEMENT + 1 - found.shape[1]))))
    if not counts:
        return Inputs(sums[0], np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 1), np.int64))
    return Inputs(np.concatenate(sums), np.concatenate(counts), np.concatenate(errors), np.concatenate(kinds))


def covariance_of(inputs: Inputs) -> Floats:
    """C [D,D]: the mean of (f/n) (f/n)ᵀ over frames of n atoms. Raises NoCalibration without frames with an energy."""
    if not len(inputs):
        raise NoCalibration("an uncertainty needs frames with an energy, got none")
    means = inputs.sums / np.maximum(inputs.counts, 1)[:, None]
    return means.T @ means / len(means)


def calibrated(covariance: Floats, num_frames: int, held_out: Inputs) -> Uncertainty:
    """The uncertainty with this covariance of `num_frames` frames, calibrated by frames that are not among them.

    Raises:
        NoCalibration: For fewer than FEWEST frames with an energy, and for errors that are all zero.
    """
    if len(held_out) < FEWEST:
        raise NoCalibration(f"a calibration needs at least {FEWEST} frames with an energy, got {len(held_out)}")
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    squares, errors = (held_out.sums @ vectors) ** 2, held_out.errors
    if not errors.any():
        raise NoCalibration(f"a calibration needs errors, got {len(errors)} frames that are exactly predicted")
    values = values.clip(min=0)
    tried = [float(values.max()) * one for one in REGULARISERS]
    likelihoods = [_unlikelihood(squares @ (1 / (values + r)), errors) for r in tried]
    r = tried[int(np.argmin(likelihoods))]
    rigid = squares @ (1 / (values + r))
    factor = math.sqrt((errors**2 / rigid).mean())
    return Uncertainty(
        covariance=torch.from_numpy(np.ascontiguousarray((covariance + covariance.T) / 2)),
        regulariser=r,
        factor=factor,
        quantiles=conformal_quantiles(np.abs(errors) / (factor * np.sqrt(rigid))),
        num_frames=num_frames,
        num_calibration=len(errors),
    )


def _unlikelihood(rigid: Floats, errors: Floats) -> float:
    """Twice the mean of -log of the likelihood, but for a constant, with the best factor."""
    return float(np.log(rigid).mean() + np.log((errors**2 / rigid).mean()))


def conformal_quantiles(scores: Floats) -> dict[float, float]:
    """The ⌈(n + 1) p⌉-th smallest of n scores for each coverage p for which there are enough."""
    ordered, n = np.sort(scores), len(scores)
    places = {p: math.ceil((n + 1) * p - 1e-9) for p in COVERAGES}
    return {p: float(ordered[place - 1]) for p, place in places.items() if place <= n}


@isolated
def add_uncertainty(
    potential: Potential,
    train: tuple[Store, Indices],
    held_out: tuple[Store, Indices],
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    fit_references: bool = False,
    force_atoms: int = 0,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Potential:
    """The same potential, sharing its weights, with its uncertainty.

    Args:
        train: Frames that it was trained on, or that are like them: a store, and indices in it.
        held_out: Frames that it was not trained on, by whose errors the uncertainty is calibrated.
        device, dtype: Of the evaluations; None: the device of the potential.
        fit_references: Leave out of the errors what energies of elements explain, for labels whose energies count from
            other references than the potential's.
        force_atoms: Calibrate the uncertainties of forces too, by frames with about this number of atoms in all: a
            backward pass for each input of the last layer.
        warn: Called with a remark, if the errors seem to need that.

    Raises:
        NoCalibration: A ValueError, for too few frames with energies.
        ValueError: For a potential without a last layer that is known.
    """
    options = dict(device=device, dtype=dtype, progress=progress)
    known = inputs_of(potential, *train, **options)  # type: ignore[arg-type]
    covariance = covariance_of(known)
    errors = inputs_of(potential, *held_out, **options)  # type: ignore[arg-type]
    if fit_references:
        errors = errors.without_references()
    elif warn is not None and errors.have_other_references:
        warn(
            "energies of the elements explain most of the errors of the calibration frames: if their energies count "
            "from other references than those of the potential, leave these out with --fit-references"
        )
    found = with_uncertainty(potential, calibrated(covariance, len(known), errors))
    if force_atoms > 0 and (factor := force_factor(found, *held_out, force_atoms)) is not None:
        assert found.uncertainty is not None
        found = with_uncertainty(potential, replace(found.uncertainty, force_factor=factor))
    return found


def force_factor(potential: Potential, store: Store, indices: Indices, most_atoms: int) -> float | None:
    """The factor under which the errors of forces are most likely, if they are Gaussian; None without any.

    b² = a² mean(|ΔF_i|² / σ(F_i)²) over atoms, each frame with the same weight, of frames drawn at random.
    """
    assert potential.uncertainty is not None
    plain = replace(potential.uncertainty, force_factor=potential.uncertainty.factor)
    potential, atoms = with_uncertainty(potential, plain), 0
    ratios: list[float] = []
    for index in np.random.default_rng(0).permutation(indices):
        frame = store.gather(np.array([index]))
        known: NDArray[np.bool_] = np.asarray(np.isfinite(frame.forces).all(axis=1))
        if not known.any():
            continue
        if ratios and atoms + len(known) > most_atoms:
            break
        atoms += len(known)
        system = frame.system(0)
        forces = evaluate(potential, system).forces
        assert forces is not None
        errors = ((forces.double().cpu().numpy() - frame.forces) ** 2).sum(1)
        sigma = force_uncertainties(potential, system).cpu().numpy()
        known &= sigma > 0  # an atom alone has no force
        ratios += [float((errors[known] / sigma[known] ** 2).mean())] if known.any() else []
    found = plain.factor * math.sqrt(float(np.mean(ratios))) if ratios else 0.0
    return found if found > 0 else None
