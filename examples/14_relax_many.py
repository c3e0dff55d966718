"""Relaxes many molecules in batches, and finds out which of them are the same geometry.

`torchmdx.relax` moves all of them together; what has converged leaves its batch for the next. For files,
`torchmdx relax --index :` does the same, with an output that an interrupted run can continue.
"""

import time

from ase.build import molecule
from ase.optimize import FIRE

import torchmdx

NAMES = ("CH3CH2OH", "CH3OCH3", "CH3COOH", "HCOOCH3", "C2H6NH", "CH3CH2NH2", "C3H6_Cs", "C3H6_D3h")


def main() -> None:
    structures = []
    for name in NAMES:
        for seed in range(6):
            atoms = molecule("CH3CONH2" if name == "C2H6NH" else name)
            atoms.rattle(0.1, seed=seed)
            structures.append(atoms)

    start = time.perf_counter()
    found = torchmdx.relax(structures, fmax=0.03)
    seconds = time.perf_counter() - start
    failed = [(one.index, one.reason) for one in found if not one.converged]
    print(f"{len(found)} structures in {seconds:.1f} s; failures: {failed or 'none'}")

    calculator, start = torchmdx.Calculator(), time.perf_counter()
    for atoms in structures[::12]:
        alone = atoms.copy()
        alone.calc = calculator
        FIRE(alone, logfile=None).run(fmax=0.03, steps=500)
    seconds = time.perf_counter() - start
    print(f"one by one in ASE: {len(structures[::12])} structures in {seconds:.1f} s")

    print("distinct minima, eV:")
    for first in range(0, len(found), 6):
        energies = sorted(one.atoms.get_potential_energy() for one in found[first : first + 6] if one.converged)
        distinct = [e for k, e in enumerate(energies) if k == 0 or e - energies[k - 1] > 0.005]
        print(f"  {structures[first].symbols}: {', '.join(f'{energy:.3f}' for energy in distinct)}")


if __name__ == "__main__":
    main()
