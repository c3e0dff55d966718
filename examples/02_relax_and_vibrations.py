"""Relaxes a molecule, and computes its vibrations, zero-point energy and Gibbs energy with ASE.

Second derivatives are computed in float64.
"""

from ase.build import molecule
from ase.optimize import BFGS
from ase.thermochemistry import IdealGasThermo
from ase.units import invcm, kJ, mol
from ase.vibrations import VibrationsData

import torchmdx


def main() -> None:
    atoms = molecule("CH3OH")
    atoms.calc = torchmdx.Calculator(dtype="float64")
    before = atoms.get_potential_energy()
    with BFGS(atoms, logfile=None) as optimizer:
        converged = optimizer.run(fmax=0.001, steps=500)
    gained = (before - atoms.get_potential_energy()) / (kJ / mol)
    print(f"methanol relaxed in {optimizer.nsteps} steps, converged: {converged}; {gained:.2f} kJ/mol lower")
    print(f"  C-O {atoms.get_distance(0, 1):.3f} Å, O-H {atoms.get_distance(1, 3):.3f} Å")

    vibrations = VibrationsData.from_2d(atoms, atoms.calc.get_hessian(atoms))
    energies = vibrations.get_energies()  # eV; the first six are translations and rotations
    print("vibrations, 1/cm:", " ".join(f"{energy.real / invcm:.0f}" for energy in energies[6:]))
    imaginary = [energy for energy in energies[6:] if energy.imag]
    if imaginary or not converged:
        print("  not a minimum, so no Gibbs energy")
        return
    thermo = IdealGasThermo(
        energies[6:].real, "nonlinear", atoms.get_potential_energy(), atoms=atoms, symmetrynumber=1, spin=0
    )
    gibbs = thermo.get_gibbs_energy(temperature=298.15, pressure=101325, verbose=False)
    print(f"  zero-point energy {thermo.get_ZPE_correction() / (kJ / mol):.1f} kJ/mol")
    print(f"  G(298.15 K, 1 atm) - E {(gibbs - atoms.get_potential_energy()) / (kJ / mol):.1f} kJ/mol")


if __name__ == "__main__":
    main()
