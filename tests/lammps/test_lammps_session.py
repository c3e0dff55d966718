"""The pair style in LAMMPS on one and several processes, against `evaluate`."""

import numpy as np
import pytest
import torch
from ase import Atoms
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx import Potential, System, TensorNetConfig, evaluate
from torchmdx.lammps.example import water

pytestmark = needs_lammps
BAR = 1.602176634e6  # of eV/Å³
STYLE = "torchmdx model.safetensors precision float64 device cpu"


@pytest.fixture
def model(tmp_path) -> Potential:
    """A small potential, saved in the folder of the run."""
    torch.manual_seed(0)
    made = Potential(TensorNetConfig(num_channels=16, num_radial=8, num_layers=1, cutoff=3.0)).double()
    made.shift.fill_(3.0)
    made.reference_energies[:9] = torch.linspace(-20, 5, 9)
    torchmdx.save(made, tmp_path / "model.safetensors")
    return made


def triclinic() -> Atoms:
    atoms = water(27)
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0, 0], [0.3, 1, 0], [0.1, -0.2, 1]]), scale_atoms=True)
    return atoms


def require_equal(outcome, model, atoms: Atoms, unit: float = 1.0) -> None:
    assert outcome.status == 0, outcome.text[-3000:]
    exact = evaluate(model, System.from_ase(atoms), stress=bool(atoms.pbc.all()))
    values = outcome.dump()
    forces, energies = exact.forces.numpy() * unit, exact.energies.numpy() * unit
    assert abs(outcome.thermo["PotEng"][-1] - float(exact.energy) * unit) < 2e-13 * abs(float(exact.energy) * unit)
    assert np.abs(values[:, 3:6] - forces).max() < 2e-13 * np.abs(forces).max()
    assert np.abs(values[:, 6] - energies).max() < 2e-13 * np.abs(energies).max()
    if atoms.pbc.all():
        pressure = -exact.stress[0].numpy() * BAR
        for name, (i, j) in {"Pxx": (0, 0), "Pyy": (1, 1), "Pzz": (2, 2), "Pxy": (0, 1), "Pyz": (1, 2)}.items():
            assert outcome.thermo[name][-1] == pytest.approx(pressure[i, j], rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("structure", [lambda: water(27), triclinic], ids=["orthogonal", "triclinic"])
def test_energy_forces_and_pressure(tmp_path, model, structure, ranks):
    atoms = structure()
    write(tmp_path, atoms)
    require_equal(launch(tmp_path, setup(STYLE) + "run 0\n", ranks), model, atoms)
