"""StructureBlock: what a step takes over from a structure, in one block of memory on its device and one on the host.

Another structure of the same size is written into the host's block and copied at once: on a GPU each copy takes about
as long as ten calls of NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.step.atom_order import FEWEST_ATOMS
from torchmdx.step.placement import Placement
from torchmdx.structures.system import Batch

ALIGNMENT = 16  # bytes; kernels are compiled for pointers that are multiples of it
# Values that `batch` and `ordered` share, in another order and of another dtype.
SHARED = ("atomic_numbers", "system_index", "pbc", "charge", "partial_charges", "hops", "within")


class StructureBlock:
    """Inputs, structure and placement of a step of N atoms in S systems, as views of one block on the device.

    Args:
        batch: The structure in the caller's order.

    Attributes:
        views: By name, among them input [3N+9S], positions and cells of the next evaluation, and order, images, origin
            and far of BufferStorage.
    """

    def __init__(self, batch: Batch, dtype: torch.dtype) -> None:
        """batch: its values are copied. dtype: of the model."""
        num_atoms, num_systems, self.device = batch.num_atoms, batch.num_systems, batch.positions.device
        wide, short = torch.float64, torch.int32
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"input": (wide, (3 * num_atoms + 9 * num_systems,))}
        for name, value in _values(batch).items():
            shapes[name] = (value.dtype, tuple(value.shape))
            if name in SHARED:
                kind = dtype if value.is_floating_point() else value.dtype
                shapes[f"ordered {name}"] = (kind, tuple(value.shape))
        shapes |= {"order": (short, (num_atoms,)), "images": (short, (num_atoms, 3))}
        shapes |= {"origin": (wide, (num_systems, 3)), "far": (wide, ())}
        self.views, self._block = _allocate(shapes, self.device, pinned=False)
        self._host_views, self._host_block = self.views, self._block
        if self.device.type == "cuda":
            self._host_views, self._host_block = _allocate(shapes, torch.device("cpu"), pinned=True)
        self._arrays: dict[str, NDArray[np.generic]] = {name: view.numpy() for name, view in self._host_views.items()}
        self.views["order"].copy_(torch.arange(num_atoms, device="cpu"))
        self.batch = replace(batch, **{name: self.views[name] for name in _values(batch)})
        self.batch.copy_(batch)

    @classmethod
    def of(cls, batch: Batch, dtype: torch.dtype) -> StructureBlock | None:
        """A block for a batch; None for many atoms, which a step may sort."""
        return None if batch.num_atoms >= FEWEST_ATOMS else cls(batch, dtype)

    def ordered(self) -> Batch:
        """The structure for the model; positions and cell are those of `batch`."""
        given = {name: self.views[f"ordered {name}"] for name in _values(self.batch) if name in SHARED}
        for name, view in given.items():
            view.copy_(getattr(self.batch, name))
        return replace(self.batch, **given)

    def take(self, batch: Batch, placement: Placement) -> None:
        """Copies a structure of the same size, on the CPU, with its atoms in the caller's order."""
        if self.device.type == "cuda":  # the host's block may still be read by the copy before
            torch.cuda.current_stream(self.device).synchronize()
        arrays = self._arrays
        for name, value in _values(batch).items():
            arrays[name][...] = array = value.numpy()
            if name in SHARED:
                arrays[f"ordered {name}"][...] = array
        count = 3 * batch.num_atoms
        arrays["input"][:count], arrays["input"][count:] = batch.positions.numpy().ravel(), batch.cell.numpy().ravel()
        arrays["order"][...] = np.arange(batch.num_atoms)
        for name, array in vars(placement).items():
            arrays[name][...] = array
        if self._host_block is not self._block:
            self._block.copy_(self._host_block, non_blocking=True)


def _values(batch: Batch) -> dict[str, Tensor]:
    return {name: value for name, value in vars(batch).items() if value is not None}


def _allocate(
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], device: torch.device, *, pinned: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Zeros of these dtypes and shapes as views of one block, and the block."""
    starts, length = {}, 0
    for name, (dtype, shape) in shapes.items():
        starts[name] = length
        length += -(-int(np.prod(shape)) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    block = torch.zeros(length, dtype=torch.uint8, device=device, pin_memory=pinned)
    views = {}
    for name, (dtype, shape) in shapes.items():
        number = int(np.prod(shape)) * dtype.itemsize
        views[name] = block[starts[name] : starts[name] + number].view(dtype).view(shape)
    return views, block
