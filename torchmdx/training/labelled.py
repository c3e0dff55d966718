"""LabelledBatch: frames with labels and weights, padded so that many batches share one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.cell import recentre
from torchmdx.datasets.frames import Frames
from torchmdx.step.padding import padding_positions
from torchmdx.system import Batch

# Numbers of frames with an energy, of atoms with forces, of frames with a stress.
Totals = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """Systems, labels, and weights, which are divided by the number of labels in the global batch.

    batch: S systems, and a last one of the padding atoms, which are too far apart to interact.
    energy [S+1] float64 eV, reference energies included · forces [N,3] eV/Å · stress [S+1,3,3] eV/Å³ ·
    energy_weight [S+1], force_weight [N], stress_weight [S+1]: 0 for padding and missing labels, whose values are 0 ·
    count [S+1]: atoms of each system, at least 1.

    On the host: layout, equal for batches with the same atom counts and periodic directions of their systems; frames:
    indices in the store; num_real: atoms without padding; totals: labels in the global batch.
    """

    batch: Batch
    energy: Tensor
    forces: Tensor
    stress: Tensor
    energy_weight: Tensor
    force_weight: Tensor
    stress_weight: Tensor
    count: Tensor
    layout: tuple[bytes, bytes] = (b"", b"")
    frames: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    num_real: int = 0
    totals: Totals = (0, 0, 0)

    @property
    def shape(self) -> tuple[int, int]:
        """(atoms, systems), padding included."""
        return self.batch.num_atoms, self.batch.num_systems

    def counts(self) -> list[int]:
        """Number of atoms of each system [S+1], padding included, without reading the device."""
        real = np.frombuffer(self.layout[0], np.int64).tolist()
        return [*real, *[0] * (self.batch.num_systems - 1 - len(real)), self.batch.num_atoms - self.num_real]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        everything = {f.name: getattr(self.batch, f.name) for f in fields(Batch)} | own
        return {name: value for name, value in everything.items() if isinstance(value, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> LabelledBatch:
        """The same batch with `change` applied to every tensor."""
        changed = {name: change(value) for name, value in self.tensors().items()}
        batch = Batch(**{f.name: changed.pop(f.name, None) for f in fields(Batch)})  # type: ignore[arg-type]
        return replace(self, batch=batch, **changed)  # type: ignore[arg-type]

    def to(self, device: torch.device) -> LabelledBatch:
        """The batch on a device; asynchronous from pinned memory."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> LabelledBatch:
        """The batch in pinned memory, for asynchronous copies to a GPU."""
        return self.map(Tensor.pin_memory)


def label(
    frames: Frames,
    indices: NDArray[np.int64],
    *,
    num_atoms: int,
    num_systems: int,
    cutoff: float,
    dtype: torch.dtype,
    totals: Totals | None = None,
) -> LabelledBatch:
    """A batch of `frames`, whose indices in the store are `indices`, padded to num_atoms and num_systems + 1.

    totals: labels in the global batch; None if it consists of these frames.
    """
    real, missing, first = frames.num_atoms, num_atoms - frames.num_atoms, len(frames)
    if missing < 0 or first > num_systems:
        raise ValueError(
            f"frames must fit {num_atoms} atoms and {num_systems} systems, got {real} atoms and {first} systems"
        )
    totals = count_labels(frames) if totals is None else totals
    energies, atoms, stresses = (max(total, 1) for total in totals)
    has_energy, has_stress = frames.has_energy, np.asarray(frames.has_stress)
    has_forces: Any = np.repeat(frames.has_forces, frames.counts)

    def per_system(values: Any, fill: float = 0) -> Tensor:
        out = np.full((num_systems + 1, *values.shape[1:]), fill, values.dtype)
        out[:first] = values
        return torch.from_numpy(out)

    def per_atom(values: Any, fill: float = 0) -> Tensor:
        out = np.full((num_atoms, *values.shape[1:]), fill, values.dtype)
        out[:real] = values
        return torch.from_numpy(out)

    pbc: Any = frames.pbc
    positions = per_atom(_near_origin(frames))
    positions[real:] = padding_positions(missing, cutoff)
    system_index = per_atom(np.repeat(np.arange(first), frames.counts), num_systems)
    batch = Batch(
        positions=positions.to(dtype),
        atomic_numbers=per_atom(frames.atomic_numbers, 1),
        system_index=system_index,
        cell=per_system(np.where(pbc.any(1)[:, None, None], frames.cell, 0.0)).to(dtype),
        pbc=per_system(pbc),
        charge=per_system(frames.charge).to(dtype),
    )
    return LabelledBatch(
        batch=batch,
        energy=per_system(np.where(has_energy, frames.energy, 0.0)),
        forces=per_atom(np.where(has_forces[:, None], frames.forces, 0.0)).to(dtype),
        stress=per_system(np.where(has_stress[:, None, None], frames.stress, 0.0)).to(dtype),
        energy_weight=per_system(has_energy / energies).to(dtype),
        force_weight=per_atom(has_forces / (3 * atoms)).to(dtype),
        stress_weight=per_system(has_stress / (9 * stresses)).to(dtype),
        count=per_system(np.maximum(frames.counts, 1), 1).to(dtype),
        layout=(frames.counts.tobytes(), frames.pbc.tobytes()),
        frames=indices,
        num_real=real,
        totals=totals,
    )


def count_labels(frames: Frames) -> Totals:
    """Numbers of energies, of atoms with forces, of stresses."""
    return int(frames.has_energy.sum()), int(frames.counts[frames.has_forces].sum()), int(frames.has_stress.sum())


def _near_origin(frames: Frames) -> NDArray[np.float64]:
    """Positions [N,3] near the origin, where float32 has the best resolution."""
    index = np.repeat(np.arange(len(frames)), frames.counts)
    if frames.pbc.any():
        cell, pbc = torch.from_numpy(frames.cell), torch.from_numpy(frames.pbc)
        near: NDArray[np.float64] = recentre(
            torch.from_numpy(frames.positions), cell, pbc, torch.from_numpy(index)
        ).numpy()
        return near
    centres = np.stack([np.bincount(index, column, len(frames)) for column in frames.positions.T], axis=1)
    return frames.positions - (centres / np.maximum(frames.counts, 1)[:, None])[index]
