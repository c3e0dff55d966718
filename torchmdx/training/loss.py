"""The loss: weighted means of functions of errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchmdx.training.loss_section import LossSection, TermSection


def error_function(errors: Tensor, term: TermSection) -> Tensor:
    """Function of each error e: e², |e|, or Huber's, e²/2 up to delta and delta (|e| - delta/2) beyond."""
    if term.function == "mse":
        return errors * errors
    size = errors.abs()
    if term.function == "mae":
        return size
    bent = size.clamp(max=term.delta)
    return bent * (size - bent / 2)


def term_weights(loss: LossSection, progress: float) -> tuple[float, ...]:
    """Weights of the terms, in the order of TERMS, at this fraction of the epochs."""
    length = loss.change_to - loss.change_from
    if length > 0:
        share = min(max((progress - loss.change_from) / length, 0.0), 1.0)
    else:
        share = float(progress >= loss.change_to)
    terms = tuple(loss.terms().values())
    starts = [term.weight or 0.0 for term in terms]
    finals = [
        start if term.final_weight is None else term.final_weight for term, start in zip(terms, starts, strict=True)
    ]
    return tuple(start + share * (final - start) for start, final in zip(starts, finals, strict=True))


def used_terms(loss: LossSection) -> tuple[str, ...]:
    """Terms with a weight at any time; the others are not computed."""
    return tuple(name for name, term in loss.terms().items() if term.weight or term.final_weight)


def weighted_sum(
    errors: Tensor, weights: Tensor, term: TermSection, importance: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Σ importance · weight · function(error), Σ weight · |error| and Σ weight · error², one weight each per row.

    Rows of weight 0 may hold any values. importance: None is 1.
    """
    column = (-1, *[1] * (errors.dim() - 1))
    weights = weights.reshape(column)
    errors = torch.where(weights > 0, errors, 0.0)  # a product would keep NaN, the stress of a system without cell
    losses = weights * error_function(errors, term)
    total, size = losses if importance is None else importance.reshape(column) * losses, errors.detach().abs()
    return total.sum(), (weights * size).sum(), (weights * size * size).sum()


def total(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    """The weighted sum of all terms, with weights on the device."""
    return (torch.stack(list(values)) * weights).sum()
