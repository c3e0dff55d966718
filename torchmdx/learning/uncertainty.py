"""How uncertain a potential is: one number for each frame, by the kind of uncertainty that a run has."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from torchmdx.dynamics.snapshot import Snapshot
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential

Floats = NDArray[np.float64]


def require_uncertain(potential: Potential | Ensemble, kind: str, name: str) -> None:
    """Raises ValueError for a potential that does not know its uncertainty. name: of its file."""
    if kind == "ensemble" and not isinstance(potential, Ensemble):
        raise ValueError(
            f"uncertainty.kind {kind} needs an ensemble to explore with, got the single potential {name!r}: set "
            "start.count or start.data, so that an ensemble is trained before the first round"
        )
    if kind == "last_layer" and getattr(potential, "uncertainty", None) is None:
        raise ValueError(
            f"uncertainty.kind {kind} needs a potential with an uncertainty to explore with, got {name!r} without: add "
            "one with `torchmdx uncertainty`, or label and hold out more frames (start.count, train.data.validation)"
        )


def uncertainties(snapshot: Snapshot) -> Floats:
    """Of each structure [S] the largest of its atoms: eV/Å of a force, or eV of an energy of a single potential."""
    spreads = snapshot.largest_force_spread
    found: Floats = np.where(np.isnan(spreads), snapshot.largest_uncertainty, spreads)
    return found


def quantile(values: Floats, share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN without any."""
    if not len(values):
        return math.nan
    return float(np.sort(values)[max(0, math.ceil(share * len(values)) - 1)])
