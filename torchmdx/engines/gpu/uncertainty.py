"""The uncertainty of the energy from the inputs of the last layer, where no single launch computes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from torchmdx.engines.gpu.triton import uncertainty as kernels
from torchmdx.runtime.isolation import isolated

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.models.uncertainty import Uncertainty

ROWS, COLUMNS = 16, 32  # atoms and columns of R of a program
BLOCK, SUMMED, SEARCH = 128, 32, 1024  # atoms whose columns are combined, that a system sums and searches at a time


class UncertaintyKernels:
    """The matrix, memory and launches for one number of atoms and systems.

    Args:
        root: R [D,D].
        inputs: Of the last layer [N,D], float32, read at every run.
        of_systems, of_atoms: σ(E) [S] and σ_i [N], eV, float64: where results go.
    """

    @isolated
    def __init__(self, root: Tensor, inputs: Tensor, of_systems: Tensor, of_atoms: Tensor) -> None:
        self.inputs, self.of_systems, self.of_atoms, self.size = inputs, of_systems, of_atoms, len(root)
        self.width = triton.cdiv(self.size, COLUMNS) * COLUMNS
        self.alone, count, device = len(of_systems) == 1, len(of_atoms), of_atoms.device
        self.root = torch.zeros(self.width, self.width, device=device)
        self.root[: self.size, : self.size] = root
        self.blocks = triton.cdiv(count, ROWS)
        self.products = torch.zeros(self.blocks if self.alone else count, self.width, device=device)
        self.squares = torch.zeros(self.width // COLUMNS, count, device=device)

    @classmethod
    def of(cls, uncertainty: Uncertainty | None, buffers: Buffers) -> UncertaintyKernels | None:
        """For the results in these buffers; None without an uncertainty."""
        if uncertainty is None or buffers.last_inputs is None or buffers.uncertainties is None:
            return None
        return cls(uncertainty.root, buffers.last_inputs, *buffers.uncertainties)

    def run(self, system_index: Tensor) -> None:
        """system_index: [N] ascending."""
        count, parts = len(self.of_atoms), self.width // COLUMNS
        if not count:
            self.of_systems.zero_()
            return
        kernels.multiply_inputs[(self.blocks, parts)](
            self.inputs, self.root, self.products, self.squares, count, SIZE=self.size, WIDTH=self.width,
            ROWS=ROWS, COLUMNS=COLUMNS, ALONE=self.alone, num_warps=2,
        )  # fmt: skip
        combined = triton.cdiv(count, BLOCK)
        kernels.sum_inputs[(combined + len(self.of_systems),)](
            self.products, self.squares, system_index, self.of_systems, self.of_atoms, count, len(self.products),
            combined, WIDTH=self.width, PADDED=triton.next_power_of_2(self.width), PARTS=parts, BLOCK=BLOCK,
            SUMMED=SUMMED, SEARCH=SEARCH, ALONE=self.alone, num_warps=4,
        )  # fmt: skip
