"""The operations on the buffers of a captured step: copying in, preparing coordinates, returning results.

`prepare` converts the caller's coordinates to the model's: it sorts atoms by `order`, moves each by whole lattice
vectors (`images`) and its system by `origin`, and only then rounds to the dtype that the search uses. Images and order
are updated occasionally (`StepBuffers.refresh`). `finish` restores the caller's order, and flags results that are not
finite and atoms so far out that float32 coordinates are too coarse.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.neighbors.edges import Edges
from torchmdx.step.buffer_storage import FAR, FIRST_BAD, NEEDED, NOT_FINITE, OVERFLOW, UNCERTAIN, BufferStorage
from torchmdx.step.placement import FAR_FACTOR, LEAST_EXTENT, leave
from torchmdx.structures.cell import per_volume
from torchmdx.structures.system import Batch


class StepBuffers(BufferStorage):
    """The buffers of a step, and the operations that fill them; created as `BufferStorage`."""

    def fill(self, batch: Batch, *, device: bool = True) -> None:
        """Copies positions and cell of a batch into the inputs on the host and, unless device=False, on the device."""
        for inputs in (self.inputs, self.host_inputs) if device else (self.host_inputs,):
            inputs["positions"].copy_(batch.positions)
            inputs["cell"].copy_(batch.cell)

    def copy_in(self) -> None:
        """Copies the host's input block to the model's device."""
        if self.on_gpu:
            self.input.copy_(self.host_input, non_blocking=True)

    def share_cell(self, to: str) -> None:
        """Copies the cell from the host's inputs to the device's (to="device"), or the reverse."""
        host, device = self.host_inputs["cell"], self.inputs["cell"]
        (device.copy_(host) if to == "device" else host.copy_(device))

    def refresh(self, batch: Batch, order: Tensor | None) -> None:
        """Chooses images and origins for the positions in `inputs`; order [N]: a new order of the atoms.

        Args:
            batch: Provides pbc and system_index, in the caller's order. Systems that are not finite keep images and
                origin.
        """
        positions, cell = self.inputs["positions"], self.inputs["cell"]
        index = batch.system_index
        images, origin, moved = leave(positions, cell, batch)
        fine = (moved.abs() <= torch.finfo(self.positions.dtype).max) & (images.abs() <= torch.iinfo(torch.int32).max)
        fine = fine.all(-1)
        bad = torch.zeros_like(batch.counts()).index_add(0, index, (~fine).long())
        kept = (bad > 0)[:, None]
        old = torch.zeros_like(images).index_copy(0, self.order.long(), self.images.to(images.dtype))
        images = torch.where(kept[index], old, images)
        origin = torch.where(kept, self.origin, origin)
        self._set_extent(torch.where(kept[index], 0.0, moved))
        self.origin.copy_(origin)
        if order is not None:
            self.order.copy_(order)
        self.images.copy_(images[self.order.long()])

    def _set_extent(self, moved: Tensor) -> None:
        extent = moved.abs().max() if self.num_atoms else moved.new_zeros(())
        self.far.copy_(FAR_FACTOR * extent.clamp(min=LEAST_EXTENT))

    def prepare(self, system_index: Tensor, *, from_host: bool = False) -> None:
        """Fills places and box, and positions and cell with the same values rounded; resets the flags.

        Args:
            system_index: [N] in the model's order.
            from_host: Copies the host's inputs to the device first.
        """
        if from_host and not self.direct:
            self.copy_in()
        if self.on_gpu:
            from torchmdx.step.buffer_kernels import launch_prepare

            launch_prepare(self, system_index, from_host=from_host and self.direct)
            return
        self._prepare_on_host(system_index.numpy())

    @np.errstate(all="ignore")
    def _prepare_on_host(self, system_index: NDArray[np.int64]) -> None:
        """`prepare` on the CPU. For a molecule, calls of NumPy take a third of the time of torch's."""
        cell, images = self.inputs["cell"].numpy(), self.images.numpy()
        moved = self.inputs["positions"].numpy()[self.order.numpy()]
        if images.any() or not math.isfinite(cell.sum()):
            whole = images.astype(np.float64)
            moved -= whole @ cell[0] if len(cell) == 1 else np.matmul(whole[:, None], cell[system_index])[:, 0]
        moved -= self.origin.numpy()[system_index]
        for exact, rounded, value in ((self.places, self.positions, moved), (self.box, self.cell, cell)):
            exact.numpy()[...] = value
            if rounded is not exact:
                rounded.numpy()[...] = value
        self.host_arrays["flags"][...] = 0

    def finish(
        self,
        edges: Edges,
        energy: Tensor,
        energies: Tensor,
        forces: Tensor,
        stress: Tensor | None,
        doubts: tuple[Tensor, Tensor] | None = None,
        *,
        to_host: bool = True,
        read: bool = True,
    ) -> None:
        """Fills `outputs` from the model's results, in the caller's order, and sets the flags.

        Args:
            doubts: Spreads of an ensemble or uncertainties, of systems [S] and atoms [N].
            to_host: Copies all results to the host; otherwise only energies and flags.
            read: Whether the host reads anything; if not, nothing is copied.
        """
        if self.on_gpu:
            from torchmdx.step.buffer_kernels import launch_finish

            length = (len(self.output) if to_host else self._first_out) if read else 0
            given = (energy, energies, forces, stress, doubts)
            launch_finish(self, edges, *given, to_host=length if self.direct else 0)
            if length and not self.direct:
                self.host_output[:length].copy_(self.output[:length], non_blocking=True)
            return
        out = self.outputs
        order = self.order.long()
        out["energy"].copy_(energy)
        exact = forces.detach().double()
        out["forces"].index_copy_(0, order, exact)
        self._set_flags(edges, energies.detach().numpy(), exact.numpy())
        if self.energies_wanted:
            out["energies"].index_copy_(0, order, energies)
        if self.stress_wanted:
            assert stress is not None
            out["stress"].copy_(stress)
        if self.doubts is not None:
            assert doubts is not None
            of_systems, of_atoms = (self.host_arrays[name] for name in self.doubts)
            values = doubts[1].numpy()
            of_systems[...], of_atoms[self.order.numpy()] = doubts[0].numpy(), values
            self.host_arrays["flags"][UNCERTAIN] = np.count_nonzero(values > float(self.most))

    def finish_without_atoms(self, *, from_host: bool) -> None:
        """Fills the stress of systems without atoms, 0 or, without a volume, NaN; all else was created with zeros."""
        if not self.stress_wanted:
            return
        if from_host:
            self.copy_in()
        cell = self.inputs["cell"]
        self.outputs["stress"].copy_(per_volume(torch.zeros_like(cell), cell))
        if self.on_gpu:
            self.host_output.copy_(self.output, non_blocking=True)

    @np.errstate(all="ignore")
    def _set_flags(self, edges: Edges, energies: NDArray[Any], forces: NDArray[np.float64]) -> None:
        """The flags of an evaluation on the CPU. For a molecule, calls of NumPy take a third of the time of torch's."""
        flags, positions = self.host_arrays["flags"], self.positions.numpy()
        flags[NEEDED], flags[OVERFLOW] = int(edges.needed), bool(edges.overflow)
        flags[NOT_FINITE], flags[FIRST_BAD] = 0, self.num_atoms
        farthest = np.abs(positions).max(initial=0.0)  # NaN if any is
        flags[FAR] = not farthest <= float(self.far)
        # A sum is not finite if a number is not. An atom at NaN has no neighbours and therefore finite forces.
        if math.isfinite(farthest) and math.isfinite(forces.sum() + energies.sum()):
            return
        finite = np.isfinite(forces).all(-1) & np.isfinite(energies) & np.isfinite(positions).all(-1)
        flags[NOT_FINITE] = bad = len(finite) - int(np.count_nonzero(finite))
        flags[FIRST_BAD] = self.order.numpy()[~finite].min() if bad else self.num_atoms
        flags[FAR] = (np.abs(positions) > float(self.far)).any()


def copy_checked(name: str, target: Tensor, value: Any, *, in_parallel: bool = False) -> None:
    """Copies numbers into `target`. Raises TypeError for values of another kind, ValueError for another shape.

    Args:
        in_parallel: The threads of torch share a copy on the host, which pays for many atoms.
    """
    if isinstance(value, Tensor):
        if value.dtype == torch.bool or value.dtype.is_complex:
            raise TypeError(f"{name} must be numbers, got a tensor of {value.dtype}")
        source = value.detach()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be numbers, got an array of {array.dtype}")
        array = np.ascontiguousarray(array, dtype=np.float64)
        # torch warns about read-only arrays.
        source = torch.from_numpy(array if array.flags.writeable else array.copy())
    if source.shape != target.shape:
        if not (name == "cell" and source.shape == target.shape[1:] and len(target) == 1):
            raise ValueError(f"{name} must have shape {list(target.shape)}, got {list(source.shape)}")
        source = source[None]
    if source.data_ptr() == target.data_ptr() and source.dtype == target.dtype:
        return  # the caller has written into the buffer
    if source.device.type == target.device.type == "cpu" and not in_parallel:
        # Not torch's copy: with 11,000 atoms or more it wakes the threads of all cores, which takes milliseconds.
        np.copyto(target.numpy(), source.to(target.dtype).numpy())
    else:
        target.copy_(source, non_blocking=target.device.type == "cuda")
