"""What LAMMPS wrote, against `evaluate`."""

import numpy as np
import pytest
from ase import Atoms
from mpi import Outcome

from torchmdx import Potential, System, evaluate

BAR = 1.602176634e6  # of eV/Å³
STYLE = "torchmdx model.safetensors precision float64 device cpu"
PRESSURES = {"Pxx": (0, 0), "Pyy": (1, 1), "Pzz": (2, 2), "Pxy": (0, 1), "Pxz": (0, 2), "Pyz": (1, 2)}


def require_equal(outcome: Outcome, model: Potential, atoms: Atoms, unit: float = 1.0) -> None:
    """Energy, forces and energies per atom of the last frame to rounding; the pressure, which includes moving atoms'
    kinetic energy, of atoms at rest.
    """
    assert outcome.status == 0, outcome.text[-3000:]
    exact = evaluate(model, System.from_ase(atoms), stress=bool(atoms.pbc.all()))
    values = outcome.dump()
    forces, energies = exact.forces.numpy() * unit, exact.energies.numpy() * unit
    assert abs(outcome.thermo["PotEng"][-1] - float(exact.energy) * unit) < 2e-13 * abs(float(exact.energy) * unit)
    assert np.abs(values[:, 3:6] - forces).max() < 2e-13 * max(np.abs(forces).max(), 1.0)
    assert np.abs(values[:, 6] - energies).max() < 2e-13 * np.abs(energies).max()
    if atoms.pbc.all() and not outcome.thermo["KinEng"][-1]:
        pressure = -exact.stress[0].numpy() * BAR
        for name, (i, j) in PRESSURES.items():
            assert outcome.thermo[name][-1] == pytest.approx(pressure[i, j], rel=1e-5, abs=1e-3)
