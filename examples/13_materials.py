"""Computes lattice constant, elastic constants and a vacancy of a cubic metal with a potential for materials.

    python 13_materials.py [POTENTIAL [SYMBOL]]

POTENTIAL: such as TensorNet-PES-MatPES-PBE-2025.2, which is downloaded on first use. Without one the script makes a
stand-in of pair terms, whose numbers mean nothing, so that it runs anywhere. SYMBOL: of an fcc or bcc metal, Cu.
"""

import sys

import numpy as np
from ase.build import bulk
from ase.filters import FrechetCellFilter
from ase.optimize import LBFGS
from ase.units import GPa

import torchmdx
from torchmdx.models import D2Config, ZBLConfig


def stand_in() -> torchmdx.Potential:
    """Repulsion and dispersion between pairs, and no network."""
    numbers = np.arange(36.0)
    priors = [D2Config(cutoff=6.0, c6=tuple(5 * numbers), radii=tuple(0.5 + numbers / 58)), ZBLConfig(cutoff=4.0)]
    potential = torchmdx.Potential(torchmdx.TensorNetConfig(num_channels=8, num_layers=1, max_z=35), priors)
    potential.scale.fill_(0)
    return potential


def response(crystal, i: int, j: int, size: float = 0.005) -> np.ndarray:
    """Stress in GPa, in Voigt order, per strain ij; from strains of both signs, which cancel the quadratic term."""
    strain, found = np.zeros((3, 3)), []
    strain[i, j] = strain[j, i] = size / (1 if i == j else 2)  # a shear is half of the engineering strain
    for sign in (1, -1):
        strained = crystal.copy()
        strained.set_cell(crystal.cell.array @ (np.eye(3) + sign * strain), scale_atoms=True)
        found.append(crystal.calc.get_stress(strained) / GPa)
    return (found[0] - found[1]) / (2 * size)


def main() -> None:
    symbol = sys.argv[2] if len(sys.argv) > 2 else "Cu"
    metal = bulk(symbol, cubic=True)
    metal.calc = torchmdx.Calculator(sys.argv[1] if len(sys.argv) > 1 else stand_in(), dtype="float64")
    LBFGS(FrechetCellFilter(metal), logfile=None).run(fmax=0.001, steps=100)
    c11, c12, *_ = response(metal, 0, 0)
    print(f"{symbol}: a = {metal.cell.lengths()[0]:.4f} Å, B = {(c11 + 2 * c12) / 3:.1f} GPa")
    print(f"C11 {c11:.1f}, C12 {c12:.1f}, C44 {response(metal, 1, 2)[3]:.1f} GPa")
    vacancy = metal * 3
    del vacancy[0]
    vacancy.calc = metal.calc
    LBFGS(vacancy, logfile=None).run(fmax=0.02, steps=30)
    formation = vacancy.get_potential_energy() - len(vacancy) / len(metal) * metal.get_potential_energy()
    print(f"energy of a vacancy: {formation:.2f} eV")


if __name__ == "__main__":
    main()
