"""Energies of labels and predictions, compared beyond what the composition of structures explains."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.robust_fit import RobustFit, robust_fit

Floats = NDArray[np.float64]
FEWEST, FREE = 10, 5  # structures, and structures more than elements, without which there is no deviation
MOST_FITTED = 20_000
EQUAL = 1e-6  # eV/atom: rounding of equal labels


class EnergyLabels:
    """Energies per atom with the composition of each structure, of which a few numbers are kept.

    What composition explains is a robust fit of one energy per element to the labels themselves, so that its rest, and
    all that is measured by it, is the same for every potential.
    """

    def __init__(self) -> None:
        self._shares: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []
        self._energies: list[tuple[Floats, Floats]] = []

    def add(self, composition: NDArray[np.int64], labels: Floats, predicted: Floats) -> None:
        """Adds structures: atoms of each element [F,max_z+1], energies [F] in eV per atom."""
        elements = np.flatnonzero(composition.any(0))
        shares = composition[:, elements] / np.maximum(composition.sum(1, keepdims=True), 1)
        self._shares.append((elements, shares.astype(np.float32)))
        self._energies.append((labels, predicted))
        self.__dict__.pop("_rests", None)

    @property
    def deviation(self) -> float:
        """Standard deviation of the labels from the fit, eV/atom, outliers left out.

        NaN for fewer than ten structures, or five more than there are elements, and for equal labels.
        """
        fit, rest, _, good = self._rests
        free = int(good.sum()) - fit.rank
        if len(rest) < FEWEST or free < FREE:
            return math.nan
        # A fit of as many coefficients makes the rest smaller than it is.
        deviation = float(np.sqrt((rest[good] ** 2).sum() / free))
        return deviation if deviation > EQUAL else math.nan

    @property
    def correlation(self) -> float:
        """Correlation of labels and predictions, each without what composition explains; NaN as for `deviation`."""
        _, labels, predicted, good = self._rests
        if math.isnan(self.deviation):
            return math.nan
        size = float(np.sqrt((labels[good] ** 2).sum() * (predicted[good] ** 2).sum()))
        return float((labels[good] * predicted[good]).sum()) / size if size > 0 else math.nan

    @functools.cached_property
    def _rests(self) -> tuple[RobustFit, Floats, Floats, NDArray[np.bool_]]:
        """The fit to the labels; the rests of labels and predictions; which labels are no outliers."""
        elements = np.array(sorted({int(z) for some, _ in self._shares for z in some}), np.int64)
        shares = np.zeros((sum(len(part) for _, part in self._shares), len(elements)))
        row = 0
        for some, part in self._shares:
            shares[row : row + len(part), np.searchsorted(elements, some)] = part
            row += len(part)
        labels, predicted = (np.concatenate([np.zeros(0), *column]) for column in self._columns())
        step = max(1, -(-len(labels) // MOST_FITTED))
        fit, theirs = (robust_fit(shares[::step], values[::step]) for values in (labels, predicted))
        rest = labels - shares @ fit.coefficients
        good = ~fit.is_outlier(shares, labels)
        rest -= rest[good].mean() if good.any() else 0.0
        other = predicted - shares @ theirs.coefficients
        return fit, rest, other - (other[good].mean() if good.any() else 0.0), good

    def _columns(self) -> tuple[list[Floats], list[Floats]]:
        return [labels for labels, _ in self._energies], [predicted for _, predicted in self._energies]
