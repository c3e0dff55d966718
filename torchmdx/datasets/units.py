"""The units that a user declares for files."""

from __future__ import annotations

from dataclasses import dataclass

from torchmdx.structures.units import BAR, DEBYE, ENERGY_UNITS, GPA, LENGTH_UNITS, conversion

FORCE_UNITS: dict[str, float] = {
    f"{energy}/{length}": value / size
    for energy, value in ENERGY_UNITS.items()
    for length, size in LENGTH_UNITS.items()
}
STRESS_UNITS: dict[str, float] = {
    **{
        f"{energy}/{length}^3": value / size**3
        for energy, value in ENERGY_UNITS.items()
        for length, size in LENGTH_UNITS.items()
    },
    "GPa": GPA,
    "bar": BAR,
    "kbar": 1e3 * BAR,
}
DIPOLE_UNITS: dict[str, float] = {
    **{f"e*{length}": size for length, size in LENGTH_UNITS.items()},
    "debye": DEBYE,
}


@dataclass(frozen=True)
class Units:
    """Units by name, and their values in eV, Å, eV/Å, eV/Å³ and e Å. Those but energy and length default to these."""

    energy: str = "eV"
    length: str = "angstrom"
    force: str | None = None
    stress: str | None = None
    dipole: str | None = None

    def __post_init__(self) -> None:
        _ = (self.energy_factor, self.length_factor, self.force_factor, self.stress_factor, self.dipole_factor)

    @property
    def energy_factor(self) -> float:
        return conversion(self.energy, ENERGY_UNITS, "energy")

    @property
    def length_factor(self) -> float:
        return conversion(self.length, LENGTH_UNITS, "length")

    @property
    def force_factor(self) -> float:
        if self.force is None:
            return self.energy_factor / self.length_factor
        return conversion(self.force, FORCE_UNITS, "force")

    @property
    def stress_factor(self) -> float:
        if self.stress is None:
            return self.energy_factor / self.length_factor**3
        return conversion(self.stress, STRESS_UNITS, "stress")

    @property
    def dipole_factor(self) -> float:
        return self.length_factor if self.dipole is None else conversion(self.dipole, DIPOLE_UNITS, "dipole")

    def names(self) -> dict[str, str]:
        """Names of the units of all quantities."""
        return {
            "energy": self.energy,
            "length": self.length,
            "force": self.force or f"{self.energy}/{self.length}",
            "stress": self.stress or f"{self.energy}/{self.length}^3",
            **({"dipole": self.dipole} if self.dipole else {}),
        }
