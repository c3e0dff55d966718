"""Units of a report."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdx.structures.units import GPA, KCAL_PER_MOL


@dataclass(frozen=True)
class Scale:
    """A unit: its name, and how many of them make one of torchmdx's units (eV, eV/Å, eV/Å³)."""

    unit: str
    factor: float


@dataclass(frozen=True)
class Scales:
    """Units of errors (energies per atom, energies of structures, forces, stress in two units), and of labels."""

    energy: Scale
    total: Scale
    forces: Scale
    label_total: Scale
    label_forces: Scale
    stress: Scale = Scale("meV/Å³", 1e3)
    pressure: Scale = Scale("GPa", 1 / GPA)
    charges: Scale = Scale("me", 1e3)
    dipole: Scale = Scale("me Å", 1e3)

    @property
    def label_energy(self) -> Scale:
        """Energies per atom."""
        return Scale(f"{self.label_total.unit}/atom", self.label_total.factor)


MILLI_EV = Scales(
    energy=Scale("meV/atom", 1e3),
    total=Scale("meV", 1e3),
    forces=Scale("meV/Å", 1e3),
    label_total=Scale("eV", 1.0),
    label_forces=Scale("eV/Å", 1.0),
)
_PER_MOL, _PER_MOL_A = Scale("kcal/mol", 1 / KCAL_PER_MOL), Scale("kcal/mol/Å", 1 / KCAL_PER_MOL)
KCAL = Scales(
    energy=Scale("kcal/mol/atom", 1 / KCAL_PER_MOL),
    total=_PER_MOL,
    forces=_PER_MOL_A,
    label_total=_PER_MOL,
    label_forces=_PER_MOL_A,
)


def scales(kcal: bool) -> Scales:
    """kcal/mol, or meV."""
    return KCAL if kcal else MILLI_EV
