"""Potentials with an uncertainty, and what it should be: the formula written out, with features by autograd."""

import copy

import numpy as np
import torch

from torchmdx import Batch, Potential, evaluate
from torchmdx.models.uncertainty import Uncertainty, last_layer_size, with_uncertainty


def uncertain(potential: Potential, seed: int = 0, factor: float = 0.3, **settings) -> Potential:
    """The same potential with a random covariance."""
    size = last_layer_size(potential)
    rows = torch.randn(3 * size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    given = dict(covariance=rows.T @ rows / len(rows), regulariser=0.02, factor=factor) | settings
    return with_uncertainty(potential, Uncertainty(**given))


def last_layer_of(potential: Potential) -> list[torch.nn.Parameter]:
    """Weight and bias of the last linear map behind an energy."""
    network = potential.head.layers if potential.config.head == "gated" else potential.head.network
    return [network[-1].weight, network[-1].bias]


def features_by_autograd(potential: Potential, batch: Batch) -> np.ndarray:
    """[N,D] by which the energies of atoms depend on the last layer, over the scale: derivatives one atom at a time."""
    own = copy.deepcopy(with_uncertainty(potential, None))
    for weight in last_layer_of(own):
        weight.requires_grad_()
    energies = evaluate(own, batch, forces=False, create_graph=True).energies
    rows = []
    for energy in energies:
        found = torch.autograd.grad(energy, last_layer_of(own), retain_graph=True)
        rows.append(torch.cat([one.flatten() for one in found]) / own.scale)
    return torch.stack(rows).numpy()


def expected(potential: Potential, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """(σ(E) [S], σ_i [N]) by the inverse of the matrix."""
    known, rows = potential.uncertainty, features_by_autograd(potential, batch)
    inverse = np.linalg.inv(known.covariance.numpy() + known.regulariser * np.eye(known.size))
    system = batch.system_index.numpy()
    sums = [rows[system == number].sum(0) for number in range(batch.num_systems)]
    of_systems, of_atoms = (np.array([known.factor * np.sqrt(f @ inverse @ f) for f in each]) for each in (sums, rows))
    return of_systems, of_atoms
