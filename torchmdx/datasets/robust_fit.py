"""Least squares that a minority of wrong values does not change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FAR_OUT = 8.0  # robust z-score; a normal distribution has one in 10^15 values beyond
LEAST_DEVIATION = 1e-3  # eV per atom; smaller deviations make no outliers
FEWEST = 10  # values more than coefficients, without which nothing is an outlier
ITERATIONS, CONVERGED = 60, 1e-6
SINGULAR = 1e-10  # of the normal equations, which square the condition number


@dataclass(frozen=True)
class RobustFit:
    """coefficients [k] with the least absolute deviations; middle and deviation: robust ones of the residuals.

    deviation is infinite if there are too few values to tell outliers. rank: of the rows.
    """

    coefficients: Floats
    middle: float
    deviation: float
    rank: int

    def scores(self, rows: Floats, values: Floats) -> Floats:
        """Residuals [n] of any rows in units of the robust deviation."""
        scores: Floats = (values - rows @ self.coefficients - self.middle) / self.deviation
        return scores

    def is_outlier(self, rows: Floats, values: Floats) -> NDArray[np.bool_]:
        """Which values [n] are too far from the fit to belong to it."""
        found: NDArray[np.bool_] = np.abs(self.scores(rows, values)) > FAR_OUT
        return found


def robust_fit(rows: Floats, values: Floats) -> RobustFit:
    """The fit of rows [n,k] to values [n] that minimises Σ |values - rows @ coefficients|; see `RobustFit`.

    Iteratively reweighted least squares. Coefficients that the rows do not determine are those of the minimal norm.
    """
    coefficients = _solved(rows, values, np.ones(len(values)))
    for _ in range(ITERATIONS):
        size = np.abs(values - rows @ coefficients)
        least = max(CONVERGED, 1e-3 * float(np.median(size))) if len(size) else CONVERGED
        new = _solved(rows, values, 1 / np.maximum(size, least))
        step = float(np.abs(rows @ (new - coefficients)).max(initial=0.0))
        coefficients = new
        if step < CONVERGED:
            break
    rank = int(np.linalg.matrix_rank(rows.T @ rows, tol=SINGULAR * max(1.0, float((rows**2).sum()))))
    residuals = values - rows @ coefficients
    if len(values) < rank + FEWEST:
        return RobustFit(coefficients, 0.0, np.inf, rank)
    middle = float(np.median(residuals))
    # As many residuals as there are coefficients are zero, whatever the values.
    spread = np.sort(np.abs(residuals - middle))[rank:]
    return RobustFit(coefficients, middle, max(float(np.median(spread)) / 0.6745, LEAST_DEVIATION), rank)


def _solved(rows: Floats, values: Floats, weights: Floats) -> Floats:
    weighted = rows * weights[:, None]
    found: Floats = np.linalg.pinv(rows.T @ weighted, rcond=SINGULAR, hermitian=True) @ (weighted.T @ values)
    return found
