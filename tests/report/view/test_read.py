import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule

from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame
from torchmdx.report.view.read import read


@pytest.fixture
def water(tmp_path):
    """Five frames of water that moves along x, as xyz and as DCD."""
    frames = []
    trajectory = Trajectory.create(tmp_path / "run.dcd", 3, 20, False, 0.5)
    for place in range(5):
        atoms = molecule("H2O")
        atoms.translate([place, 0, 0])
        frames.append(atoms)
        trajectory.append(TrajectoryFrame(atoms.positions, None))
    trajectory.close()
    ase.io.write(tmp_path / "run.xyz", frames)
    return frames


@pytest.mark.parametrize(("index", "expected"), [(":", [0, 1, 2, 3, 4]), ("-1", [4]), ("1:4:2", [1, 3])])
@pytest.mark.parametrize("name", ["run.xyz", "run.dcd"])
def test_frames_of_a_file(tmp_path, water, name, index, expected):
    found = read(str(tmp_path / name), index=index)
    assert found.indices.tolist() == expected
    assert np.array(found.positions) == pytest.approx(np.array([water[k].positions for k in expected]), abs=1e-5)
    assert found.numbers[0].tolist() == [8, 1, 1]
    assert found.cells[0] is None
    if name == "run.dcd":
        assert found.axis == "time / ps"
        assert found.x == pytest.approx(0.01 * np.array(expected))
        assert found.captions[-1].startswith(f"frame {expected[-1]}, step {20 * expected[-1]}")
    else:
        assert found.axis == "frame"
        assert found.captions[-1] == f"frame {expected[-1]}"


@pytest.mark.parametrize("index", ["7", "9:", "one"])
@pytest.mark.parametrize("name", ["run.xyz", "run.dcd"])
def test_frames_that_are_not_there(tmp_path, water, name, index):
    with pytest.raises(ValueError, match=f"--index must select frames of the 5 in .*{name}', got '{index}'"):
        read(str(tmp_path / name), index=index)


def test_a_dcd_needs_elements_that_fit(tmp_path, water):
    (tmp_path / "run.xyz").unlink()
    dcd = str(tmp_path / "run.dcd")
    with pytest.raises(FileNotFoundError, match=r"has no elements: give .* --structure, .* such as 'run\.final\.pdb'"):
        read(dcd)
    ase.io.write(tmp_path / "other.xyz", molecule("CH4"))
    with pytest.raises(ValueError, match=r"run\.dcd' has 3 atoms, but .*other\.xyz' has 5"):
        read(dcd, structure=str(tmp_path / "other.xyz"))
    ase.io.write(tmp_path / "run.final.xyz", molecule("H2O"))
    with pytest.raises(FileNotFoundError, match="no log at 'none.log'"):
        read(dcd, log="none.log")
    assert read(dcd).numbers[0].tolist() == [8, 1, 1]


def test_the_structure_of_a_dcd_tells_its_periodic_directions(tmp_path):
    slab = bulk("Cu", cubic=True)
    trajectory = Trajectory.create(tmp_path / "run.dcd", 4, 20, True, 0.5)
    trajectory.append(TrajectoryFrame(slab.positions, slab.cell.array))
    trajectory.close()
    for pbc, found in (([True, True, False],) * 2, (False, [True] * 3)):
        slab.pbc = pbc
        ase.io.write(tmp_path / "run.final.xyz", slab)
        assert read(str(tmp_path / "run.dcd")).pbc[0].tolist() == found


def test_options_of_a_dcd_are_refused_elsewhere(tmp_path, water):
    with pytest.raises(ValueError, match="--structure applies to DCD and HDF5 trajectories"):
        read(str(tmp_path / "run.xyz"), structure="a.pdb")
    with pytest.raises(ValueError, match="--log applies to DCD and HDF5 trajectories"):
        read(str(tmp_path / "run.xyz"), log="a.log")


def test_residues_of_a_pdb_label_atoms(data):
    found = read(str(data / "alanine_dipeptide.pdb"))
    assert found.labels[8] == "ALA 2 CA"
    assert found.captions == ["frame 0"]


def test_cells(tmp_path):
    frames = [bulk("Cu"), Atoms("Cu", cell=[0.5, 0.5, 0.5], pbc=True), Atoms("Cu", cell=[5, 5, 5])]
    ase.io.write(tmp_path / "cells.xyz", frames)
    found = read(str(tmp_path / "cells.xyz"))
    assert found.cells[0] == pytest.approx(bulk("Cu").cell.array)
    assert found.cells[1:] == [None, None]  # a placeholder, and one without periodic directions
    assert not found.uniform


def test_captions_of_several_structures(tmp_path):
    ase.io.write(tmp_path / "set.xyz", [molecule("H2O"), molecule("CH3CH2OH")])
    assert read(str(tmp_path / "set.xyz")).captions == ["frame 0: H2O", "frame 1: C2H6O"]
