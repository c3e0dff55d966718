"""Conversion constants (CODATA 2022; https://physics.nist.gov/cuu/Constants).

The units of torchmdx are Å, eV, eV/Å, eV/Å³, fs, amu, K and e, for lengths, energies, forces, stresses, times, masses,
temperatures and charges. A constant named after a unit is the value of that unit in these: ``0.5 * HARTREE`` is half a
hartree in eV.
"""

# Exact in the SI.
ELEMENTARY_CHARGE = 1.602176634e-19  # C
BOLTZMANN_SI = 1.380649e-23  # J/K
AVOGADRO = 6.02214076e23  # 1/mol

# Measured.
AMU_SI = 1.66053906892e-27  # kg
HARTREE = 27.211386245981  # eV
BOHR = 0.529177210544  # Å
COULOMB = HARTREE * BOHR  # eV Å: the energy of two elementary charges 1 Å apart

# Derived.
BOLTZMANN = BOLTZMANN_SI / ELEMENTARY_CHARGE  # eV/K
KJ_PER_MOL = 1e3 / AVOGADRO / ELEMENTARY_CHARGE  # eV
KCAL_PER_MOL = 4.184 * KJ_PER_MOL  # eV
RYDBERG = HARTREE / 2  # eV
NANOMETER = 10.0  # Å
GPA = 1e9 * 1e-30 / ELEMENTARY_CHARGE  # eV/Å³
BAR = 1e-4 * GPA  # eV/Å³
DEBYE = 1e-21 / 299792458 / ELEMENTARY_CHARGE * 1e10  # e Å: 1e-21 C m²/s over the speed of light
PICOSECOND = 1e3  # fs
# Acceleration of 1 amu under 1 eV/Å, in Å/fs²: eV/(amu Å) = (e / amu) m/s² * 1e10 per Å, 1e-30 per fs².
FORCE_TO_ACCELERATION = ELEMENTARY_CHARGE / AMU_SI * 1e-10

ENERGY_UNITS: dict[str, float] = {
    "eV": 1.0,
    "meV": 1e-3,
    "hartree": HARTREE,
    "rydberg": RYDBERG,
    "kcal/mol": KCAL_PER_MOL,
    "kJ/mol": KJ_PER_MOL,
}
LENGTH_UNITS: dict[str, float] = {"angstrom": 1.0, "bohr": BOHR, "nm": NANOMETER}


def conversion(unit: str, table: dict[str, float], what: str) -> float:
    """The value of `unit` in the unit of torchmdx.

    Raises:
        ValueError: Listing the known names, for an unknown one.
    """
    if unit not in table:
        raise ValueError(f"{what} unit must be one of {', '.join(table)}, got {unit!r}")
    return table[unit]
