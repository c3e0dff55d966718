"""Properties of twelve elements with a potential of matgl: torchmdx's calculator compared with matgl's own, in one run.

    python -m benchmarks.crystal_properties FOLDER

FOLDER: of TensorNet-MatPES-PBE-v2025.1-PES, as matgl saved it. Needs matgl 4.1.2 and phonopy. Cells are relaxed to
0.001 eV/Å; then the same functions of `torchmdx.materials` compute the equation of state, elastic constants and phonons
with both calculators, in float64 for torchmdx and in matgl's float32. largest_difference: of any of them, relative to
matgl's. cpu_s: of the processor, without loading. Results go to crystal_properties.json: lengths in Å, GPa, THz.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import ase
import numpy as np
from ase.build import bulk

import torchmdx
from benchmarks.record import update
from benchmarks.relax import matgl_calculator
from torchmdx.materials import elastic, equation_of_state, phonons
from torchmdx.materials.crystal import relaxed

CRYSTALS = ("Al", "Cu", "Ni", "Pd", "Ag", "Pt", "Au", "Mo", "W", "Si", "Ge", "C")
NAMES = ("a", "B", "C11", "C12", "C44", "highest_phonon")


def properties(atoms: ase.Atoms, calculator: Any) -> dict[str, float]:
    """Of a primitive cell; the lattice constant is that of the cubic cell."""
    start = time.process_time()
    atoms = atoms.copy()
    atoms.calc = calculator
    atoms = relaxed(atoms, 0.001, cell=True)
    eos, constants = equation_of_state(atoms), elastic(atoms)
    bands = phonons(atoms)
    # fcc and diamond have four lattice points in the cubic cell, bcc two.
    points = 2 if np.isclose(atoms.cell.angles()[0], 109.47, atol=0.1) else 4
    stiffness = np.asarray(constants.stiffness)
    values = (
        (points * eos.volume) ** (1 / 3), eos.bulk_modulus, stiffness[0, 0], stiffness[0, 1], stiffness[3, 3],
        bands.highest,
    )  # fmt: skip
    found = {name: float(value) for name, value in zip(NAMES, values, strict=True)}
    return found | {"cpu_s": time.process_time() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--crystals", default=",".join(CRYSTALS))
    options = parser.parse_args()
    calculators = {
        "torchmdx": torchmdx.Calculator(options.folder, device="cpu", dtype="float64"),
        "matgl": matgl_calculator(options.folder, "cpu"),
    }
    for name in options.crystals.split(","):
        rows: list[dict[str, Any]] = []
        for by, calculator in calculators.items():
            try:
                found = properties(bulk(name), calculator)
                rows.append({"crystal": name, "by": by} | {key: round(value, 4) for key, value in found.items()})
            except Exception as error:
                rows.append({"crystal": name, "by": by, "error": f"{type(error).__name__}: {error}"[:200]})
        if not any("error" in row for row in rows):
            ours, theirs = rows
            rows[0]["largest_difference"] = round(max(abs(ours[n] / theirs[n] - 1) for n in NAMES), 6)
        print(*rows, sep="\n", flush=True)
        update("crystal_properties", rows, ("crystal", "by"))


if __name__ == "__main__":
    main()
