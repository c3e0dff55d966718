import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from pages import distances
from scipy.spatial.transform import Rotation

from torchmdx.report.view.arrange import MOST_REPEATED, movie_of, repeats, superimposed
from torchmdx.report.view.read import of_structures


def test_rotated_copies_coincide():
    first = molecule("CH3CH2OH").positions
    turned = [Rotation.random(random_state=k).apply(first) + np.array([k, 0, -k]) for k in range(4)]
    found = superimposed(np.stack([first, *turned]))
    assert found == pytest.approx(np.broadcast_to(found[0], found.shape), abs=1e-9)
    assert distances(found[0]) == pytest.approx(distances(first))
    assert found[0].max(0) == pytest.approx(-found[0].min(0))
    spread = found[0].std(0)
    assert spread[0] > spread[2] > spread[1]


def test_superposition_is_no_mirror_image(chiral):
    mirrored = chiral.positions * [-1, 1, 1]
    found = superimposed(np.stack([chiral.positions, mirrored]))

    def handedness(positions):
        return np.sign(np.linalg.det(positions[1:4] - positions[0]))

    assert handedness(found[0]) == handedness(chiral.positions)
    assert handedness(found[1]) == handedness(mirrored) != handedness(chiral.positions)


@pytest.mark.parametrize("number", [1, 2])
def test_few_atoms_are_superimposed(number):
    positions = np.random.default_rng(0).normal(size=(3, number, 3))
    found = superimposed(positions)
    assert np.isfinite(found).all()
    assert distances(found) == pytest.approx(distances(positions), abs=1e-9)


def test_small_cells_are_repeated():
    everywhere = np.ones(3, dtype=bool)
    assert repeats(np.diag([3.6, 3.6, 12.0]), everywhere, 4) == (2, 2, 1)
    assert repeats(np.diag([3.6, 3.6, 3.6]), np.array([True, True, False]), 4) == (2, 2, 1)
    assert repeats(np.diag([20.0, 20.0, 20.0]), everywhere, 4) == (1, 1, 1)
    assert np.prod(repeats(np.diag([3.0, 3.0, 3.0]), everywhere, 100)) * 100 <= MOST_REPEATED


def test_a_crystal_is_centred_with_its_repeated_cells():
    movie = movie_of(of_structures([bulk("Cu", cubic=True)], title="Cu"))
    assert movie.repeats == (2, 2, 2)
    assert movie.num_atoms == 32
    assert movie.notes == ["2 × 2 × 2 cells are drawn."]
    assert movie.positions[0].min() == pytest.approx(-3.61)
    assert movie.positions[0].max() == pytest.approx(3.61 / 2)
    assert movie.torsions is None


def test_bonds_of_all_frames_are_kept():
    near, far = Atoms("H2", [[0, 0, 0], [0, 0, 0.74]]), Atoms("H2", [[0, 0, 0], [0, 0, 3.0]])
    movie = movie_of(of_structures([far, near, far], title="H2"))
    assert movie.kinds[0].pairs.tolist() == [[0, 1]]
    assert movie.notes == ["Each frame is superimposed on the first."]


def test_frames_of_different_structures():
    frames = [molecule("H2O"), molecule("CH4"), molecule("H2O"), bulk("Cu")]
    movie = movie_of(of_structures(frames, title="several"))
    assert movie.kind_of == [0, 1, 0, 2]
    assert [len(kind.numbers) for kind in movie.kinds] == [3, 5, 1]
    assert [cell is not None for cell in movie.cells] == [False, False, False, True]
    assert movie.repeats == (1, 1, 1)
    for atoms, positions in zip(frames, movie.positions, strict=True):
        assert distances(positions) == pytest.approx(distances(atoms.positions))


def test_torsions_of_a_peptide_are_those_before_anything_is_moved(data):
    import ase.io

    atoms = ase.io.read(data / "alanine_dipeptide.pdb")
    moved = atoms.copy()
    moved.rotate_dihedral(6, 8, 14, 16, 30.0, indices=[15, 16, 17, 18, 19, 20, 21])
    movie = movie_of(of_structures([atoms, moved], title="dipeptide"))
    assert movie.torsions.names == ["ALA 2"]
    expected = [(one.get_dihedral(6, 8, 14, 16) + 180) % 360 - 180 for one in (atoms, moved)]
    assert movie.torsions.psi[:, 0] == pytest.approx(expected)
    assert np.cos(np.radians(expected[1] - expected[0])) == pytest.approx(np.cos(np.radians(30.0)))


def test_many_frames_are_thinned_and_stated():
    frames = [Atoms("H", [[0, 0, 0]])] * 2500
    movie = movie_of(of_structures(frames, title="many"))
    assert movie.num_frames == 834  # every third, and the last
    assert movie.captions[-1] == "frame 2,499"
    assert movie.notes[0] == "834 of 2,500 frames are shown."


@pytest.mark.parametrize("frames", [[], [Atoms("H"), Atoms()]])
def test_empty_frames_are_refused(frames):
    with pytest.raises(ValueError, match="a page needs at least one frame, and atoms in every frame"):
        movie_of(of_structures(frames or [Atoms()], title="none"))


def test_bonds_across_faces_are_drawn_in_halves():
    movie = movie_of(of_structures([bulk("Si", cubic=True) * (2, 2, 2)], title="Si"))
    assert movie.repeats == (1, 1, 1)
    kind = movie.kinds[0]
    assert len(kind.pairs) + len(kind.crossings) == 2 * 64  # four bonds of each atom
    cell = movie.cells[0]
    first, second, shifts = kind.crossings[:, 0], kind.crossings[:, 1], kind.crossings[:, 2:]
    positions = movie.positions[0]
    lengths = np.linalg.norm(positions[second] + shifts @ cell - positions[first], axis=1)
    assert lengths == pytest.approx(np.full(len(lengths), 5.43 * np.sqrt(3) / 4))


def test_bonds_across_faces_of_repeated_cells_count_single_cells():
    movie = movie_of(of_structures([bulk("MgO", "rocksalt", a=4.21, cubic=True)], title="MgO"))
    assert movie.repeats == (2, 2, 2)
    kind = movie.kinds[0]
    assert len(kind.pairs) + len(kind.crossings) == 6 * 32  # six bonds of each of 64 atoms
    assert set(np.abs(kind.crossings[:, 2:]).ravel().tolist()) == {0, 2}
    slab = bulk("MgO", "rocksalt", a=4.21, cubic=True) * (2, 2, 1)
    slab.pbc = [True, True, False]
    slab.center(vacuum=3, axis=2)
    crossings = movie_of(of_structures([slab], title="slab")).kinds[0].crossings
    assert len(crossings)
    assert not crossings[:, 4].any()
    water = molecule("H2O", cell=[4, 4, 4], pbc=True)  # in one piece: nothing crosses
    assert not len(movie_of(of_structures([water], title="water")).kinds[0].crossings)


def test_rows_of_several_lists_are_each_once():
    from torchmdx.report.view.arrange import union

    some = np.array([[0, 1, -1, 0, 2], [3, 4, 0, 1, 0]])
    other = np.array([[0, 1, -1, 0, 1], [3, 4, 0, 1, 0]])
    assert union([some, other, some[:0]]).tolist() == [[0, 1, -1, 0, 1], [0, 1, -1, 0, 2], [3, 4, 0, 1, 0]]
    assert union([some[:0], some[:0]]).shape == (0, 5)
