"""HDF5 trajectories, of runs and of MDTraj."""

import numpy as np
import pytest
from ase.build import molecule

from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat, topology_of
from torchmdx.report.view.hdf5 import open_hdf5, open_trajectory
from torchmdx.report.view.read import read

h5py = pytest.importorskip("h5py")


@pytest.fixture
def frames(tmp_path):
    """Five frames of water that moves along x in a triclinic cell."""
    atoms = molecule("H2O", cell=[[9, 0, 0], [1, 8, 0], [0.5, 0.3, 7]], pbc=True)
    file = TrajectoryFormat("hdf5").create(tmp_path / "run.h5", 3, 20, True, 0.5, topology_of(atoms.numbers))
    found = []
    for place in range(5):
        atoms.translate([0.1, 0, 0])
        found.append(atoms.copy())
        file.append(
            TrajectoryFrame(atoms.positions, atoms.cell.array, np.zeros((3, 3)), 0.01 * place, -1.0, 0.1, 300.0)
        )
    file.close()
    atoms.write(tmp_path / "run.final.xyz")
    return found


def test_frames_of_a_run(tmp_path, frames):
    found = read(str(tmp_path / "run.h5"), index="1:4:2")
    assert found.indices.tolist() == [1, 3]
    assert found.x == pytest.approx([0.01, 0.03])
    assert found.captions[0].startswith("frame 1, step 20")
    for place, frame in enumerate((1, 3)):
        np.testing.assert_allclose(found.positions[place], frames[frame].positions, atol=1e-5)
        np.testing.assert_allclose(found.cells[place], frames[frame].cell.array, atol=1e-5)


def test_a_file_of_another_program(tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["coordinates"], file["time"] = np.ones((3, 2, 3), np.float32), np.array([1.0, 1.5, 2.0])
    found = open_trajectory(tmp_path / "other.h5")
    assert (found.num_frames, found.num_atoms, found.timestep) == (3, 2, 500.0)
    positions, cells = found.read(np.array([0, 2]))
    np.testing.assert_array_equal(positions, np.full((2, 2, 3), 10.0))
    assert cells is None


def test_other_content_is_refused(tmp_path):
    with h5py.File(tmp_path / "empty.h5", "w"):
        pass
    (tmp_path / "text.h5").write_text("text")
    for name in ("empty", "text"):
        with pytest.raises((ValueError, OSError), match=f"{name}.h5"):
            open_hdf5(tmp_path / f"{name}.h5")
