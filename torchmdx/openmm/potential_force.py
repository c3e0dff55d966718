"""The object that describes a potential in a System."""

from __future__ import annotations

from dataclasses import dataclass

import openmm

from torchmdx.models.ensemble import Ensemble
from torchmdx.openmm.evaluator import EnergyUncertainty, ForceEvaluator, Spread
from torchmdx.openmm.link_atoms import LinkAtom
from torchmdx.step.divided_step import DividedReport
from torchmdx.step.report import StepReport
from torchmdx.structures.units import KJ_PER_MOL


@dataclass(eq=False)
class PotentialForce:
    """A potential that has been added to a System.

    Attributes:
        force: The openmm.Force; a CustomCVForce around a PythonForce if the potential has a scale parameter.
        transport: "native", "torch" or "python".
    """

    force: openmm.Force
    transport: str
    evaluator: ForceEvaluator

    @property
    def why(self) -> str:
        """The reason for this transport, in one line."""
        return self.evaluator.why

    @property
    def atoms(self) -> tuple[int, ...]:
        """Indices of the particles that the potential acts on."""
        settings = self.evaluator.settings
        return tuple(range(settings.num_particles)) if settings.atoms is None else settings.atoms

    @property
    def link_atoms(self) -> tuple[LinkAtom, ...]:
        """(inner particle, outer particle, distance in nm) of hydrogens at bonds that the region cuts."""
        return self.evaluator.settings.link_atoms

    @property
    def embedding(self) -> str:
        """The embedding of the region, "mechanical", or "electrostatic" by its predicted charges."""
        return "mechanical" if self.evaluator.settings.surroundings is None else "electrostatic"

    @property
    def checkpoint(self) -> str | tuple[str, ...] | None:
        """The file or name of the potential, or those of an ensemble; None if it was given in memory."""
        return self.evaluator.settings.checkpoint

    @property
    def platform_properties(self) -> dict[str, str]:
        """Properties for a Context on OpenMM's CUDA platform on the GPU of the potential; {} for one on the CPU."""
        device = self.evaluator.potential.device
        return {"DeviceIndex": str(device.index or 0)} if device.type == "cuda" else {}

    @property
    def energy_offset(self) -> float:
        """kJ/mol that are subtracted from the energy, before it is multiplied by a scale parameter."""
        return self.evaluator.settings.energy_offset / KJ_PER_MOL

    @property
    def num_recoveries(self) -> int:
        """How often a neighbour list had to grow during a run; each time the evaluation was repeated."""
        return self.evaluator.num_recoveries

    def report(self) -> StepReport | DividedReport | None:
        """The report on the step that evaluates; None before the first evaluation."""
        return self.evaluator.report()

    @property
    def is_ensemble(self) -> bool:
        """Whether the potential has several members."""
        return isinstance(self.evaluator.potential, Ensemble)

    @property
    def spread(self) -> Spread | None:
        """The spread of an ensemble in the last evaluation; None before the first, and for a single potential.

        Link atoms follow the particles. The spread of forces is not updated by an evaluation of the energy alone, such
        as a barostat's.
        """
        return self.evaluator.spread()

    @property
    def uncertainty(self) -> EnergyUncertainty | None:
        """The uncertainty of a single potential's energy in the last evaluation; None before the first.

        Also None if the force does not compute it: see `uncertainty` of `add_potential`. Link atoms follow the
        particles.
        """
        return self.evaluator.uncertainty()
