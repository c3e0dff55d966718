import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from pages import distances

from torchmdx.report.view.bonds import bonds, molecules, whole

EVERYWHERE, NOWHERE = np.ones(3, dtype=bool), np.zeros(3, dtype=bool)


@pytest.mark.parametrize(
    ("name", "number"), [("CH3CH2OH", 8), ("H2", 1), ("C6H6", 12), ("H2O", 2), ("SiH4", 4), ("LiF", 0)]
)
def test_bonds_of_molecules(name, number):
    atoms = molecule(name)
    assert len(molecules(atoms.numbers, atoms.positions, None, NOWHERE).pairs) == number


def test_ions_have_no_bonds():
    for metal, distance, number in ((11, 2.3, 0), (30, 2.0, 1)):
        positions = np.array([[0.0, 0, 0], [distance, 0, 0]])
        assert len(molecules(np.array([metal, 8]), positions, None, NOWHERE).pairs) == number


@pytest.fixture
def split():
    """Two water molecules, one of which is cut by two faces of a triclinic cell; the whole ones as well."""
    water = molecule("H2O")
    cell = np.array([[9.0, 0, 0], [1.5, 8.0, 0], [-1.0, 0.7, 10.0]])
    first, second = (water.positions + np.array(place) for place in ([0.2, 4.0, 0.1], [5.0, 4.0, 5.0]))
    atoms = Atoms("OH2OH2", np.concatenate([first, second]), cell=cell, pbc=True)
    atoms.wrap()
    assert not np.allclose(distances(atoms.positions[:3]), distances(water.positions))
    return atoms, water


def test_molecules_across_the_faces_of_a_cell(split):
    atoms, _ = split
    found = molecules(atoms.numbers, atoms.positions, atoms.cell.array, EVERYWHERE)
    assert found.pairs.tolist() == [[0, 1], [0, 2], [3, 4], [3, 5]]
    assert found.of.tolist() == [0, 0, 0, 1, 1, 1]
    assert not found.endless.any()


def test_molecules_are_made_whole_in_every_frame(split):
    atoms, water = split
    found = molecules(atoms.numbers, atoms.positions, atoms.cell.array, EVERYWHERE)
    moved = atoms.positions + np.array([20.0, -31.0, 4.0])
    frames = np.stack([atoms.positions, moved])
    cells = np.stack([atoms.cell.array] * 2)
    made = whole(frames, cells, EVERYWHERE, found)
    for frame in made:
        for part in (frame[:3], frame[3:]):
            assert distances(part) == pytest.approx(distances(water.positions))
            centre = np.linalg.solve(atoms.cell.array.T, part.mean(0))
            assert (centre > -1e-5).all()
            assert (centre < 1).all()
    shift = np.linalg.solve(atoms.cell.array.T, (made - frames).reshape(-1, 3).T)
    assert shift == pytest.approx(shift.round(), abs=1e-9)


def test_a_crystal_is_endless_and_does_not_jump(split):
    atoms = bulk("Si", cubic=True)
    found = molecules(atoms.numbers, atoms.positions, atoms.cell.array, EVERYWHERE)
    assert found.endless.all()
    assert found.number == 1
    frames = np.stack([atoms.positions, atoms.positions - 0.1])
    wrapped = np.stack([Atoms("Si8", frame, cell=atoms.cell, pbc=True).get_positions(wrap=True) for frame in frames])
    assert np.abs(wrapped[1] - wrapped[0]).max() > 3
    made = whole(wrapped, np.stack([atoms.cell.array] * 2), EVERYWHERE, found)
    assert made[1] - made[0] == pytest.approx(np.full((8, 3), -0.1))


def test_a_slab_is_not_wrapped_across_its_vacuum():
    atoms = Atoms("CO", [[0.1, 0, -3.0], [-1.0, 0, -3.0]], cell=[5, 5, 20], pbc=[True, True, False])
    found = molecules(atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
    made = whole(atoms.positions[None], atoms.cell.array[None], atoms.pbc, found)
    assert made[0, :, 2] == pytest.approx([-3.0, -3.0])
    assert np.linalg.norm(made[0, 1] - made[0, 0]) == pytest.approx(1.1)


def test_metals_of_a_compound_have_no_bonds_with_each_other():
    salt = bulk("MgO", "rocksalt", a=4.21, cubic=True)
    found = molecules(salt.numbers, salt.positions, salt.cell.array, EVERYWHERE)
    assert {tuple(sorted(salt.numbers[pair])) for pair in found.pairs} == {(8, 12)}
    near = np.array([[0.0, 0, 0], [2.98, 0, 0], [1.49, 1.49, 0]])
    for crystal, wanted in ((True, [[0, 2], [1, 2]]), (False, [[0, 1], [0, 2], [1, 2]])):  # and of a molecule
        assert bonds(np.array([12, 12, 8]), near, None, NOWHERE, crystal=crystal)[0].tolist() == wanted
    metal = bulk("Cu", cubic=True)
    assert len(molecules(metal.numbers, metal.positions, metal.cell.array, EVERYWHERE).pairs)
