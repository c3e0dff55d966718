"""Spread of an ensemble against the error of its mean; uncertainty of a single potential against its error.

energies    σ(E) / n   and   |E - E_label| / n        of a structure of n atoms, eV/atom
forces      σ(F_i)     and   |F_i - F_i,label|        of an atom (length of the vector), eV/Å

If errors of energies are Gaussian with these standard deviations, a share p of them is within z σ, where
p = erf(z / √2). The miscalibration area is the integral over p of the difference between the share that is and p:
0 for a perfect calibration, at most 1/2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.moments import Floats, Sample
from torchmdx.report.scales import Scale


class SpreadAndError:
    """Accumulates pairs of spread and absolute error.

    Args:
        sample: A random sample of the pairs [n,2], spread first.
    """

    def __init__(self, sample: int = 100_000) -> None:
        self._sample = Sample(sample, num_extreme=1)
        self._sums = np.zeros(5)  # of spread, error, spread², error², spread · error
        self.count = 0

    def add(self, spread: Any, error: Any) -> None:
        """Adds pairs [n] of spread and absolute error."""
        spread, error = np.asarray(spread, np.float64), np.asarray(error, np.float64)
        self._sample.add(spread, error)
        self._sums += [spread.sum(), error.sum(), spread @ spread, error @ error, spread @ error]
        self.count += len(spread)

    @property
    def pairs(self) -> Floats:
        return self._sample.pairs

    @property
    def rms_spread(self) -> float:
        return math.sqrt(self._sums[2] / self.count) if self.count else math.nan

    @property
    def rms_error(self) -> float:
        return math.sqrt(self._sums[3] / self.count) if self.count else math.nan

    @property
    def ratio(self) -> float:
        """Root mean square of the errors over that of the spreads; NaN if every spread is zero."""
        return self.rms_error / self.rms_spread if self.rms_spread > 0 else math.nan

    @property
    def correlation(self) -> float:
        """Pearson's correlation; NaN if one of them does not vary."""
        n, (spread, error, spread2, error2, both) = max(self.count, 1), self._sums.tolist()
        varied = (spread2 / n - (spread / n) ** 2) * (error2 / n - (error / n) ** 2)
        # Rounding leaves a little variance of equal values.
        if not varied > 1e-24 * (spread2 / n) * (error2 / n):
            return math.nan
        return float(np.clip((both / n - spread * error / n**2) / math.sqrt(varied), -1, 1))

    @property
    def rank_correlation(self) -> float:
        """Spearman's correlation, of the sample: whether larger spreads come with larger errors; NaN as above."""
        if math.isnan(self.correlation):
            return math.nan
        first, second = (_ranks(values) for values in self.pairs.T)
        return float(np.corrcoef(first, second)[0, 1])

    def binned(self, number: int = 12) -> Floats:
        """Root mean square [bins,2] of spread and error, in bins of about as many pairs each, by spread."""
        pairs = self.pairs[np.argsort(self.pairs[:, 0], kind="stable")]
        bins = [one for one in np.array_split(pairs, min(number, max(1, len(pairs) // 5))) if len(one)]
        return np.array([np.sqrt((one**2).mean(0)) for one in bins]).reshape(-1, 2)

    @property
    def shares(self) -> Floats:
        """For each pair of the sample the p whose interval just contains its error, sorted; 1 for a spread of zero."""
        spread, error = self.pairs.T
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(error > 0, error / spread, 0.0)
        return np.sort([math.erf(one / math.sqrt(2)) for one in z.tolist()])

    def calibration(self, number: int = 101) -> Floats:
        """(p, share of the errors that is within the interval of p) [number,2] of the sample."""
        expected = np.linspace(0, 1, number)
        observed = np.searchsorted(self.shares, expected, side="right") / max(self.count and len(self.pairs), 1)
        return np.stack([expected, observed], axis=1)

    @property
    def miscalibration(self) -> float:
        """The miscalibration area, of the sample; NaN without pairs."""
        if not self.count:
            return math.nan
        expected, observed = self.calibration(2001).T
        apart = np.abs(observed - expected)
        return float(((apart[1:] + apart[:-1]) / 2 * np.diff(expected)).sum())

    @property
    def likelihood(self) -> float:
        """Mean of -log of the density of Gaussians at the errors, of the sample; NaN without pairs, or for zeros."""
        spread, error = self.pairs.T
        if not len(spread) or not (spread > 0).all():
            return math.nan
        return float((0.5 * np.log(2 * np.pi * spread**2) + error**2 / (2 * spread**2)).mean())

    def summary(self, scale: Scale) -> dict[str, Any]:
        """For JSON; null for what is not defined."""
        numbers = {
            "rms_spread": self.rms_spread * scale.factor,
            "rms_error": self.rms_error * scale.factor,
            "error_over_spread": self.ratio,
            "correlation": self.correlation,
            "rank_correlation": self.rank_correlation,
            "miscalibration_area": self.miscalibration,
            "negative_log_likelihood": self.likelihood,
        }
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"unit": scale.unit, **known, "count": self.count}


def _ranks(values: NDArray[np.float64]) -> Floats:
    """Ranks from 0; equal values share the mean of theirs."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[index.reshape(-1)])
