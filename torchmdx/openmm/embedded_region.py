"""Electrostatic embedding: a potential's own charges interact with the charges around its region.

::

    E = E_ML(r) + k Σ_i q_i(r) φ_i,  φ_i the Coulomb potential of the surroundings

The charges depend on the structure of the region, so that the forces on it have a term Σ φ_i ∂q_i/∂r. The energy is
that of the exact model, differentiated once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.evaluation.blocks import bounded
from torchmdx.evaluation.derivatives import require_apart
from torchmdx.models.ensemble import frozen
from torchmdx.models.potential import Potential
from torchmdx.neighbors.brute_force import brute_force
from torchmdx.openmm.surroundings import Surroundings, coupling
from torchmdx.runtime.cpu_threads import limited_to, num_threads
from torchmdx.runtime.device_guard import methods_on_own_device
from torchmdx.step.results import NonFiniteError
from torchmdx.structures.cell import recentre
from torchmdx.structures.system import Batch, System
from torchmdx.structures.units import COULOMB


@methods_on_own_device("__init__", "evaluate")
class EmbeddedRegion:
    """Evaluates a region in its surroundings. Raises ValueError for a potential that predicts no charges."""

    def __init__(self, potential: Potential, surroundings: Surroundings) -> None:
        require_charged(potential)
        copied = frozen(potential)
        assert isinstance(copied, Potential)
        self.potential, self.surroundings, self.device = copied, surroundings, potential.device
        self.charges = torch.tensor(surroundings.charges, dtype=torch.float64, device=self.device)

    def evaluate(
        self, structure: System, around: NDArray[np.float64], cell: NDArray[np.float64] | None, with_forces: bool
    ) -> tuple[float, NDArray[np.float64]]:
        """Energy (eV) and forces (eV/Å) on the atoms of the region and then on the particles around it.

        Args:
            structure: The region, in float64.
            around: [M,3] Å.
            cell: [3,3] Å of the System, None without a box. Without with_forces the forces are zeros.

        Raises:
            NonFiniteError: For atoms at the same position.
            ValueError: For atoms at the same position.
        """
        if not np.isfinite(around).all():
            raise NonFiniteError("positions around an embedded region must be finite, got NaN or infinity")
        with torch.set_grad_enabled(with_forces):
            return self._evaluate(structure, around, cell, with_forces)

    def _evaluate(
        self, structure: System, around: NDArray[np.float64], cell: NDArray[np.float64] | None, with_forces: bool
    ) -> tuple[float, NDArray[np.float64]]:
        batch = Batch.of(structure).to(self.device)
        places = batch.positions.requires_grad_(with_forces)
        with limited_to(self._threads(len(places))):
            energy, charges = self._network(batch, places)
        outer = torch.from_numpy(around).to(self.device)
        box = torch.eye(3, dtype=torch.float64, device="cpu") if cell is None else torch.from_numpy(np.asarray(cell))
        box = box.to(self.device)
        given = [x.detach().requires_grad_(with_forces) for x in (charges, places, outer)]
        coulomb = COULOMB * coupling(*given, surroundings=self.surroundings, charges=self.charges, cell=box)
        total = float(energy.detach() + coulomb.detach())
        forces = np.zeros((len(places) + len(around), 3))
        if with_forces:
            potentials, slope_places, slope_outer = torch.autograd.grad(coulomb, given)
            with limited_to(self._threads(len(places))):
                (slope,) = torch.autograd.grad(energy + (charges * potentials).sum(), places)
            forces = -torch.cat([slope + slope_places, slope_outer]).cpu().numpy()
        if not (np.isfinite(total) and np.isfinite(forces).all()):
            raise NonFiniteError("energy and forces of an embedded region must be finite, got NaN or infinity")
        return total, forces

    def _network(self, batch: Batch, places: Tensor) -> tuple[Tensor, Tensor]:
        """Energy and charges [n] of the region, as functions of its positions [n,3]."""
        near = recentre(places, batch.cell, batch.pbc, batch.system_index)
        dtype, cutoff = self.potential.dtype, self.potential.search_cutoff(batch)
        deformed = near.to(dtype)
        rounded = replace(batch.to(dtype=dtype), positions=deformed.detach())
        edges = brute_force(rounded, cutoff)
        vectors = edges.vectors(near, batch.cell, batch.system_index).to(dtype)
        require_apart(edges, vectors.detach())
        potential = bounded(self.potential, edges, create_graph=False)
        energy, _, charges = potential.outputs(rounded, edges, vectors, deformed)
        assert charges is not None
        return energy.sum(), charges.double()

    def _threads(self, num_atoms: int) -> int | None:
        return num_threads(num_atoms**2, exact=True) if self.device.type == "cpu" else None


def require_charged(potential: object) -> None:
    """Raises ValueError unless electrostatic embedding is possible with this potential."""
    if not isinstance(potential, Potential):
        raise ValueError(f"electrostatic embedding needs a single potential, got an {type(potential).__name__}")
    if not potential.predicts_charges:
        raise ValueError(
            "electrostatic embedding needs a potential that predicts charges, such as a TensorNet2, got one without"
        )
