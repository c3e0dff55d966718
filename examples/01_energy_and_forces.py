"""Energy and forces of a molecule in ASE, and the energy profile of a torsion.

`torchmdx.Calculator()` uses the potential included in torchmdx; pass a path to use another one.
"""

import numpy as np
from ase.build import molecule
from ase.units import kJ, mol

import torchmdx

# Atoms of ethanol, as ASE builds it.
C_METHYL, C, O, H = 0, 1, 2, 3


def main() -> None:
    ethanol = molecule("CH3CH2OH")
    ethanol.calc = torchmdx.Calculator()
    print(f"ethanol, {len(ethanol)} atoms: energy {ethanol.get_potential_energy():.4f} eV, forces in eV/Å:")
    for symbol, force in zip(ethanol.symbols, ethanol.get_forces(), strict=True):
        print("  {:<2} {:>9.4f} {:>9.4f} {:>9.4f}".format(symbol, *force))

    angles = np.arange(0, 181, 30)
    energies = []
    for angle in angles:
        ethanol.set_dihedral(C_METHYL, C, O, H, angle, indices=[H])
        energies.append(ethanol.get_potential_energy() / (kJ / mol))
    print("\nrotation of the OH group about the C-O bond, without relaxation:")
    for angle, energy in zip(angles, np.array(energies) - min(energies), strict=True):
        print(f"  C-C-O-H {angle:>4}°  {energy:>6.2f} kJ/mol")


if __name__ == "__main__":
    main()
