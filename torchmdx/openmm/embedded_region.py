"""Electrostatic embedding: a potential's own charges interact with the charges around its region.

::

    E = E_ML(r) + k Σ_i q_i(r) φ_i,  φ_i the Coulomb potential of the surroundings

The charges depend on the structure of the region, so that the forces on it have a term Σ φ_i ∂q_i/∂r. The sum is a
prior of a captured step of the region: engines add its slopes by charges and positions to theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import Geometry, Prior, PriorConfig
from torchmdx.openmm.surroundings import Surroundings, interact
from torchmdx.openmm.surroundings_lattice import KeptSplit
from torchmdx.step.buffers import StepBuffers
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import System
from torchmdx.structures.units import COULOMB


class OuterBuffers:
    """Positions [N,3] Å of the region and then of the particles around it, and forces [N,3] eV/Å on them, float64.

    All copies of a potential share them.

    Attributes:
        count: Atoms of the region.
        charges_of: The rule for charges of atoms from channels, which needs no weights of the network.
        frame: The buffers of the step, which has another order of atoms.
    """

    frame: StepBuffers | None = None

    def __init__(self, potential: Potential, count: int, surroundings: Surroundings) -> None:
        self.count, self.surroundings, self.charges_of = count, surroundings, potential.atomic_charges
        self.charges = torch.tensor(surroundings.charges, dtype=torch.float64, device=potential.device)
        self.positions = self.charges.new_zeros(count + len(self.charges), 3)
        self.forces = torch.zeros_like(self.positions)

    def __deepcopy__(self, memo: Any) -> OuterBuffers:
        return self

    @property
    def inside(self) -> Tensor:
        """Positions [n,3] of the region."""
        return self.positions[: self.count]


@dataclass(frozen=True, kw_only=True)
class SurroundedConfig(PriorConfig):
    """Has no settings: it belongs to one System."""

    name: ClassVar[str] = "surroundings"


class Surrounded(Prior):
    """The energy of a region's predicted charges with those around it.

    Attributes:
        kept: Of an engine, which writes the forces on the surroundings.
    """

    config: SurroundedConfig
    acts_from_outside = True

    def __init__(self, outer: OuterBuffers) -> None:
        super().__init__()
        self.config, self.outer = SurroundedConfig(), outer
        self.kept: KeptSplit | None = None

    def cutoff(self, periodic: bool) -> float:
        return 0.0

    def keep_lists(self) -> None:
        self.kept = KeptSplit()

    def forward(self, geometry: Geometry) -> Tensor:
        outer, lattice, batch = self.outer, geometry.lattice, geometry.batch
        assert geometry.charges is not None
        assert lattice is not None
        charges, places, cell = outer.charges_of(geometry.charges, batch), lattice.positions, lattice.cell[0]
        wanted = torch.is_grad_enabled() and (charges.requires_grad or places.requires_grad)
        dtype, given, split = (
            geometry.charges.dtype,
            outer.inside,
            None,
        )  # evaluations move the region near the origin, which does not concern others
        if self.kept is not None:
            assert outer.frame is not None
            given = given.index_select(0, outer.frame.order.long())
            if outer.surroundings.method == "lattice":
                split = self.kept.serve(batch, geometry.edges.overflow, dtype)
        with torch.no_grad():
            found = interact(
                charges, given, outer.positions[outer.count :], surroundings=outer.surroundings,
                charges=outer.charges, cell=cell.detach().double(), split=split, slopes=wanted, dtype=dtype,
            )  # fmt: skip
            if wanted and self.kept is not None:
                outer.forces[outer.count :] = -COULOMB * found.of_around
        energy = found.energy + ((charges - charges.detach()) * found.of_charges).sum()
        energy = energy + ((places - places.detach()) * found.of_places).sum()
        return (COULOMB * energy / batch.num_atoms).expand(batch.num_atoms)


class EmbeddedStep(CapturedStep):
    """A captured step of a region in its surroundings, whose positions and forces are in `outer`."""

    def __init__(self, potential: Potential, structure: System, surroundings: Surroundings, **options: Any) -> None:
        require_charged(potential)
        self.outer = OuterBuffers(potential, structure.num_atoms, surroundings)
        own = (cast(Prior, prior) for prior in potential.priors)
        surrounded = potential.with_priors([*own, Surrounded(self.outer)])
        super().__init__(surrounded, structure, **options)
        self.outer.frame = self.buffers

    def _launch(self, kind: str) -> None:
        self.buffers.inputs["positions"].copy_(self.outer.inside)
        super()._launch(kind)
        if kind != "energy":
            self.outer.forces[: self.outer.count] = self.buffers.outputs["forces"]


def require_charged(potential: object) -> None:
    """Raises ValueError unless electrostatic embedding is possible with this potential."""
    if not isinstance(potential, Potential):
        raise ValueError(f"electrostatic embedding needs a single potential, got an {type(potential).__name__}")
    if not potential.predicts_charges:
        raise ValueError(
            "electrostatic embedding needs a potential that predicts charges, such as a TensorNet2, got one without"
        )
