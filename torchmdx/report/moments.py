"""Statistics of streams of numbers: sums, the largest, a random sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.report.scales import Scale

Floats = NDArray[np.float64]


@dataclass
class Moments:
    """Sums of errors, from which their mean, mean absolute and root mean square follow. NaN if there are none."""

    count: int = 0
    total: float = 0.0
    absolute: float = 0.0
    squared: float = 0.0
    max: float = math.nan

    @classmethod
    def of(cls, errors: Any) -> Moments:
        moments = cls()
        moments.add(errors)
        return moments

    def add(self, errors: Any) -> None:
        """Adds errors of any shape."""
        errors = np.asarray(errors, dtype=np.float64).ravel()
        if len(errors):
            largest = float(np.abs(errors).max())
            self.merge(Moments(len(errors), errors.sum(), np.abs(errors).sum(), float(np.dot(errors, errors)), largest))

    def merge(self, other: Moments) -> None:
        """Adds the sums of another instance."""
        self.count += other.count
        self.total += float(other.total)
        self.absolute += float(other.absolute)
        self.squared += float(other.squared)
        self.max = float(np.fmax(self.max, other.max))

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def std(self) -> float:
        """Standard deviation, of the population."""
        return math.sqrt(max(self.squared / self.count - self.mean**2, 0.0)) if self.count else math.nan

    @property
    def mae(self) -> float:
        return self.absolute / self.count if self.count else math.nan

    @property
    def rmse(self) -> float:
        return math.sqrt(self.squared / self.count) if self.count else math.nan

    def summary(self, scale: Scale) -> dict[str, Any]:
        """For JSON: count, and mae, rmse, max and mean in a unit; null if there are no errors."""
        numbers = {name: getattr(self, name) * scale.factor for name in ("mae", "rmse", "max", "mean")}
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {"unit": scale.unit, **known, "count": self.count}


@dataclass
class Groups:
    """Moments by an integer key, such as the element."""

    of: dict[int, Moments] = field(default_factory=dict)

    def add(self, keys: NDArray[Any], errors: Any) -> None:
        """Adds errors [n] or [n,k] to the groups keys [n]."""
        errors = np.asarray(errors, dtype=np.float64)
        if not len(keys):
            return
        errors = errors.reshape(len(keys), -1)
        found, index = np.unique(keys, return_inverse=True)
        sizes = np.bincount(index) * errors.shape[1]
        total, absolute, squared = (
            np.bincount(index, weights=values.sum(1)) for values in (errors, np.abs(errors), errors**2)
        )
        largest = np.zeros(len(found))
        np.maximum.at(largest, index, np.abs(errors).max(1))
        for place, key in enumerate(found.tolist()):
            self.of.setdefault(key, Moments()).merge(
                Moments(int(sizes[place]), total[place], absolute[place], squared[place], float(largest[place]))
            )


class Sample:
    """Pairs (label, prediction): a random sample of all pairs, and those that differ most.

    It holds all pairs if there are at most `size`.
    """

    def __init__(self, size: int = 100_000, num_extreme: int = 200, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        # The pairs with the smallest of random keys are an unbiased sample.
        self._sample = _SmallestPairs(size, lambda labels, _: random.random(len(labels)))
        self._extreme = _SmallestPairs(num_extreme, lambda labels, predicted: -np.abs(predicted - labels))
        self._size, self.num_seen = size, 0

    def add(self, labels: Any, predicted: Any) -> None:
        """Adds pairs of numbers, of any shape."""
        labels, predicted = (np.asarray(values, dtype=np.float64).ravel() for values in (labels, predicted))
        self.num_seen += len(labels)
        self._sample.add(labels, predicted)
        self._extreme.add(labels, predicted)

    @property
    def pairs(self) -> Floats:
        """The sample [n,2]."""
        return self._sample.pairs()

    @property
    def extreme(self) -> Floats:
        """The pairs [n,2] that differ most; none if the sample holds all pairs."""
        return self._extreme.pairs() if self.num_seen > self._size else np.zeros((0, 2))


class _SmallestPairs:
    """The pairs with the smallest keys; between tidyings up to twice as many."""

    def __init__(self, size: int, key: Callable[[Floats, Floats], Floats]) -> None:
        self._size, self._key = size, key
        self._rows: list[Floats] = []
        self._held, self._limit = 0, np.inf

    def add(self, labels: Floats, predicted: Floats) -> None:
        keys = self._key(labels, predicted)
        near = keys < self._limit
        self._rows.append(np.stack([keys, labels, predicted], axis=1)[near])
        self._held += len(self._rows[-1])
        if self._held > 2 * self._size:
            self._tidy()

    def pairs(self) -> Floats:
        self._tidy()
        return self._rows[0][:, 1:]

    def _tidy(self) -> None:
        rows = np.concatenate([np.zeros((0, 3)), *self._rows])
        if len(rows) > self._size:
            rows = rows[np.argpartition(rows[:, 0], self._size - 1)[: self._size]]
            self._limit = float(rows[:, 0].max())
        self._rows, self._held = [rows], len(rows)
