"""The terms of restraints in the memory of a GPU, and the launches that add them to an evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.dynamics.kernels import restraints as kernels
from torchmdx.dynamics.restraint_terms import MEASURES, RestraintTerms
from torchmdx.step.buffer_storage import BufferStorage

BLOCK = 64


class DeviceRestraints:
    """Terms, and the restraint energies [S] and Σ r·f [S] of the last evaluation.

    Each term writes its forces to slots of its own, and each atom adds its slots in order, so that sums are the same to
    the bit in every run.
    """

    def __init__(self, terms: RestraintTerms, num_atoms: int, device: torch.device) -> None:
        def kept(array: NDArray[Any]) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(array), device=device)

        self.num_terms, self.num_atoms, self.num_systems = len(terms), num_atoms, terms.num_systems
        self.kind, self.atoms, self.reference = kept(terms.kind), kept(terms.atoms), kept(terms.reference)
        self.point, self.stiffness = kept(terms.point), kept(terms.stiffness)
        sizes = np.array([MEASURES[kind][0] if kind in MEASURES else 1 for kind in terms.kind.tolist()], dtype=np.int64)
        slots = np.flatnonzero((np.arange(4) < sizes[:, None]).ravel())
        atoms = terms.atoms.ravel()[slots]
        self.slots = kept(slots[np.argsort(atoms, kind="stable")])
        self.atom_starts = kept(np.searchsorted(np.sort(atoms), np.arange(num_atoms + 1)))
        self.system_starts = kept(np.searchsorted(terms.system, np.arange(terms.num_systems + 1)))
        self.term_energy = torch.zeros(self.num_terms, dtype=torch.float64, device=device)
        self.term_virial = torch.zeros_like(self.term_energy)
        self.term_forces = torch.zeros(4 * self.num_terms, 3, dtype=torch.float64, device=device)
        self.energy = torch.zeros(terms.num_systems, dtype=torch.float64, device=device)
        self.virial = torch.zeros_like(self.energy)

    def launch(self, buffers: BufferStorage) -> None:
        """Adds the forces at the inputs of the captured step to its outputs."""
        out: Any = buffers.outputs
        kernels.evaluate_terms[(triton.cdiv(self.num_terms, BLOCK),)](
            buffers.inputs["positions"], self.kind, self.atoms, self.reference, self.point, self.stiffness,
            self.term_energy, self.term_virial, self.term_forces, out["flags"], self.num_terms,
            BLOCK=BLOCK, num_warps=2,
        )  # fmt: skip
        atom_programs = triton.cdiv(self.num_atoms, BLOCK)
        kernels.add_terms[(atom_programs + self.num_systems,)](
            self.term_energy, self.term_virial, self.term_forces, self.atom_starts, self.slots, self.system_starts,
            out["forces"], self.energy, self.virial, self.num_atoms, self.num_systems, atom_programs,
            BLOCK=BLOCK, num_warps=2,
        )  # fmt: skip
