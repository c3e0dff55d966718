"""Frames in a batch, and what a potential predicts for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.datasets.frames import Frames
from torchmdx.datasets.store import Store
from torchmdx.step.padding import padding_positions
from torchmdx.structures.system import Batch

# Most atoms in a system of padding atoms, so that the neighbour search needs no bins.
PADDING_SYSTEM = 512


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of a potential for frames, with their labels.

    All float64.

    Attributes:
        indices: [F] in the store.
        frames: The labels.
        energy: [F] eV.
        forces: [N,3] eV/Å.
        stress: [F,3,3] eV/Å³, None unless requested, NaN for a frame without a volume.
        energy_spread: [F] eV, forces_spread [N] eV/Å, of an ensemble.
        energy_uncertainty: [F] eV, energies_uncertainty [N] eV, of a single potential that knows them.
    """

    indices: NDArray[np.int64]
    frames: Frames
    energy: NDArray[np.float64]
    forces: NDArray[np.float64]
    stress: NDArray[np.float64] | None
    energy_spread: NDArray[np.float64] | None = None
    forces_spread: NDArray[np.float64] | None = None
    energy_uncertainty: NDArray[np.float64] | None = None
    energies_uncertainty: NDArray[np.float64] | None = None


@dataclass(frozen=True, eq=False)
class LastInputs:
    """Energies [F] eV of frames, and the sums [F,D] over their atoms of the inputs of the last layer; float64.

    Attributes:
        indices: [F] in the store.
        frames: The labels.
    """

    indices: NDArray[np.int64]
    frames: Frames
    energy: NDArray[np.float64]
    sums: NDArray[np.float64]


def named(store: Store, index: int) -> str:
    """Text that names a frame by number and file."""
    source, number = store.origin(index)
    return f"frame {number} of {source!r}"


def pack(frames: Frames, num_atoms: int, num_systems: int, cutoff: float) -> Batch:
    """Frames as a batch in float64, padded by atoms too far apart to see each other, in systems of their own."""
    missing, spare = num_atoms - frames.num_atoms, num_systems - len(frames)
    index = torch.arange(missing, device="cpu")

    def joined(values: NDArray[Any], filling: Tensor) -> Tensor:
        return torch.cat([torch.from_numpy(np.ascontiguousarray(values)), filling])

    return Batch(
        positions=joined(frames.positions, padding_positions(missing, cutoff)),
        atomic_numbers=joined(frames.atomic_numbers, torch.ones(missing, dtype=torch.int64, device="cpu")),
        system_index=joined(frames.frame_index, len(frames) + index // PADDING_SYSTEM),
        cell=joined(frames.cell, torch.zeros(spare, 3, 3, dtype=torch.float64, device="cpu")),
        pbc=joined(frames.pbc, torch.zeros(spare, 3, dtype=torch.bool, device="cpu")),
        charge=joined(frames.charge, torch.zeros(spare, dtype=torch.float64, device="cpu")),
    )
