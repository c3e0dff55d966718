"""Free energies of several states from samples of all of them: MBAR (Shirts and Chodera, 2008), and profiles.

A state k has a reduced energy u_k(x), minus the exponent of its Boltzmann factor: (U + E_k) / kT for an umbrella window
with the restraint energy E_k, U / kT_k for a replica at the temperature T_k. Terms that are equal in all states cancel.
Free energies f are in units of kT; N_k samples come from state k::

    exp(-f_k) = Σ_n exp(-u_k(x_n)) / Σ_j N_j exp(f_j - u_j(x_n))
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TOLERANCE = 1e-8  # of the sums of weights of each state
FIRST_ROUNDS, MOST_ROUNDS = 20, 200


def free_energies(reduced: Floats, counts: Integers) -> Floats:
    """f [K] in units of kT, 0 for the first state.

    Args:
        reduced ([K,N]): u_k of all samples, in any order.
        counts ([K]): N_k.

    Raises:
        ValueError: For arguments that do not fit, and for states without overlap, whose free energies are not defined.
    """
    _check(reduced, counts)
    # What samples or states have in common cancels. Without it, sums keep the digits that matter.
    reduced = reduced - reduced.min(0)
    offsets: Floats = reduced.mean(1)
    reduced = reduced - offsets[:, None]
    found = np.zeros(len(counts))
    numbers = counts.astype(np.float64)
    for number in range(MOST_ROUNDS):
        exponents = found[:, None] - reduced - _log_mixture(reduced, counts, found)
        logs = _log_sum(exponents, axis=1)
        if np.abs(np.expm1(logs)).max() <= TOLERANCE:
            moved: Floats = found + offsets
            return moved - moved[0]
        if number < FIRST_ROUNDS:  # self-consistent iterations approach from anywhere, Newton's method is fast
            found = found - logs
        else:
            found = _newton(reduced, counts, found, numbers[:, None] * np.exp(exponents))
        found = found - found[0]
    raise ValueError(
        f"the free energies of {len(counts)} states did not converge within {MOST_ROUNDS} iterations: neighbouring "
        "states must share samples"
    )


def weights(reduced: Floats, counts: Integers, target: Floats) -> Floats:
    """Weights [N] of the samples in a state with the reduced energies `target` [N]; their sum is 1.

    Args:
        reduced, counts: As for `free_energies`. For the mean of a property, sum its products with the weights.
    """
    found = free_energies(reduced, counts)
    exponent = -np.asarray(target, dtype=np.float64) - _log_mixture(reduced, counts, found)
    factors = np.exp(exponent - exponent.max())
    made: Floats = factors / factors.sum()
    return made


def errors_of_differences(reduced: Floats, counts: Integers) -> Floats:
    """Standard errors [K,K] of f_j - f_i, in units of kT, of independent samples.

    Args:
        reduced, counts: As for `free_energies`. The covariance of f is Θ = V Σ (1 - Σ Vᵀ N V Σ)⁺ Σ Vᵀ, where W = U Σ Vᵀ
            are the weights [N,K] of the samples in the states, and N is the diagonal matrix of N_k. Errors are too
            small for samples that are correlated: leave a correlation time between them.
    """
    _, singular, right = np.linalg.svd(_state_weights(reduced, counts), full_matrices=False)
    scaled = right.T * singular
    inner = np.eye(len(counts)) - scaled.T @ (counts[:, None] * scaled)
    covariance = scaled @ np.linalg.pinv(inner, rcond=1e-10, hermitian=True) @ scaled.T
    own = np.diag(covariance)
    found: Floats = np.sqrt(np.maximum(own[:, None] + own - 2 * covariance, 0))
    return found


def overlap(reduced: Floats, counts: Integers) -> Floats:
    """Overlap [K,K] of the states: the probability that a sample of state i is one of state j. Rows sum to 1.

    Args:
        reduced, counts: As for `free_energies`. Neighbouring states need at least 0.03 for errors that can be relied
            on.
    """
    weight = _state_weights(reduced, counts)
    shared: Floats = weight.T @ weight * counts
    return shared


def profile(values: Floats, weight: Floats, edges: Floats) -> Floats:
    """Free energy of a coordinate in bins [B], in units of kT, 0 in the lowest; infinite in bins without samples.

    values, weight [N]; edges [B+1] of bins of equal width.
    """
    found = _minus_log(values, weight, edges)
    return found - found.min()


def profile_with_error(
    values: Floats, reduced: Floats, target: Floats, edges: Floats, num_blocks: int = 4
) -> tuple[Floats, Floats]:
    """Free energy of a coordinate in bins [B] and its standard error, in units of kT, from frames in order of time.

    Args:
        values ([F,S]): Of F frames of S structures. reduced [K,F,S], target [F,S]: reduced energies of the K sampled
            states, with equal numbers of frames, and of the target state. The error is that of the logarithm of a bin's
            probability, from blocks of frames: NaN in bins that at most one block has reached, and too small if blocks
            are shorter than the slowest motion.
    """
    frames = len(values)
    if not 2 <= num_blocks <= frames:
        raise ValueError(f"num_blocks must be from 2 to the number of frames, {frames}, got {num_blocks}")
    blocks = [
        slice(0, frames),
        *(slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(frames), num_blocks)),
    ]
    found = []
    for block in blocks:
        states = reduced[:, block].reshape(len(reduced), -1)
        counts = np.full(len(reduced), states.shape[1] // len(reduced))
        found.append(_minus_log(values[block].ravel(), weights(states, counts, target[block].ravel()), edges))
    whole, parts = found[0], np.array(found[1:])
    reached = np.isfinite(parts)
    parts = np.where(reached, parts, 0.0)
    number = reached.sum(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = parts.sum(0, where=reached) / number
        variance = np.where(reached, (parts - mean) ** 2, 0.0).sum(0) / (number - 1)
        error: Floats = np.where(number > 1, np.sqrt(variance / number), np.nan)
    return whole - whole.min(), error


def agreement(first: Iterable[Floats], second: Iterable[Floats]) -> tuple[float, int]:
    """How far two profiles are apart, in combined standard errors, root mean square; and in how many bins B.

    Args:
        first, second: Free energies and standard errors of the same bins, as of `profile_with_error`. Bins without a
            value in one of them are left out. Leave out bins that few blocks have reached as well: their error may be
            small by chance. The arbitrary constant between profiles is fitted, so a sum over B bins is divided by B -
            1: profiles that agree give about 1. NaN for fewer than two bins.

    Raises:
        ValueError: For errors that are not > 0.
    """
    (height, error), (other_height, other_error) = first, second
    difference, variance = height - other_height, error**2 + other_error**2
    known = np.isfinite(difference) & np.isfinite(variance)
    difference, variance = difference[known], variance[known]
    if not (variance > 0).all():
        raise ValueError("errors must be > 0, got 0 in both profiles")
    if len(difference) < 2:
        return np.nan, len(difference)
    difference = difference - np.average(difference, weights=1 / variance)
    return float(np.sqrt((difference**2 / variance).sum() / (len(difference) - 1))), len(difference)


def _minus_log(values: Floats, weight: Floats, edges: Floats) -> Floats:
    """Minus the logarithm of the probability of each bin [B]; infinite without samples."""
    probability, _ = np.histogram(values, edges, weights=weight)
    with np.errstate(divide="ignore"):
        found: Floats = -np.log(probability)
    return found


def _state_weights(reduced: Floats, counts: Integers) -> Floats:
    """Weights [N,K] of the samples in each of the states; columns sum to 1."""
    found = free_energies(reduced, counts)
    made: Floats = np.exp(found[:, None] - reduced - _log_mixture(reduced, counts, found)).T
    return made


def _newton(reduced: Floats, counts: Integers, found: Floats, parts: Floats) -> Floats:
    """A step of Newton's method on the convex function whose minimum is the solution, halved until that falls."""
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
    return _log_sum(np.log(counts)[:, None] + found[:, None] - reduced, axis=0)


def _log_sum(exponents: Floats, axis: int) -> Floats:
    """log Σ exp along an axis."""
    highest = exponents.max(axis, keepdims=True)
    total: Floats = (highest + np.log(np.exp(exponents - highest).sum(axis, keepdims=True))).squeeze(axis)
    return total


def _check(reduced: Floats, counts: Integers) -> None:
    if reduced.ndim != 2 or counts.shape != reduced.shape[:1]:
        raise ValueError(f"reduced must be [K,N] and counts [K], got {list(reduced.shape)} and {list(counts.shape)}")
    if counts.min() < 1 or counts.sum() != reduced.shape[1]:
        raise ValueError(f"counts must be >= 1 and sum to {reduced.shape[1]} samples, got {counts.tolist()}")
    if not np.isfinite(reduced).all():
        raise ValueError("reduced energies must be finite")
