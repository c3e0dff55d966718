"""DCD files, compared with OpenMM's writer."""

import numpy as np
import pytest
from dcd import read_dcd

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
from openmm import Vec3, app, unit

from torchmdx.dynamics.trajectory import HEADER_BYTES, Trajectory, TrajectoryFrame

TRICLINIC = np.array([[20.0, 0, 0], [3.0, 18.0, 0], [-4.0, 5.0, 16.0]])


TIMESTEP, TITLES = slice(44, 48), slice(100, 260)


@pytest.mark.parametrize("cell", [None, TRICLINIC])
def test_a_trajectory_matches_the_writer_of_openmm(tmp_path, cell):
    topology = app.Topology()
    residue = topology.addResidue("MOL", topology.addChain())
    for index in range(5):
        topology.addAtom(f"C{index}", app.element.carbon, residue)
    if cell is not None:
        topology.setPeriodicBoxVectors([Vec3(*row) for row in cell / 10] * unit.nanometer)
    frames = np.random.default_rng(1).normal(0, 30, (3, 5, 3))
    ours = Trajectory.create(tmp_path / "ours.dcd", 5, 25, cell is not None, 0.5)
    with (tmp_path / "theirs.dcd").open("w+b") as file:
        theirs = app.DCDFile(file, topology, 0.5 * unit.femtosecond, 0, 25)
        for positions in frames:
            ours.append(TrajectoryFrame(positions, cell))
            theirs.writeModel(positions * unit.angstrom)
    ours.close()
    found, wanted = ((tmp_path / name).read_bytes() for name in ("ours.dcd", "theirs.dcd"))
    assert len(found) == len(wanted)
    assert found[: TIMESTEP.start] == wanted[: TIMESTEP.start]
    assert found[TIMESTEP.stop : TITLES.start] == wanted[TIMESTEP.stop : TITLES.start]
    assert found[TITLES.stop : HEADER_BYTES] == wanted[TITLES.stop : HEADER_BYTES]
    found, wanted = read_dcd(tmp_path / "ours.dcd"), read_dcd(tmp_path / "theirs.dcd")
    assert found["timestep"] == pytest.approx(wanted["timestep"], rel=1e-6)
    np.testing.assert_allclose(found["frames"], wanted["frames"], atol=1e-5)
    if cell is not None:
        np.testing.assert_allclose(found["cells"], wanted["cells"], atol=1e-9)


def test_a_trajectory_is_truncated_and_continued(tmp_path):
    path = tmp_path / "t.dcd"
    frames = np.arange(60.0).reshape(5, 4, 3)
    trajectory = Trajectory.create(path, 4, 10, False, 1.0)
    for positions in frames:
        trajectory.append(TrajectoryFrame(positions, None))
    trajectory.close()
    path.write_bytes(path.read_bytes() + b"part of a frame")
    trajectory = Trajectory.reopen(path, 4, 10, False, 2)
    assert read_dcd(path)["last"] == 10
    trajectory.append(TrajectoryFrame(frames[4], None))
    trajectory.close()
    back = read_dcd(path)
    np.testing.assert_array_equal(back["frames"], frames[[0, 1, 4]])
    assert (back["last"], back["interval"]) == (20, 10)
    for wrong in ((5, 10, False, 1), (4, 10, True, 1)):
        with pytest.raises(ValueError, match=f"must be a trajectory of {wrong[0]} atoms"):
            Trajectory.reopen(path, *wrong)
    with pytest.raises(ValueError, match="must hold the 4 frames up to the checkpoint, got 3"):
        Trajectory.reopen(path, 4, 10, False, 4)
    assert len(read_dcd(path)["frames"]) == 3
