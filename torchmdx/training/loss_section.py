"""Settings of the loss of a training run."""

from __future__ import annotations

from pydantic import Field, model_validator

from torchmdx.training.section import Fraction, Function, NotNegative, Positive, Section

TERMS = ("energy", "forces", "stress", "charges", "dipole")


class TermSection(Section):
    """One term of the loss. A weight of None is decided by the data, before the training."""

    function: Function = Field(default="mse", description="mse, mae or huber")
    delta: Positive = Field(default=0.01, description="huber: error at which it turns linear, in the unit of the term")
    weight: NotNegative | None = Field(default=1.0, description="weight in the loss; 0 omits the term")
    final_weight: NotNegative | None = Field(default=None, description="weight from loss.change_to on; null: constant")


class EnergySection(TermSection):
    """Errors of energies per atom: one per system, whereas forces have three per atom."""

    weight: NotNegative = Field(default=10.0, description="weight in the loss; 0 omits the term")


class ForcesSection(TermSection):
    """Errors of force components."""

    weight: NotNegative = Field(default=1.0, description="weight in the loss; 0 omits the term")


class StressSection(TermSection):
    """Errors of stress components."""

    weight: NotNegative | None = Field(
        default=None,
        description="weight in the loss; 0 omits the term; null: by the data, at first as large a term as the forces",
    )


class ChargesSection(TermSection):
    """Errors of partial charges of atoms, for tensornet2."""

    weight: NotNegative = Field(default=0.0, description="weight in the loss; 0 omits the term")


class DipoleSection(TermSection):
    """Errors of components of dipole moments, for tensornet2."""

    weight: NotNegative = Field(default=0.0, description="weight in the loss; 0 omits the term")


class LossSection(Section):
    """Σ weight · mean of function(error) times the weight of the frame; errors in eV/atom, eV/Å, eV/Å³, e, e Å."""

    energy: EnergySection = Field(default=EnergySection(), description="energy per atom, eV")
    forces: ForcesSection = Field(default=ForcesSection(), description="force components, eV/Å")
    stress: StressSection = Field(default=StressSection(), description="stress components, eV/Å³")
    charges: ChargesSection = Field(default=ChargesSection(), description="charges of atoms, e; only for tensornet2")
    dipole: DipoleSection = Field(
        default=DipoleSection(), description="dipole moments of molecules, e Å; only for tensornet2"
    )
    change_from: Fraction = Field(default=0.0, description="fraction of the epochs where a linear change begins")
    change_to: Fraction = Field(default=1.0, description="fraction of the epochs where it ends, at final_weight")

    config_type_weights: dict[str, NotNegative] = Field(
        default={},
        description="weights of frames by config_type, {surface: 2.0, Default: 1.0}; Default: frames without",
    )

    head_weights: dict[str, NotNegative] = Field(
        default={},
        description="weights of the frames of each head, {pbe: 1.0, scan: 10.0}; 1 for others",
    )

    @model_validator(mode="after")
    def _some_term(self) -> LossSection:
        if not any(term.weight or term.final_weight for term in self.terms().values()):
            raise ValueError(f"at least one of {', '.join(TERMS)} must have a weight > 0, got 0 for all")
        if self.change_from > self.change_to:
            raise ValueError(f"change_from must be <= change_to, got {self.change_from} and {self.change_to}")
        return self

    def terms(self) -> dict[str, TermSection]:
        """The settings of all terms, by name."""
        return {
            "energy": self.energy,
            "forces": self.forces,
            "stress": self.stress,
            "charges": self.charges,
            "dipole": self.dipole,
        }
