"""Checks of the data of a training: labels that cannot be right, and frames in two parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.datasets.energy_changes import EnergyChanges
from torchmdx.datasets.energy_units import depth, unit_between, unit_of
from torchmdx.datasets.findings import Finding, found
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.near_copies import near_copies
from torchmdx.datasets.pair_fit import pair_fit
from torchmdx.datasets.references import composition, robust_references
from torchmdx.datasets.robust_fit import FAR_OUT, RobustFit
from torchmdx.datasets.store import Store
from torchmdx.neighbors.explicit import search_explicitly
from torchmdx.runtime.wording import number
from torchmdx.structures.system import Batch

Indices = NDArray[np.int64]
CHUNK = 4096
# eV per atom: no structure has this much cohesion; and one below the sum of the references must have some reason.
MOST_BOUND = 15.0
LARGEST_FORCE = 1000.0  # eV/Å
LEAST_SPREAD = 1e-6  # eV/Å: rounding of nearly constant labels makes no outliers
NOTHING, LEAST_REFERENCE = 0.01, 0.5  # an energy that is this share of the references, eV per atom, is no energy
RESTING_SHARE, RESTING_FRAMES, RESTING_LOOKED_AT = 0.01, 3, 500
SYMMETRIC, NEIGHBOURHOOD = 1e-3, 4.0  # of the sum of weighted directions to neighbours, Å
AGAINST, DOUBTFUL, ALIKE, FACTOR = -0.5, -0.25, 0.6, (1 / 8, 5.0)  # of the pair potential's correlation and ratio
SCALED = 1.5  # ratio of energy changes of consecutive frames, from which it is extreme
COPIED = 0.5  # share of a part
FORMULAS, SAME_DEPTH = 3, 0.02  # relative spread over frames of different formulas


def check_data(store: Store, parts: Mapping[str, Indices]) -> list[Finding]:
    """What is wrong with the frames of the parts. Reads them twice, and computes distances in a sample."""
    frames = np.sort(np.concatenate([np.zeros(0, np.int64), *parts.values()]))
    seen = _Labels(store, robust_references(store, frames) if "energy" in store.labels else None)
    for start in range(0, len(frames), CHUNK):
        seen.take(frames[start : start + CHUNK])
    labels = seen.columns()
    findings = [*_energies(frames, labels), *_forces(frames, labels), *_resting(store, frames, labels)]
    findings += _units(labels)
    if {"energy", "forces"} <= set(store.labels):
        odd = {index for one in findings if one.check != "largest forces" for index in one.frames}
        clean = frames[~np.isin(frames, list(odd))]
        findings += [*_against(store, clean), *_along(seen.changes)]
    return findings + _copies(store, parts)


@dataclass
class _Columns:
    """Numbers of each frame [F]; NaN without a label. references: their sum per atom; residual: energy less that."""

    energy: NDArray[np.float64]
    references: NDArray[np.float64]
    score: NDArray[np.float64]
    depth: NDArray[np.float64]
    largest: NDArray[np.float64]
    counts: NDArray[np.float64]
    formula: NDArray[np.float64]

    @property
    def residual(self) -> NDArray[np.float64]:
        return self.energy - self.references


@dataclass
class _Labels:
    """One pass over the labels."""

    store: Store
    fit: RobustFit | None
    changes: EnergyChanges = field(default_factory=EnergyChanges)
    rows: list[NDArray[np.float64]] = field(default_factory=list)

    def take(self, indices: Indices) -> None:
        frames = self.store.gather(indices)
        counts = composition(frames.counts, frames.atomic_numbers, 118)
        share = counts / frames.counts[:, None]
        energy = frames.energy / frames.counts
        references, score = np.full((2, len(frames)), np.nan)
        if self.fit is not None:
            references = share @ self.fit.coefficients
            score = self.fit.scores(share, energy)
        norms = np.linalg.norm(frames.forces.astype(np.float64), axis=1)
        largest = np.maximum.reduceat(norms, frames.offsets[:-1])
        formula = counts @ np.random.default_rng(0).random(counts.shape[1])
        self.rows.append(np.stack([energy, references, score, depth(frames), largest, frames.counts, formula]))
        self.changes.add(frames, [self.store.sources[k] for k in self.store.origin_files[indices]])

    def columns(self) -> _Columns:
        return _Columns(*np.concatenate([np.zeros((7, 0)), *self.rows], axis=1))


def _energies(frames: Indices, labels: _Columns) -> list[Finding]:
    far = np.abs(labels.score) > FAR_OUT
    if not far.any():
        return []
    residual, sums = labels.residual, labels.references
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = labels.energy / sums
    deep = np.abs(sums) > LEAST_REFERENCE
    empty = far & deep & (np.abs(ratio) < NOTHING)
    mistaken = np.array([far[k] and deep[k] and unit_between(float(ratio[k])) is not None for k in range(len(far))])
    mistaken &= ~empty
    calm = ~(_scores(labels.largest) > FAR_OUT)
    impossible = far & ~empty & ~mistaken & ((residual < -MOST_BOUND) | ((residual > MOST_BOUND) & calm))
    rest = far & ~empty & ~mistaken & ~impossible
    units = sorted({unit_between(float(value)) or "" for value in ratio[mistaken]})
    deviation = float(np.nanmedian(np.abs(residual[far] / labels.score[far])))
    return [
        *found("energies", f"the energy is {_range(labels.energy[empty])} eV/atom, where the composition gives "
               f"{_range(sums[empty])}, as after a failed calculation", frames[empty], extreme=True),
        *found("energies", f"energies look like {'; '.join(units)}: {_range(labels.energy[mistaken])} eV/atom, where "
               f"the composition gives {_range(sums[mistaken])}", frames[mistaken], extreme=True),
        *found("energies", f"energies are off by {_range(residual[impossible])} eV/atom from a robust fit of the "
               "composition, more than any bond explains", frames[impossible], extreme=True),
        *found("energies", f"energies are off by {_range(residual[rest])} eV/atom from a robust fit of the "
               f"composition, of deviation {number(deviation)}", frames[rest]),
    ]  # fmt: skip


def _forces(frames: Indices, labels: _Columns) -> list[Finding]:
    scores = _scores(labels.largest)
    huge = labels.largest > LARGEST_FORCE
    far = (scores > FAR_OUT) & ~huge
    typical = number(float(np.nanmedian(labels.largest))) if np.isfinite(labels.largest).any() else ""
    return [
        *found("largest forces", f"the largest force is {_range(labels.largest[huge])} eV/Å; half of all frames have "
               f"less than {typical}", frames[huge], extreme=True),
        *found("largest forces", f"the largest force is {_range(labels.largest[far])} eV/Å; half of all frames have "
               f"less than {typical}", frames[far]),
    ]  # fmt: skip


def _resting(store: Store, frames: Indices, labels: _Columns) -> list[Finding]:
    """Frames whose forces are all exactly zero, although the surroundings of atoms are not symmetric."""
    still = np.flatnonzero((labels.largest == 0) & (labels.counts > 1))
    looked = still[:: max(1, -(-len(still) // RESTING_LOOKED_AT))]
    bent = np.array([k for k in looked if _is_distorted(store.gather(frames[k : k + 1]))], np.int64)
    if not len(bent):
        return []
    share = len(bent) / len(looked) * len(still) / max(1, int(np.isfinite(labels.largest).sum()))
    text = f"all forces are exactly zero in distorted structures, in {share:.0%} of the frames, as in placeholders"
    chosen = bent if len(looked) < len(still) else still[np.isin(still, bent)]
    return found("zero forces", text, frames[chosen], extreme=share >= RESTING_SHARE and len(still) >= RESTING_FRAMES)


def _is_distorted(frame: Frames) -> bool:
    """Whether an atom has more neighbours on one side than on the other, so that symmetry forbids no force."""
    batch = Batch.of(frame.system(0))
    edges = search_explicitly(batch, NEIGHBOURHOOD)
    vectors = edges.vectors(batch.positions, batch.cell, batch.system_index)[: int(edges.num_edges)]
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    pull = vectors / lengths * torch.exp(-lengths) * (1 - lengths / NEIGHBOURHOOD) ** 2
    sums = torch.zeros_like(batch.positions).index_add_(0, edges.target[: len(pull)].long(), pull)
    return bool((torch.linalg.vector_norm(sums, dim=1) > SYMMETRIC).any())


def _units(labels: _Columns) -> list[Finding]:
    there = np.isfinite(labels.depth)
    if there.sum() < 10:
        return []
    middle = float(np.median(labels.depth[there]))
    unit = unit_of(middle)
    if unit is None:
        return []
    # Energies of valence electrons are other fractions for other elements, and one formula may have any of them.
    spread = float(np.median(np.abs(labels.depth[there] / middle - 1)))
    if len(np.unique(labels.formula[there].round(6))) < FORMULAS or spread > SAME_DEPTH:
        return []
    text = (
        f"energies are {middle:.3g} times those of the electrons of neutral atoms in eV, as if they were in {unit}: "
        "set data.energy_unit (--energy-unit)"
    )
    return [Finding("energy unit", text, extreme=True)]


def _against(store: Store, frames: Indices) -> list[Finding]:
    fit = pair_fit(store, frames)
    if fit is None:
        return []
    said = (
        f"(correlation {fit.correlation:.2f} in {fit.num_frames} frames, of a pair potential that is fitted to the "
        "forces)"
    )
    if fit.correlation < DOUBTFUL:
        text = f"energies rise along the forces {said}: they may be gradients, which have the opposite sign"
        return [Finding("sign of forces", text, extreme=fit.correlation < AGAINST)]
    if fit.correlation > ALIKE and not FACTOR[0] < fit.ratio < FACTOR[1]:
        text = f"energies vary by about {number(fit.ratio)} times what the forces predict {said}: check the units"
        return [Finding("unit of forces", text, extreme=True)]
    return []


def _along(changes: EnergyChanges) -> list[Finding]:
    said = []
    for one in changes.agreements():
        text = one.warning()
        if text is not None and one.ratio is not None:
            far = one.verdict == "against" or not 1 / SCALED < one.ratio < SCALED
            said.append(Finding("energy changes", text, extreme=far))
    return said


def _copies(store: Store, parts: Mapping[str, Indices]) -> list[Finding]:
    """Copies, exact and near, of training frames in other parts."""
    train, said = parts.get("train", np.zeros(0, np.int64)), []
    for name, indices in parts.items():
        if name == "train" or not len(indices):
            continue
        exact = np.isin(store.copies[indices], store.copies[train])
        text = f"{exact.sum()} of {len(indices)} frames of {name} have the same structure as frames of train"
        said += found("copies", text, indices[exact], extreme=exact.sum() > COPIED * len(indices))
        near, compared = near_copies(store, train, indices[~exact])
        text = (
            f"{len(near)} of {compared} frames of {name} are within 0.02 Å of frames of train, as in a trajectory: "
            f"errors on {name} will be too small; data.split_by: file or formula keeps such frames together"
        )
        said += found("near copies", text, near)
    return said


def _scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Robust z-scores [F]; none without ten values."""
    there = values[np.isfinite(values)]
    if len(there) < 10:
        return np.zeros(len(values))
    middle = float(np.median(there))
    deviation = max(float(np.median(np.abs(there - middle))) / 0.6745, LEAST_SPREAD)
    scores: NDArray[np.float64] = np.nan_to_num((values - middle) / deviation)
    return scores


def _range(values: NDArray[np.float64]) -> str:
    least, most = (float(value) for value in (values.min(initial=np.inf), values.max(initial=-np.inf)))
    return number(least) if number(least) == number(most) else f"{number(least)} to {number(most)}"
