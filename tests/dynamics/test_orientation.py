"""Cells of trajectories: other programs find the minimum images of the run, whatever the orientation of its cell."""

import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.cell import Cell

from torchmdx import Dynamics, System
from torchmdx.dynamics.orientation import closed, is_standard, standard
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat
from torchmdx.report.view.hdf5 import open_hdf5

KINDS = ("primitive", "rotated", "left-handed", "slab", "bare slab", "wire", "plain")


def structure(kind, slab) -> Atoms:
    if kind == "slab":
        return slab.copy()
    if kind == "bare slab":
        cell = slab.cell.array[[1, 2, 0]]
        cell[1] = 0
        return Atoms(slab.numbers, slab.positions, cell=cell, pbc=(True, False, True))
    atoms = bulk("NaCl", "rocksalt", a=5.6) * (2, 2, 1)
    if kind in ("rotated", "left-handed"):
        atoms.rotate(50, (1, 2, 3), rotate_cell=True)
    if kind == "left-handed":
        atoms.set_cell(atoms.cell.array[[1, 0, 2]])
    if kind == "wire":
        atoms = Atoms("OHHH", [[0, 0, 0], [1, 4, 0.3], [3, -2, 1], [0.5, 0.5, 6.9]], cell=np.diag([0, 0, 2.0]))
        atoms.pbc = (False, False, True)
    if kind == "plain":
        atoms = Atoms("OH", [[0, 0, 0], [0, 0, 6.5]], cell=[[7, 0, 0], [2, 7, 0], [1, -2, 8.0]], pbc=True)
    atoms.rattle(0.1, seed=2)
    return atoms


def dcd_of(path, num_atoms) -> Atoms:
    """The first frame as CHARMM's layout has it: a, cos γ, b, cos β, cos α, c, then x, y, z."""
    content = path.read_bytes()[276:]
    a, gamma, b, beta, alpha, c = np.frombuffer(content, "<f8", 6, 4)
    angles = np.degrees(np.arccos([alpha, beta, gamma]))
    starts = [56 + 4 + k * (4 * num_atoms + 8) for k in range(3)]
    positions = np.stack([np.frombuffer(content, "<f4", num_atoms, start) for start in starts], axis=-1)
    return Atoms("H" * num_atoms, positions, cell=Cell.fromcellpar([a, b, c, *angles]), pbc=True)


def hdf5_of(path) -> tuple[Atoms, np.ndarray]:
    """The first frame as MDTraj's layout has it, and its velocities in Å/fs."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "r") as file:
        cell = Cell.fromcellpar([*10 * file["cell_lengths"][0], *file["cell_angles"][0]])
        positions, velocities = 10 * file["coordinates"][0], 0.01 * file["velocities"][0]
    return Atoms("H" * len(positions), positions, cell=cell, pbc=True), velocities


def with_mdtraj(path, numbers) -> Atoms:
    mdtraj = pytest.importorskip("mdtraj")
    if path.suffix == ".dcd":
        topology = mdtraj.Topology()
        residue = topology.add_residue("X", topology.add_chain())
        for number in numbers:
            topology.add_atom("X", mdtraj.element.Element.getByAtomicNumber(int(number)), residue)
        found = mdtraj.load_dcd(str(path), top=topology)
    else:
        pytest.importorskip("tables")  # which MDTraj reads HDF5 with
        found = mdtraj.load(str(path))
    pairs = np.stack(np.triu_indices(len(numbers), 1), axis=-1)
    return 10 * mdtraj.compute_distances(found, pairs, opt=False)[0]


def with_mdanalysis(path, numbers) -> np.ndarray:
    analysis = pytest.importorskip("MDAnalysis")
    universe = analysis.Universe.empty(len(numbers), trajectory=True)
    universe.load_new(str(path))
    return analysis.lib.distances.self_distance_array(universe.atoms.positions, box=universe.dimensions)


def recorded(make_potential, atoms, prefix, trajectory) -> Dynamics:
    potential = make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)
    dynamics = Dynamics(potential, System.from_ase(atoms), seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Recording.begin(dynamics, str(prefix), trajectory=trajectory, overwrite=True).close()
    return dynamics


@pytest.mark.parametrize("kind", KINDS)
def test_minimum_images_in_files_are_those_of_the_run(make_potential, tmp_path, slab, kind):
    atoms = structure(kind, slab)
    among = np.triu_indices(len(atoms), 1)
    expected = atoms.get_all_distances(mic=True)[among]
    recorded(make_potential, atoms, tmp_path / "a", TrajectoryFormat())
    found = dcd_of(tmp_path / "a.dcd", len(atoms))
    np.testing.assert_allclose(found.get_all_distances(mic=True)[among], expected, atol=2e-5)
    kept = [k for k in range(3) if atoms.pbc[k]]
    np.testing.assert_allclose(found.cell.lengths()[kept], atoms.cell.lengths()[kept], rtol=1e-7)

    dynamics = recorded(make_potential, atoms, tmp_path / "a", TrajectoryFormat("hdf5", velocities=True))
    found, velocities = hdf5_of(tmp_path / "a.h5")
    np.testing.assert_allclose(found.get_all_distances(mic=True)[among], expected, atol=2e-5)
    # Neither rotations nor lattices change the products of velocities and distances, which a mirror image would.
    products, own = velocities @ found.positions.T, dynamics.snapshot().velocities
    np.testing.assert_allclose(products, own @ atoms.positions.T, atol=1e-5)
    handed = np.linalg.det(np.diff(found.positions[:4], axis=0)) if len(atoms) > 3 else 0.0
    assert handed == pytest.approx(
        np.linalg.det(np.diff(atoms.positions[:4], axis=0)) if len(atoms) > 3 else 0, rel=1e-3
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("read", "name"), [(with_mdtraj, "dcd"), (with_mdtraj, "hdf5"), (with_mdanalysis, "dcd")])
def test_other_programs_find_them(make_potential, tmp_path, slab, kind, read, name):
    atoms, trajectory = structure(kind, slab), TrajectoryFormat(name)
    expected = atoms.get_all_distances(mic=True)[np.triu_indices(len(atoms), 1)]
    recorded(make_potential, atoms, tmp_path / "a", trajectory)
    np.testing.assert_allclose(read(tmp_path / f"a{trajectory.ending}", atoms.numbers), expected, atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_hdf5_is_read_in_the_orientation_of_the_run(make_potential, tmp_path, slab, kind):
    pytest.importorskip("h5py")
    atoms = structure(kind, slab)
    recorded(make_potential, atoms, tmp_path / "a", TrajectoryFormat("hdf5"))
    positions, cells = open_hdf5(tmp_path / "a.h5").read(np.array([0]))
    np.testing.assert_allclose(positions[0], atoms.positions, atol=1e-5)
    np.testing.assert_allclose(cells[0][atoms.pbc], atoms.cell.array[atoms.pbc], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("rotated", ["frames are rotated to a along x and b in the xy plane$"]),
        ("slab", ["frames have a perpendicular one for c", "frames are rotated"]),
        ("wire", ["frames have a perpendicular one for a and b", "frames are rotated"]),
        ("plain", []),
    ],
)
def test_a_recording_says_how_frames_differ(make_potential, tmp_path, slab, kind, words):
    potential = make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)
    dynamics = Dynamics(potential, System.from_ase(structure(kind, slab)), seed=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        Recording.begin(dynamics, str(tmp_path / "a")).close()
    assert len(said) == len(words)
    for warning, word in zip(said, words, strict=True):
        with pytest.raises(UserWarning, match=word):
            raise warning.message
        assert warning.filename == __file__


def test_a_standard_cell_is_left_as_it_is():
    cell = np.array([[3.0, 0, 0], [9.0, 2.0, 0], [-8.0, 5.0, 0.5]])
    lower, rotation = standard(cell)
    assert np.array_equal(lower, cell)
    assert np.array_equal(rotation, np.eye(3))
    assert is_standard(cell)
    assert is_standard(cell + 1e-12)
    assert not is_standard(-cell)
    assert not is_standard(cell[[1, 0, 2]])


def test_open_directions_keep_what_was_given():
    """A slab in a box with enough vacuum keeps the box; without it the vector is long enough for its atoms."""
    box, pbc = np.diag([3.0, 4.0, 20.0]), np.array([True, True, False])
    thin, thick = (np.array([[0, 0, 0], [0, 0, extent]]) for extent in (6.0, 13.0))
    np.testing.assert_array_equal(closed(box, pbc, thin), box)
    np.testing.assert_array_equal(closed(box, pbc, thick), np.diag([3.0, 4.0, 26.0]))
    np.testing.assert_array_equal(np.abs(closed(np.diag([3.0, 4.0, 0.0]), pbc, thin)), np.diag([3.0, 4.0, 16.0]))
    oblique = np.array([[3.0, 0, 0], [0, 4.0, 0], [1.0, 2.0, 20.0]])
    np.testing.assert_allclose(closed(oblique, pbc, thin), box, atol=1e-12)
    assert closed(oblique, np.ones(3, dtype=bool), thin) is oblique
