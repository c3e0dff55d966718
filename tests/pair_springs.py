"""A potential whose averages are known in closed form: a spring without length between each pair of atoms.

N atoms have 3 (N - 1) independent vibrations of the stiffness N K, so that in the canonical ensemble the energy above
its minimum is gamma distributed, with the shape 3 (N - 1) / 2 and the scale k T.
"""

import numpy as np
import torch

import torchmdx
from torchmdx import Batch, Potential, System
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION

NUM_ATOMS, STIFFNESS, CUTOFF, MASS = 4, 0.5, 20.0, 12.0  # eV/Å², Å, amu
SHAPE = 1.5 * (NUM_ATOMS - 1)
MINIMUM = -0.25 * STIFFNESS * CUTOFF**2 * NUM_ATOMS * (NUM_ATOMS - 1)  # eV
FREQUENCY = np.sqrt(NUM_ATOMS * STIFFNESS / MASS * FORCE_TO_ACCELERATION)  # 1/fs, of all vibrations


class PairSprings(torch.nn.Module):
    """K/2 (r² - cutoff²) for each pair: continuous at the cutoff, which atoms do not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stiffness", torch.tensor(STIFFNESS))

    def forward(self, vectors, edge_index, atomic_numbers):
        inside = torch.clamp((vectors**2).sum(-1) - CUTOFF**2, max=0.0)
        energies = 0.25 * self.stiffness * inside
        atoms = torch.arange(len(atomic_numbers), device=vectors.device)
        return (edge_index[1] == atoms[:, None]).to(vectors.dtype) @ energies  # a sum whose order is always the same


def pair_springs(dtype=torch.float64) -> Potential:
    return torchmdx.wrap(PairSprings(), cutoff=CUTOFF, elements=[6]).to(dtype)


def replicas(temperatures, seed=0) -> Batch:
    """One structure for each temperature, with positions of the canonical ensemble around its centre of mass."""
    rng = np.random.default_rng(seed)
    scale = np.sqrt(BOLTZMANN * np.asarray(temperatures) / (NUM_ATOMS * STIFFNESS))
    numbers = np.full(NUM_ATOMS, 6)
    return Batch.from_systems(
        [System.create(s * rng.normal(size=(NUM_ATOMS, 3)), numbers, dtype=torch.float64) for s in scale]
    )


def reduced(energy, temperatures):
    """Energies above the minimum in units of k T."""
    return (np.asarray(energy) - MINIMUM) / (BOLTZMANN * np.asarray(temperatures))
