"""How cells may move: masks, hydrostatic, constant volume, fixed vectors and directions that are not periodic."""

import ase.build
import numpy as np
import pytest
from ase import Atoms
from ase.filters import FrechetCellFilter
from ase.optimize import LBFGS

import torchmdx
from torchmdx import Calculator
from torchmdx.dynamics.relaxation.cell_space import CellSpace
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import GPA

CPU = dict(dtype="float64", device="cpu")


@pytest.fixture(scope="module")
def repulsive(make_potential) -> torchmdx.Potential:
    potential = make_potential(priors=[ZBLConfig])
    potential.scale.fill_(0)
    return potential


def crystal(pbc=True) -> Atoms:
    atoms = ase.build.bulk("C", "diamond", a=3.2, cubic=True)
    strain = np.array([[0.02, 0.01, 0], [0.01, -0.03, 0.02], [0, 0.02, 0.04]])
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + strain), scale_atoms=True)
    atoms.rattle(0.03, seed=1)
    atoms.pbc = pbc
    return atoms


def relaxed(potential, optimizer: str = "lbfgs", atoms: Atoms | None = None, **limits) -> Atoms:
    atoms = crystal() if atoms is None else atoms
    pressure = 0.0 if not atoms.pbc.all() else 60.0
    settings = dict(fmax=0.05, cell=True, pressure=pressure, optimizer=optimizer, steps=300)
    (found,) = torchmdx.relax(atoms, potential, **settings, **limits, **CPU)
    return found.atoms


def strain(after: Atoms, before: Atoms) -> np.ndarray:
    return np.linalg.solve(before.cell.array, after.cell.array) - np.eye(3)


@pytest.mark.nightly_for("fire", "limits1", "limits2")
@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
@pytest.mark.parametrize(
    ("limits", "of_ase"),
    [
        ({}, {}),
        ({"cell_mask": (1, 1, 0, 0, 0, 1)}, {"mask": [1, 1, 0, 0, 0, 1]}),
        ({"hydrostatic_strain": True}, {"hydrostatic_strain": True}),
    ],
)
def test_limits_reach_the_cells_of_ase(repulsive, optimizer, limits, of_ase):
    alone = crystal()
    alone.calc = Calculator(repulsive, **CPU)
    assert LBFGS(FrechetCellFilter(alone, scalar_pressure=60 * GPA, **of_ase), logfile=None).run(fmax=0.01, steps=300)
    found = relaxed(repulsive, optimizer, **limits)
    enthalpies = [a.get_potential_energy() + 60 * GPA * a.get_volume() for a in (alone, found)]
    assert enthalpies[1] == pytest.approx(enthalpies[0], abs=0.05)
    assert found.get_volume() == pytest.approx(alone.get_volume(), rel=0.03)
    assert found.get_volume() != pytest.approx(crystal().get_volume(), rel=1e-3)


def test_masked_strains_and_volumes_stay(repulsive):
    moved = strain(relaxed(repulsive, cell_mask=(1, 1, 0, 0, 0, 1)), crystal())
    assert np.abs(moved[2]).max() < 1e-12
    assert np.abs(moved[:, 2]).max() < 1e-12
    assert np.abs(moved[:2, :2]).max() > 1e-3
    same = strain(relaxed(repulsive, hydrostatic_strain=True), crystal())
    np.testing.assert_allclose(same, same[0, 0] * np.eye(3), atol=1e-10)
    assert abs(same[0, 0]) > 1e-3
    kept = relaxed(repulsive, constant_volume=True)
    assert kept.get_volume() == pytest.approx(crystal().get_volume(), rel=1e-7)
    assert np.abs(strain(kept, crystal())).max() > 1e-3


@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
@pytest.mark.parametrize("tilt", [0.0, 0.7])
def test_a_vector_that_is_not_periodic_is_not_touched(repulsive, optimizer, tilt):
    slab = crystal((True, True, False))
    cell = slab.cell.array.copy()
    cell[2] += [tilt, 0.3 * tilt, 6]
    slab.set_cell(cell)
    after = relaxed(repulsive, optimizer, slab)
    np.testing.assert_array_equal(after.cell[2], cell[2])
    assert np.abs(after.cell[:2] - cell[:2]).max() > 1e-3


def test_fixed_vectors_stay(repulsive):
    after = relaxed(repulsive, fixed_vectors="ac")
    np.testing.assert_allclose(after.cell.array[[0, 2]], crystal().cell.array[[0, 2]], atol=1e-12)
    assert np.abs(after.cell[1] - crystal().cell[1]).max() > 1e-3


def test_what_is_refused(repulsive):
    with pytest.raises(ValueError, match="a mask of the cell must be six of 0 and 1, xx yy zz yz xz xy, got"):
        CellSpace(mask=(True, False))
    with pytest.raises(ValueError, match="fixed vectors must be letters of 'abc', each once, got 'aa'"):
        CellSpace(fixed_vectors="aa")
    with pytest.raises(ValueError, match="a hydrostatic strain changes the volume"):
        CellSpace(hydrostatic=True, constant_volume=True)
    with pytest.raises(ValueError, match="the cell cannot move in any way with CellSpace"):
        CellSpace(fixed_vectors="abc").projector(np.eye(3), True)
    with pytest.raises(ValueError, match="limits on the cell need cell=True"):
        torchmdx.relax(crystal(), repulsive, hydrostatic_strain=True, **CPU)
    (failed,) = torchmdx.relax(crystal(), repulsive, cell=True, cell_mask=[0] * 6, **CPU)
    assert "cannot move in any way" in failed.reason
