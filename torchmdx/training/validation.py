"""Validation: errors on the held-out frames, those of the new data and those of replayed ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.training.batches import Batches, Ranks
from torchmdx.training.config import Config
from torchmdx.training.epoch_means import EpochMeans
from torchmdx.training.heads import OLD
from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.loss import term_weights
from torchmdx.training.optimizer import averaged
from torchmdx.training.pending_steps import TrainingError
from torchmdx.training.step import OVERFLOW, VALUES, TrainStep

# Prefixes of the values of both sets, of the test set of a fine-tuning, and the value that chooses the best checkpoint.
NEW, TEST, CHOICE = "validation", "test", "choice_loss"


# Batches of a set, or of each of its heads.
Held = Batches | Mapping[str, Batches]


def validate(step: TrainStep, sets: Mapping[str, Held], config: Config, epoch: int) -> dict[str, float]:
    """Loss and errors of the averaged weights on each set, by names such as validation_loss and old_forces_rmse.

    Of heads also those of each, such as validation_pbe_forces.

    With a set of replayed frames there is also choice_loss: the mean of both losses, with the shares that both sets
    have in the training. Losses use the final weights of the terms, so that epochs can be compared.

    Raises:
        TrainingError: For a loss that is not finite.
    """
    found: dict[str, float] = {}
    weights = term_weights(config.loss, 1.0)
    with averaged(step.optimizer):
        for name, batches in sets.items():
            values = _of_set(step, name, batches, weights)
            if not math.isfinite(values[f"{name}_loss"]):
                loss = values[f"{name}_loss"]
                raise TrainingError(f"the {name} loss must be finite, got {loss} after epoch {epoch}")
            found |= values
    if OLD in sets:
        share = config.finetune.replay_share
        found[CHOICE] = (1 - share) * found[f"{NEW}_loss"] + share * found[f"{OLD}_loss"]
    return found


def _of_set(step: TrainStep, name: str, batches: Held, weights: Sequence[float]) -> dict[str, float]:
    """Values of a set, and of each of its heads."""
    if isinstance(batches, Batches):
        return named(_means(step, batches), name, weights)
    heads = {head: _means(step, part) for head, part in batches.items()}
    found = named(EpochMeans.together(heads.values()), name, weights)
    for head, means in heads.items():
        found |= named(means, f"{name}_{head}", weights)
    return found


def named(means: EpochMeans, name: str, weights: Sequence[float]) -> dict[str, float]:
    """Loss, errors and root mean square errors by names that begin with `name`."""
    return {f"{name}_{key}": value for key, value in (means.all(weights) | means.squares()).items()}


def errors_of(
    potentials: Mapping[str, Potential], config: Config, store: Store, parts: Mapping[str, NDArray[np.int64]], name: str
) -> dict[str, float]:
    """Loss and errors of potentials on their frames, in this process alone, by names as those of `validate`.

    Args:
        potentials: One with the name "", or one for each head, as `parts`.
    """
    weights = term_weights(config.loss, 1.0)
    means = {head: _errors_of(one, config, store, parts[head]) for head, one in potentials.items()}
    found = named(EpochMeans.together(means.values()), name, weights)
    for head in means.keys() - {""}:
        found |= named(means[head], f"{name}_{head}", weights)
    return found


def _errors_of(potential: Potential, config: Config, store: Store, indices: NDArray[np.int64]) -> EpochMeans:
    training = config.training
    batches = Batches(
        store,
        indices,
        training.validation_batch_size or training.batch_size,
        cutoff=potential.cutoff,
        dtype=potential.dtype,
        device=potential.device,
        seed=None,
        ranks=Ranks(),
        prefetch=training.prefetch,
    )
    step = TrainStep(potential.requires_grad_(True), config.loss, config.optimizer, record=False)
    return _means(step, batches)


def choice(found: Mapping[str, float]) -> float:
    """The loss by which checkpoints are compared."""
    return found.get(CHOICE, found[f"{NEW}_loss"])


def _means(step: TrainStep, batches: Batches) -> EpochMeans:
    means, rows, labels = EpochMeans(), [], []
    step.stop.fill_(0.0)
    for labelled in batches.epoch(0):
        rows.append(_evaluated(step, labelled))
        labels.append(labelled.totals)
    for row, totals in zip(torch.stack(rows).tolist(), labels, strict=True):
        means.add(dict(zip(VALUES, row, strict=True)), totals)
    return means


def _evaluated(step: TrainStep, labelled: LabelledBatch) -> Tensor:
    values = step.evaluate(labelled)
    while values[OVERFLOW]:
        step.grow(labelled)
        values = step.evaluate(labelled)
    return values
