"""Settings of the loss of a training run."""

from __future__ import annotations

from pydantic import Field, model_validator

from torchmdx.training.section import Fraction, Function, NotNegative, Positive, Section


class TermSection(Section):
    """One term of the loss."""

    function: Function = Field(default="mse", description="mse, mae or huber")
    delta: Positive = Field(default=0.01, description="huber: error at which it turns linear, in the unit of the term")
    weight: NotNegative = Field(default=1.0, description="weight in the loss; 0 omits the term")
    final_weight: NotNegative | None = Field(default=None, description="weight from loss.change_to on; null: constant")


class EnergySection(TermSection):
    """Errors of energies per atom: one per system, whereas forces have three per atom."""

    weight: NotNegative = Field(default=10.0, description="weight in the loss; 0 omits the term")


class ForcesSection(TermSection):
    """Errors of force components."""


class StressSection(TermSection):
    """Errors of stress components."""

    weight: NotNegative = Field(default=0.0, description="weight in the loss; 0 omits the term")


class LossSection(Section):
    """Σ weight · mean of function(error); errors in eV/atom, eV/Å, eV/Å³."""

    energy: EnergySection = Field(default=EnergySection(), description="energy per atom, eV")
    forces: ForcesSection = Field(default=ForcesSection(), description="force components, eV/Å")
    stress: StressSection = Field(default=StressSection(), description="stress components, eV/Å³")
    change_from: Fraction = Field(default=0.0, description="fraction of the epochs where a linear change begins")
    change_to: Fraction = Field(default=1.0, description="fraction of the epochs where it ends, at final_weight")

    @model_validator(mode="after")
    def _some_term(self) -> LossSection:
        terms = (self.energy, self.forces, self.stress)
        if not any(term.weight or term.final_weight for term in terms):
            raise ValueError("at least one of energy, forces and stress must have a weight > 0, got 0 for all")
        if self.change_from > self.change_to:
            raise ValueError(f"change_from must be <= change_to, got {self.change_from} and {self.change_to}")
        return self
