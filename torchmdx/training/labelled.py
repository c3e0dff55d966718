"""LabelledBatch: frames with labels and weights, padded so that many batches share one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.datasets.frames import OF_ATOMS, Frames
from torchmdx.models.priors.bulk import Crystals
from torchmdx.step.padding import padding_positions
from torchmdx.structures.cell import recentre
from torchmdx.structures.system import Batch
from torchmdx.training.loss_section import TERMS

# Numbers of labels of each term: frames with an energy, atoms with forces, frames with a stress, atoms with a charge,
# frames with a dipole moment.
Totals = tuple[int, ...]
NO_TYPE = "Default"  # the name of frames without a config_type


@dataclass(frozen=True, eq=False)
class LabelledBatch:
    """Systems, labels, and weights, which are divided by the number of labels in the global batch.

    batch: S systems, and a last one of the padding atoms, which are too far apart to interact.
    energy [S+1] float64 eV, reference energies included · forces [N,3] eV/Å · stress [S+1,3,3] eV/Å³ · charges [N] e ·
    dipole [S+1,3] e Å · energy_weight [S+1], force_weight [N], stress_weight [S+1], charges_weight [N], dipole_weight
    [S+1]: 0 for padding and missing labels, whose values are 0 ·
    frame_weight [S+1]: of each system in the loss, not in mean errors · count [S+1]: atoms of each system, at least 1 ·
    head [S+1]: of several, the number of each system's.

    On the host: layout, equal for batches with the same atom counts and periodic directions of their systems; crystals:
    cells, directions and counts; frames: indices in the store; num_real: atoms without padding; totals: labels in the
    global batch.
    """

    batch: Batch
    energy: Tensor
    forces: Tensor
    stress: Tensor
    energy_weight: Tensor
    force_weight: Tensor
    stress_weight: Tensor
    charges: Tensor
    charges_weight: Tensor
    dipole: Tensor
    dipole_weight: Tensor
    frame_weight: Tensor
    count: Tensor
    head: Tensor
    layout: tuple[bytes, bytes] = (b"", b"")
    crystals: Crystals = field(default_factory=Crystals.none)
    frames: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    num_real: int = 0
    totals: Totals = (0,) * len(TERMS)

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
    frame_weight: NDArray[np.float64] | None = None,
    head: NDArray[np.int64] | None = None,
) -> LabelledBatch:
    """A batch of `frames`, whose indices in the store are `indices`, padded to num_atoms and num_systems + 1.

    Args:
        totals: Labels in the global batch; None if it consists of these frames. frame_weight [F] in the loss; None:
            that of the frames. head [F]: None is 0.
    """
    real, missing, first = frames.num_atoms, num_atoms - frames.num_atoms, len(frames)
    if missing < 0 or first > num_systems:
        raise ValueError(
            f"frames must fit {num_atoms} atoms and {num_systems} systems, got {real} atoms and {first} systems"
        )
    totals = count_labels(frames) if totals is None else totals
    energies, atoms, stresses, charged, dipoles = (max(total, 1) for total in totals)
    has_energy, has_stress, has_dipole = (np.asarray(frames.has(name)) for name in ("energy", "stress", "dipole"))
    has_forces, has_charges = (np.repeat(frames.has(name), frames.counts) for name in ("forces", "charges"))

    per_system, per_atom = partial(_padded, size=num_systems + 1), partial(_padded, size=num_atoms)
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
        charges=per_atom(np.where(has_charges, frames.charges, 0.0)).to(dtype),
        charges_weight=per_atom(has_charges / charged).to(dtype),
        dipole=per_system(np.where(has_dipole[:, None], frames.dipole, 0.0)).to(dtype),
        dipole_weight=per_system(has_dipole / (3 * dipoles)).to(dtype),
        frame_weight=per_system(frames.weight if frame_weight is None else frame_weight).to(dtype),
        count=per_system(np.maximum(frames.counts, 1), 1).to(dtype),
        head=per_system(np.zeros(first, np.int64) if head is None else head),
        layout=(frames.counts.tobytes(), frames.pbc.tobytes()),
        crystals=Crystals(frames.cell, frames.pbc, frames.counts),
        frames=indices,
        num_real=real,
        totals=totals,
    )


def _padded(values: Any, fill: float = 0, *, size: int) -> Tensor:
    """The values with rows of `fill` after them, `size` rows in all."""
    out = np.full((size, *values.shape[1:]), fill, values.dtype)
    out[: len(values)] = values
    return torch.from_numpy(out)


def frame_weights(frames: Frames, of_types: Mapping[str, float]) -> NDArray[np.float64]:
    """Weight of each frame [F] in the loss: its own times that of its config_type, which is Default without one."""
    names, which = np.unique(frames.config_type, return_inverse=True)
    factors = np.array([of_types.get(str(name) or NO_TYPE, 1.0) for name in names], np.float64)
    return frames.weight * factors[which.reshape(-1)]


def count_labels(frames: Frames) -> Totals:
    """Numbers of labels of each term."""
    return tuple(int(column) for column in label_counts(frames).sum(0))


def label_counts(frames: Frames) -> NDArray[np.int64]:
    """Numbers of labels of each frame [F,terms], in the order of Totals."""
    columns = [frames.has(name) * (frames.counts if name in OF_ATOMS else 1) for name in TERMS]
    return np.stack(columns, axis=1).astype(np.int64)


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
