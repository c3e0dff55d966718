"""The pair style in LAMMPS on one and several processes, against `evaluate`."""

import numpy as np
import pytest
from ase import Atoms
from lammps_checks import STYLE, require_equal
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx import Potential, TensorNetConfig
from torchmdx.lammps.example import water
from torchmdx.lammps.session import LammpsSession
from torchmdx.lammps.settings import Settings
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.models.tensornet2 import TensorNet2Config

pytestmark = needs_lammps
REAL = 23.060549  # kcal/mol of eV, as LAMMPS has it


def triclinic() -> Atoms:
    atoms = water(27)
    atoms.set_cell(atoms.cell.array @ np.array([[1, 0, 0], [0.3, 1, 0], [0.1, -0.2, 1]]), scale_atoms=True)
    return atoms


@pytest.mark.nightly_for("triclinic", "orthogonal-1", "orthogonal-4")
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("structure", [lambda: water(27), triclinic], ids=["orthogonal", "triclinic"])
def test_energy_forces_and_pressure(tmp_path, model, structure, ranks):
    atoms = structure()
    write(tmp_path, atoms)
    require_equal(launch(tmp_path, setup(STYLE) + "run 0\n", ranks), model, atoms)


@pytest.mark.nightly
def test_a_box_smaller_than_the_receptive_field(tmp_path, model):
    """Along x and y the potential sees several images of an atom; along z the box is divided."""
    atoms = water(8).repeat((1, 1, 2))
    assert atoms.cell.lengths()[0] < 2 * 2 * 3.0 + 1
    write(tmp_path, atoms)
    require_equal(launch(tmp_path, setup(STYLE, before="processors 1 1 2") + "run 0\n", 2), model, atoms)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 4])
def test_mixed_boundaries(tmp_path, model, ranks):
    """Periodic along x, fixed along y and shrink-wrapped along z."""
    atoms = water(27)
    atoms.pbc = (True, False, False)
    write(tmp_path, atoms)
    require_equal(launch(tmp_path, setup(STYLE, boundary="p f s") + "run 0\n", ranks), model, atoms)


@pytest.mark.nightly
def test_processes_without_atoms(tmp_path, model):
    """A molecule in the corner of a large box: three of four processes own nothing, and one has not even ghosts."""
    atoms = water(1)
    atoms.set_cell([40.0, 40.0, 12.0])
    atoms.positions += 1.0
    write(tmp_path, atoms)
    found = launch(tmp_path, setup(STYLE, before="processors 2 2 1") + "fix 1 all nve\nrun 2\nrun 0\n", 4)
    require_equal(found, model, moved(tmp_path, atoms))


@pytest.mark.filterwarnings("error")
def test_the_process_that_owns_all_atoms_warns_once(tmp_path):
    config = TensorNet2Config(num_channels=8, num_radial=4, num_layers=1, num_charges=2, cutoff=3.0)
    torchmdx.save(Potential(config, [CoulombConfig(cutoff=6.0)]), tmp_path / "charged.safetensors")
    session = LammpsSession(Settings(model=str(tmp_path / "charged.safetensors"), device="cpu"), 0)
    atoms = water(8)
    given = (atoms.positions, atoms.numbers, np.zeros(24, int), 24, 24, atoms.cell.array, [True, True, True])
    with pytest.warns(UserWarning, match="truncates the Coulomb energy of periodic systems at 6 Å"):
        session.assign(*given)
    session.assign(*given)


def test_a_potential_that_takes_charges_is_refused(tmp_path):
    config = TensorNetConfig(num_channels=8, num_radial=4, num_layers=1, cutoff=3.0)
    torchmdx.save(Potential(config, [CoulombConfig(charges="given")]), tmp_path / "given.safetensors")
    with pytest.raises(ValueError, match=r"got one that takes the partial charges of atoms as given: .*given\.safe"):
        LammpsSession(Settings(model=str(tmp_path / "given.safetensors"), device="cpu"), 0)


def moved(folder, atoms: Atoms) -> Atoms:
    """The structure of the last frame that was written."""
    there = atoms.copy()
    lines = (folder / "dump.0").read_text().split("ITEM: ATOMS")[-1].splitlines()[1:]
    there.positions = [[float(x) for x in line.split()[1:4]] for line in lines]
    return there


@pytest.mark.nightly
def test_real_units(tmp_path, model):
    atoms = water(8)
    write(tmp_path, atoms)
    found = launch(tmp_path, setup(STYLE, units="real") + "run 0\n", 2)
    assert found.status == 0, found.text
    exact = torchmdx.evaluate(model, torchmdx.System.from_ase(atoms), stress=True)
    assert found.thermo["PotEng"][-1] == pytest.approx(float(exact.energy) * REAL, rel=1e-7)
    assert np.allclose(found.dump()[:, 3:6], exact.forces.numpy() * REAL, rtol=1e-7, atol=1e-9)
    atmospheres = -exact.stress[0, 0, 0].item() * 1.602176634e6 / 1.01325
    assert found.thermo["Pxx"][-1] == pytest.approx(atmospheres, rel=1e-5)


@pytest.mark.nightly
def test_a_balanced_box(tmp_path, model):
    """`balance rcb` divides the box into unequal bricks, along different directions."""
    atoms = water(27)
    atoms.set_cell(atoms.cell.array * [1, 1, 2])
    write(tmp_path, atoms)
    text = setup(STYLE, before="comm_style tiled").replace("dump_modify", "balance 1.01 rcb\ndump_modify") + "run 0\n"
    require_equal(launch(tmp_path, text, 4), model, atoms)
