"""Labels of energies and forces that contradict each other, noticed by what a network learns from them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from torchmdx.datasets.references import composition
from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.potential import Potential
from torchmdx.report.energy_labels import EnergyLabels
from torchmdx.report.hints import disagreement
from torchmdx.training.labelled import label

MOST_FRAMES, MOST_ATOMS = 64, 1500
AT_ONCE = 8  # frames
# Shares of the epochs after which labels are compared with predictions.
LOOKS = (0.1, 0.3, 1.0)


def is_due(epoch: int, epochs: int) -> bool:
    """Whether labels are compared after this number of epochs."""
    return epoch in {max(1, round(share * epochs)) for share in LOOKS}


def contradiction(potential: Potential, store: Store, train: NDArray[np.int64]) -> str | None:
    """A sentence if the potential follows the labels of one quantity and runs against those of the other.

    On a sample of the training frames, with the weights that the potential has. None also for too few frames.
    """
    sample = train[:: max(1, -(-len(train) // MOST_FRAMES))]
    sample = sample[np.cumsum(store.counts[sample]) <= MOST_ATOMS]
    energies, products = EnergyLabels(), np.zeros(3)
    for start in range(0, len(sample), AT_ONCE):
        products += _compared(potential, store, sample[start : start + AT_ONCE], energies)
    labels, both, predicted = products.tolist()
    if not (labels > 0 and predicted > 0):
        return None
    return disagreement(both / (labels * predicted) ** 0.5, energies.correlation)


def _compared(
    potential: Potential, store: Store, indices: NDArray[np.int64], energies: EnergyLabels
) -> NDArray[np.float64]:
    """Adds energies, and returns sums of label², label · prediction and prediction² of forces."""
    frames = store.gather(indices)
    frames = frames.take(np.flatnonzero(frames.has_energy & frames.has_forces))
    if not len(frames):
        return np.zeros(3)
    labelled = label(
        frames,
        indices[: len(frames)],
        num_atoms=frames.num_atoms,
        num_systems=len(frames),
        cutoff=potential.cutoff,
        dtype=potential.dtype,
    ).to(potential.device)
    result = evaluate(potential, labelled.batch)
    assert result.forces is not None
    predicted = result.forces.detach().double().cpu().numpy()[: frames.num_atoms]
    energy = result.energy.detach().double().cpu().numpy()[: len(frames)]
    counts = composition(frames.counts, frames.atomic_numbers, potential.max_z).astype(np.int64)
    energies.add(counts, frames.energy / frames.counts, energy / frames.counts)
    forces = frames.forces.astype(np.float64)
    return np.array([(forces**2).sum(), (forces * predicted).sum(), (predicted**2).sum()])
