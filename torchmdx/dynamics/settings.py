"""Checks of what `Dynamics` is given."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchmdx.dynamics.random_numbers import structure_seeds
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.structures.system import Batch

Floats = NDArray[np.float64]

LARGEST_SEED = 2**63 - 1


def warn_of_priors(potentials: Sequence[Potential | Ensemble], batch: Batch) -> None:
    """Warns of what priors say about the structures, such as that their Coulomb energy is truncated; each once."""
    kinds = dict.fromkeys(zip(batch.pbc.any(1).tolist(), batch.charge.tolist(), strict=True))
    doubts = (doubt for potential in potentials for kind in kinds for doubt in potential.prior_doubts(*kind))
    for doubt in dict.fromkeys(doubts):
        warnings.warn(doubt, stacklevel=5)  # who made the `Dynamics`


def checked_timestep(timestep: float) -> float:
    """A timestep in fs. Raises ValueError if it is not > 0 and finite."""
    if not (math.isfinite(timestep) and timestep > 0):
        raise ValueError(f"timestep must be > 0 fs and finite, got {timestep}")
    return float(timestep)


def checked_temperatures(given: Any, num_systems: int, *, zero: bool) -> Floats:
    """Temperatures [S] K, from one or S numbers. zero: whether 0 is allowed. Raises ValueError."""
    values = np.asarray(given, dtype=np.float64)
    if values.shape not in ((), (num_systems,)):
        raise ValueError(f"temperature must be one number or {num_systems}, got shape {list(values.shape)}")
    good = np.isfinite(values) & ((values >= 0) if zero else (values > 0))
    if not good.all():
        bad = float(np.atleast_1d(values)[~np.atleast_1d(good)][0])
        raise ValueError(f"temperature must be {'>=' if zero else '>'} 0 K and finite, got {bad}")
    return np.broadcast_to(values, (num_systems,)).copy()


def checked_seeds(given: Any, num_systems: int) -> NDArray[np.int64]:
    """Seeds [S] from S numbers, or from one by `structure_seeds`. Raises ValueError, TypeError."""
    values = np.asarray(given)
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"seed must be whole numbers, got {given!r}")
    if values.shape not in ((), (num_systems,)):
        raise ValueError(f"seed must be one number or {num_systems}, got shape {list(values.shape)}")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > LARGEST_SEED:
        raise ValueError(f"seed must be from 0 to {LARGEST_SEED}, got {low if low < 0 else high}")
    return structure_seeds(low, num_systems) if values.shape == () else values.astype(np.int64)


def checked_velocities(given: Any, num_atoms: int) -> Floats:
    """Velocities [N,3] Å/fs. Raises ValueError for another shape and values that are not finite."""
    values = np.array(given, dtype=np.float64)
    if values.shape != (num_atoms, 3):
        raise ValueError(f"velocities must have shape [{num_atoms}, 3], got {list(values.shape)}")
    bad = np.flatnonzero(~np.isfinite(values).all(1))
    if len(bad):
        raise ValueError(f"velocities must be finite, got {values[bad[0]].tolist()} Å/fs for atom {bad[0]}")
    return values


def checked_devices(count: int, device: torch.device, num_systems: int) -> list[str]:
    """Names of the first devices of a kind: GPUs, or the CPU. Raises ValueError."""
    if count < 1:
        raise ValueError(f"devices must be >= 1, got {count}")
    if count > num_systems:
        raise ValueError(f"devices must not be more than the {num_systems} structures, got {count}")
    if device.type == "cpu":
        return ["cpu"] * count
    if count > torch.cuda.device_count():
        raise ValueError(f"devices={count}, but only {torch.cuda.device_count()} GPUs are available")
    return [f"{device.type}:{number}" for number in range(count)]
