"""The default weight of the stress in the loss, from the labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchmdx.datasets.references import composition, robust_references
from torchmdx.datasets.store import Store
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.loss import error_function
from torchmdx.training.loss_section import LossSection, TermSection

SAMPLE, CHUNK = 10_000, 256  # frames
DIGITS = 3


def with_stress_weight(config: Config, store: Store, train: np.ndarray) -> tuple[Config, str | None]:
    """The configuration with a number for loss.stress.weight, and a line that says which if the data have stress.

    0 without labels of stress. Otherwise the term of the stress is at the start as large as that of the forces, or of
    the energy without forces, because a new network predicts about zero.
    """
    loss = config.loss
    if loss.stress.weight is not None:
        return config, None
    if "stress" not in store.labels:
        return with_weight(config, 0.0), None
    sample = train[:: max(1, -(-len(train) // SAMPLE))]
    sizes = {name: _mean(store, sample, name, loss.terms()[name]) for name in ("energy", "forces", "stress")}
    reference = next((name for name in ("forces", "energy") if loss.terms()[name].weight and sizes[name] > 0), None)
    if reference is None or not sizes["stress"] > 0:
        return with_weight(config, 0.0), "loss.stress.weight: 0, as there is nothing to balance the stress with"
    weight = float(f"{(loss.terms()[reference].weight or 0.0) * sizes[reference] / sizes['stress']:.{DIGITS}g}")
    what = "the forces" if reference == "forces" else "the energies"
    said = f"loss.stress.weight: {number(weight)}, by which stress and {what} start with the same loss; 0 omits stress"
    return with_weight(config, weight), said


def with_weight(config: Config, weight: float) -> Config:
    """The configuration with this weight of the stress."""
    stress = config.loss.stress.model_copy(update={"weight": weight})
    loss = LossSection.model_validate(config.loss.model_copy(update={"stress": stress}).model_dump())
    return config.model_copy(update={"loss": loss})


def with_saved_weight(config: Config, saved: Mapping[str, Any]) -> Config:
    """The configuration of a resumed run with the weight that the run began with, unless a number is set."""
    if config.loss.stress.weight is not None:
        return config
    weight = saved.get("loss", {}).get("stress", {}).get("weight")
    return config if weight is None else with_weight(config, float(weight))


def _mean(store: Store, indices: np.ndarray, name: str, term: TermSection) -> float:
    """Mean of the term's function of the labels; of energies per atom, without what composition explains."""
    total, count = 0.0, 0
    if name not in store.labels:
        return 0.0
    fit = robust_references(store, indices) if name == "energy" else None
    for start in range(0, len(indices), CHUNK):
        frames = store.gather(indices[start : start + CHUNK])
        if fit is not None:
            counts = composition(frames.counts, frames.atomic_numbers, len(fit.coefficients) - 1)
            values = (frames.energy - counts @ fit.coefficients) / frames.counts - fit.middle
        else:
            values = np.asarray(getattr(frames, name), np.float64)
        values = values[np.isfinite(values)]
        total += float(error_function(torch.from_numpy(values), term).sum())
        count += values.size
    return total / count if count else 0.0
