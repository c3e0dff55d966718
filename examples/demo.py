"""What `make demo` runs: energy, forces and stress of a molecule and of a crystal, through ASE.

The checkpoint is a small TensorNet with random weights that the tests use. Its numbers are reproducible but mean
nothing chemically: torchmdx does not ship a trained potential yet.
"""

from pathlib import Path

from ase.build import bulk, molecule

import torchmdx

CHECKPOINT = Path(__file__).parents[1] / "tests" / "data" / "tensornet.safetensors"


def main() -> None:
    print(f"torchmdx {torchmdx.__version__}; checkpoint {CHECKPOINT.name}: RANDOM weights, for testing only.")
    print("The numbers show that everything works; they say nothing about real molecules.\n")
    calculator = torchmdx.Calculator(CHECKPOINT, dtype="float64")
    print(calculator)

    ethanol = molecule("CH3CH2OH")
    ethanol.calc = calculator
    print(f"\nethanol, a molecule of {len(ethanol)} atoms")
    print(f"  energy {ethanol.get_potential_energy():.6f} eV")
    for symbol, force in zip(ethanol.symbols, ethanol.get_forces(), strict=True):
        print("  force on {:<2} {:>10.5f} {:>10.5f} {:>10.5f} eV/Å".format(symbol, *force))
    before = ethanol.get_potential_energy()
    ethanol.rotate(40, (1, 2, 3))
    print(f"  turning it by 40° changes the energy by {abs(ethanol.get_potential_energy() - before):.1e} eV")

    salt = bulk("NaCl", "rocksalt", a=5.64)
    salt.calc = calculator
    print(f"\nrock salt, a crystal of {len(salt)} atoms a cell; the cutoff of {calculator.potential.cutoff} Å")
    print("reaches beyond the cell, so atoms see many images of each other and of themselves")
    print(f"  energy {salt.get_potential_energy() / len(salt):.6f} eV/atom")
    print("  stress", " ".join(f"{s:.2e}" for s in salt.get_stress()), "eV/Å³")
    larger = salt * (2, 2, 2)
    larger.calc = calculator
    difference = larger.get_potential_energy() / len(larger) - salt.get_potential_energy() / len(salt)
    print(f"  a supercell of {len(larger)} atoms differs by {abs(difference):.1e} eV/atom")


if __name__ == "__main__":
    main()
