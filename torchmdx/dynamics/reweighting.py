"""Free energies of several states from samples of all of them: MBAR (Shirts and Chodera, 2008), and profiles.

A state k has a reduced energy u_k(x), minus the exponent of its Boltzmann factor: (U + E_k) / kT for an umbrella window
with the restraint energy E_k, U / kT_k for a replica at the temperature T_k. Terms that are equal in all states cancel.
Free energies f are in units of kT; N_k samples come from state k:

    exp(-f_k) = Σ_n exp(-u_k(x_n)) / Σ_j N_j exp(f_j - u_j(x_n))
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 1e-8  # of the sums of weights, relative to the numbers of samples
FIRST_ROUNDS, MOST_ROUNDS = 20, 200


def free_energies(reduced: Floats, counts: Integers) -> Floats:
    """f [K] in units of kT, 0 for the first state.

    reduced [K,N]: u_k of all samples, in any order. counts [K]: N_k. Raises ValueError for arguments that do not fit,
    and for states without overlap, whose free energies are not defined.
    """
    _check(reduced, counts)
    found: Floats = np.zeros(len(counts))
    for number in range(MOST_ROUNDS):
        parts: Floats = counts.astype(np.float64)[:, None] * np.exp(
            found[:, None] - reduced - _log_mixture(reduced, counts, found)
        )
        if np.abs(counts - parts.sum(1)).max() <= TOLERANCE * counts.max():
            return found
        if number < FIRST_ROUNDS:  # self-consistent iterations approach from anywhere, Newton's method is fast
            found = found + np.log(counts / parts.sum(1))
        else:
            found = _newton(reduced, counts, found, parts)
        found = found - found[0]
    raise ValueError(
        f"the free energies of {len(counts)} states did not converge within {MOST_ROUNDS} iterations: neighbouring "
        "states must share samples"
    )


def weights(reduced: Floats, counts: Integers, target: Floats) -> Floats:
    """Weights [N] of the samples in a state with the reduced energies `target` [N]; their sum is 1.

    reduced, counts: as for `free_energies`. For the mean of a property, sum its products with the weights.
    """
    found = free_energies(reduced, counts)
    exponent = -np.asarray(target, dtype=np.float64) - _log_mixture(reduced, counts, found)
    factors = np.exp(exponent - exponent.max())
    made: Floats = factors / factors.sum()
    return made


def profile(values: Floats, weight: Floats, edges: Floats) -> Floats:
    """Free energy of a coordinate in bins [B], in units of kT, 0 in the lowest; infinite in bins without samples.

    values, weight [N]; edges [B+1] of bins of equal width.
    """
    density, _ = np.histogram(values, edges, weights=weight)
    with np.errstate(divide="ignore"):
        found: Floats = -np.log(density / density.max())
    return found


def _newton(reduced: Floats, counts: Integers, found: Floats, parts: Floats) -> Floats:
    """One step on the convex function whose gradient is minus `missing`, halved until the function falls."""
    missing = counts - parts.sum(1)
    hessian = np.diag(parts.sum(1)) - parts @ parts.T
    step = np.zeros_like(found)
    step[1:] = np.linalg.lstsq(hessian[1:, 1:], missing[1:], rcond=None)[0]
    before = _objective(reduced, counts, found)
    for _ in range(30):
        if _objective(reduced, counts, found + step) <= before:
            return found + step
        step = step / 2
    result: Floats = found + np.log(counts / parts.sum(1))
    return result


def _objective(reduced: Floats, counts: Integers, found: Floats) -> float:
    return float(_log_mixture(reduced, counts, found).sum() - counts @ found)


def _log_mixture(reduced: Floats, counts: Integers, found: Floats) -> Floats:
    """log Σ_k N_k exp(f_k - u_k) of each sample [N]."""
    exponents = np.log(counts)[:, None] + found[:, None] - reduced
    highest = exponents.max(0)
    total: Floats = highest + np.log(np.exp(exponents - highest).sum(0))
    return total


def _check(reduced: Floats, counts: Integers) -> None:
    if reduced.ndim != 2 or counts.shape != reduced.shape[:1]:
        raise ValueError(f"reduced must be [K,N] and counts [K], got {list(reduced.shape)} and {list(counts.shape)}")
    if counts.min() < 1 or counts.sum() != reduced.shape[1]:
        raise ValueError(f"counts must be >= 1 and sum to {reduced.shape[1]} samples, got {counts.tolist()}")
    if not np.isfinite(reduced).all():
        raise ValueError("reduced energies must be finite")
