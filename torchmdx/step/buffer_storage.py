"""The fixed buffers of a captured step: blocks on the model's device and on the host, their views, and the flags.

One float64 block goes in (positions, cell) and one comes out (energy, its doubt, flags, stress, energies, forces, the
doubt of each atom; those that the step computes), so that each direction takes a single copy. For few atoms it takes
none: the first and the last kernel then read and write the host's blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchmdx.step.structure_block import StructureBlock
from torchmdx.structures.system import Batch

# Doubts: the names of two results that tell how certain others are, of systems [S] and of atoms [N].
Doubts = tuple[str, str]
SPREADS: Doubts = ("energy_spread", "force_spread")  # of an ensemble
UNCERTAINTIES: Doubts = ("energy_uncertainty", "energies_uncertainty")  # of a single potential
# Indices of the flags in the output block, int64.
NEEDED, OVERFLOW, NOT_FINITE, FIRST_BAD, FAR, UNCERTAIN = range(6)
NUM_FLAGS = 8
# Up to this many atoms the first and the last kernel read and write the host's blocks: a copy takes longer.
MOST_DIRECT = 512


class BufferStorage:
    """Input and output of a step of N atoms in S systems, on the model's device and in pinned memory on the host.

    Args:
        doubts: Also hold these two, of systems and of atoms, SPREADS or UNCERTAINTIES; atoms above `most` are flagged.
        block: Has the input on the device, and order, images, origin and far.
    """

    def __init__(
        self,
        batch: Batch,
        dtype: torch.dtype,
        *,
        stress: bool,
        energies: bool,
        doubts: Doubts | None = None,
        block: StructureBlock | None = None,
    ) -> None:
        device, num_atoms, num_systems = batch.positions.device, batch.num_atoms, batch.num_systems
        self.num_atoms, self.num_systems = num_atoms, num_systems
        self.stress_wanted, self.energies_wanted, self.doubts = stress, energies, doubts
        self.on_gpu = device.type == "cuda"
        self.direct = self.on_gpu and num_atoms <= MOST_DIRECT and 9 * num_systems <= MOST_DIRECT
        sizes_in = (3 * num_atoms, 9 * num_systems)
        sizes_out = (
            num_systems,
            num_systems if doubts else 0,
            NUM_FLAGS,
            9 * num_systems if stress else 0,
            num_atoms if energies else 0,
            3 * num_atoms,
            num_atoms if doubts else 0,
        )
        self._first_out, self._sizes_out = sum(sizes_out[:3]), sizes_out
        if block is None:
            self.input = torch.zeros(sum(sizes_in), dtype=torch.float64, device=device)
        else:
            self.input = block.views["input"]
        self.output = torch.zeros(sum(sizes_out), dtype=torch.float64, device=device)
        # Without a GPU both are the same blocks, and nothing is copied.
        self.host_input = torch.zeros_like(self.input, device="cpu", pin_memory=True) if self.on_gpu else self.input
        self.host_output = torch.zeros_like(self.output, device="cpu", pin_memory=True) if self.on_gpu else self.output
        self.inputs, self.host_inputs = (self._views_in(block, sizes_in) for block in (self.input, self.host_input))
        self.outputs, self.host_outputs = (
            self._views_out(block, sizes_out) for block in (self.output, self.host_output)
        )
        # Created once: each conversion takes about a microsecond.
        self.host_arrays = {name: tensor.numpy() for name, tensor in self.host_outputs.items()}
        self.positions = torch.zeros(num_atoms, 3, dtype=dtype, device=device)
        self.cell = torch.zeros(num_systems, 3, 3, dtype=dtype, device=device)
        # The same before rounding. The search uses rounded coordinates, but the model subtracts unrounded ones: in a
        # box of 30 Å, float32 coordinates alone cause relative force errors of 1e-5.
        exact = dtype == torch.float64
        self.places = self.positions if exact else torch.zeros_like(self.positions, dtype=torch.float64)
        self.box = self.cell if exact else torch.zeros_like(self.cell, dtype=torch.float64)
        if block is None:
            self.order = torch.arange(num_atoms, dtype=torch.int32, device=device)
            self.images = torch.zeros(num_atoms, 3, dtype=torch.int32, device=device)
            self.origin = torch.zeros(num_systems, 3, dtype=torch.float64, device=device)
            self.far = torch.zeros((), dtype=torch.float64, device=device)
        else:
            self.order, self.images, self.origin, self.far = (
                block.views[name] for name in ("order", "images", "origin", "far")
            )
        self.most = torch.full((), torch.inf, dtype=torch.float64, device=device)

    def copied_outputs(self) -> dict[str, Tensor]:
        """`outputs` in memory of their own, by one copy on the device."""
        return self._views_out(self.output.clone(), self._sizes_out)

    def _views_in(self, block: Tensor, sizes: tuple[int, ...]) -> dict[str, Tensor]:
        positions, cell = block.split(sizes)
        return {"positions": positions.view(-1, 3), "cell": cell.view(-1, 3, 3)}

    def _views_out(self, block: Tensor, sizes: tuple[int, ...]) -> dict[str, Tensor]:
        energy, of_systems, flags, stress, energies, forces, of_atoms = block.split(sizes)
        views = {"energy": energy, "flags": flags.view(torch.int64), "forces": forces.view(-1, 3)}
        if self.stress_wanted:
            views["stress"] = stress.view(-1, 3, 3)
        if self.energies_wanted:
            views["energies"] = energies
        if self.doubts is not None:
            views |= dict(zip(self.doubts, (of_systems, of_atoms), strict=True))
        return views
