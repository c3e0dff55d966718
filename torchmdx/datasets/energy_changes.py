"""Compares forces with the energy changes between consecutive frames of the same atoms.

::

    ΔE ≈ w = - Σ_i ½ (F_i + F'_i) · (r'_i - r_i)

is exact up to third order in the displacements. A molecule is first rotated onto its predecessor, which changes no
energy. Forces that are gradients have ΔE / w = -1; forces in another unit than the energies have a constant ratio that
is not 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.force_units import mistaken_unit
from torchmdx.datasets.frames import Frames
from torchmdx.runtime.wording import number

FARTHEST = 0.5  # Å, by which an atom may move between the frames of a pair
MOST_PAIRS = 10_000
# The sign is decided by the number of standard deviations of a fair coin and the share of pairs that agree with it.
CERTAIN, MAJORITY = 3.0, 0.75
# The ratio ΔE / w is a matter of units if its quartiles are near to each other and far from 1.
NARROW, OFF = 0.3, 0.15


@dataclass(frozen=True)
class Agreement:
    """Forces of one file against its energies.

    Attributes:
        num_pairs: Pairs of frames compared.
        against: Share of ΔE / w below zero, and ratio: their median, in the half of the pairs with the larger w; None
            without a pair.
        verdict: "agree", "against" (the sign of the forces is wrong), "scaled" (forces and energies are in different
            units) or "unclear".
    """

    file: str
    num_pairs: int
    against: float | None
    ratio: float | None
    verdict: str

    def warning(self) -> str | None:
        """One sentence about what is wrong, if anything is."""
        if self.verdict not in ("against", "scaled"):
            return None
        assert self.ratio is not None
        assert self.against is not None
        name = f" of {self.file}" if self.file else ""
        if self.verdict == "against":
            return (
                f"the forces{name} contradict the energies: between consecutive frames the energy rises where the "
                f"forces predict a decrease, in {self.against:.0%} of the larger changes of {self.num_pairs} pairs; "
                "they may be gradients, which have the opposite sign"
            )
        unit = mistaken_unit(1 / self.ratio)
        likely = f", as if forces were {unit}" if unit else ""
        return (
            f"the energies{name} change by {number(self.ratio)} times as much as its forces predict (median of "
            f"{self.num_pairs} pairs of consecutive frames){likely}; check the units (--energy-unit, --force-unit)"
        )


class EnergyChanges:
    """Collects pairs of consecutive frames, by file."""

    def __init__(self, most_pairs: int = MOST_PAIRS) -> None:
        self._left = most_pairs
        self._pairs: dict[str, list[tuple[float, float]]] = {}
        self._last: tuple[Frames, str] | None = None

    def add(self, frames: Frames, files: Sequence[str]) -> None:
        """Takes in frames, in Å and eV, of the named files [F]; they continue those of the call before."""
        for name in files:
            self._pairs.setdefault(name, [])
        if self._left <= 0 or not len(frames):
            return
        if self._last is not None:
            frames, files = Frames.concatenate([self._last[0], frames]), [self._last[1], *files]
        self._last = frames.take(np.array([len(frames) - 1])), files[-1]
        for first in _candidates(frames, files):
            if self._left <= 0:
                return
            found = _pair(frames, int(first))
            if found is not None:
                self._pairs[files[int(first)]].append(found)
                self._left -= 1

    def agreements(self) -> list[Agreement]:
        """One for each file."""
        return [_judged(name, np.array(pairs).reshape(-1, 2)) for name, pairs in self._pairs.items()]


def _candidates(frames: Frames, files: Sequence[str]) -> NDArray[np.int64]:
    """Frames whose successor has the same atoms, cell, charge and file; both with energy and forces."""
    if len(frames) < 2:
        return np.zeros(0, np.int64)
    labelled = frames.has_energy & frames.has_forces
    names = np.array(files, dtype=object)
    alike = labelled[:-1] & labelled[1:] & (names[:-1] == names[1:])
    for values in (frames.counts, frames.charge, frames.pbc, frames.cell):
        rows: Any = values.reshape(len(frames), math.prod(values.shape[1:]))
        alike &= (np.abs(rows[1:].astype(float) - rows[:-1].astype(float)) < 1e-6).all(1)
    return np.flatnonzero(alike)


def _pair(frames: Frames, first: int) -> tuple[float, float] | None:
    """ΔE and w of a frame and its successor, eV; None for other atoms, and for atoms that moved too far or not."""
    count, start = int(frames.counts[first]), int(frames.offsets[first])
    one, two = slice(start, start + count), slice(start + count, start + 2 * count)
    if (frames.atomic_numbers[one] != frames.atomic_numbers[two]).any():
        return None
    forces, later = frames.forces[one].astype(np.float64), frames.forces[two].astype(np.float64)
    before, after = frames.positions[one], frames.positions[two]
    if frames.pbc[first].any():
        moved = after - before
        cell = frames.cell[first]
        moved -= (np.round(moved @ np.linalg.pinv(cell)) * frames.pbc[first]) @ cell
    else:
        before, after = before - before.mean(0), after - after.mean(0)
        rotation = _rotation(after, before)
        moved, later = after @ rotation - before, later @ rotation
    work = -0.5 * float(((forces + later) * moved).sum())
    farthest = float(np.linalg.norm(moved, axis=1).max())
    if farthest > FARTHEST or work == 0:
        return None
    return float(frames.energy[first + 1] - frames.energy[first]), work


def _rotation(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation R [3,3] for which source @ R is nearest to target (Kabsch); both are centred."""
    left, _, right = np.linalg.svd(source.T @ target)
    left[:, -1] *= np.sign(np.linalg.det(left @ right))
    return np.asarray(left @ right)


def _judged(file: str, pairs: NDArray[np.float64]) -> Agreement:
    """Judges by the half of the pairs with the largest w, which rounding of energies affects least."""
    if not len(pairs):
        return Agreement(file, 0, None, None, "unclear")
    work = np.abs(pairs[:, 1])
    changes, works = pairs[work >= np.median(work)].T
    ratios = changes / works
    quarter, ratio, three = np.percentile(ratios, [25, 50, 75])
    against = float((ratios < 0).mean())
    agreeing = max(against, 1 - against)
    verdict = "unclear"
    if (2 * agreeing - 1) * len(ratios) ** 0.5 >= CERTAIN and agreeing >= MAJORITY:
        verdict = "against" if against > 0.5 else "agree"
    if verdict == "agree" and three - quarter < NARROW * ratio and abs(ratio - 1) > OFF:
        verdict = "scaled"
    return Agreement(file, len(pairs), against, float(ratio), verdict)


def text(agreements: Sequence[Agreement]) -> list[str]:
    """Lines about all files: what agrees in one, a warning for each file where something is wrong."""
    lines = []
    compared = [one for one in agreements if one.num_pairs]
    good = [one for one in compared if one.verdict == "agree"]
    if good:
        pairs = sum(one.num_pairs for one in good)
        where = f" in {len(good)} of {len(agreements)} files" if len(good) < len(agreements) else ""
        lines.append(f"signs      forces agree with the energies along {pairs} pairs of consecutive frames{where}")
    elif not compared:
        lines.append(
            f"signs      forces are not compared with energies: no consecutive frames of the same atoms within "
            f"{FARTHEST:g} Å of each other"
        )
    elif all(one.verdict == "unclear" for one in compared):
        pairs = sum(one.num_pairs for one in compared)
        lines.append(f"signs      {pairs} pairs of consecutive frames do not show whether forces agree with energies")
    return lines + [f"warning: {warning}" for one in agreements if (warning := one.warning())]
