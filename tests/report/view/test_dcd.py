import struct

import numpy as np
import pytest
from ase.geometry import cellpar_to_cell

from torchmdx.dynamics.trajectory import Trajectory, TrajectoryFrame
from torchmdx.report.view.dcd import open_dcd

CELLS = np.array([[[9.0, 0, 0], [1.0, 8.0, 0], [-1.0, 2.0, 7.0]], [[9.5, 0, 0], [1.0, 8.5, 0], [-1.0, 2.0, 7.5]]])


@pytest.fixture
def frames():
    return np.random.default_rng(1).normal(scale=5, size=(2, 7, 3))


def written(path, frames, cells=None):
    trajectory = Trajectory.create(path, 7, 50, cells is not None, 0.5)
    for place, frame in enumerate(frames):
        trajectory.append(TrajectoryFrame(frame, None if cells is None else cells[place]))
    trajectory.close()
    return path


@pytest.mark.parametrize("cells", [None, CELLS], ids=["vacuum", "cell"])
def test_frames_of_a_run(tmp_path, frames, cells):
    dcd = open_dcd(written(tmp_path / "a.dcd", frames, cells))
    assert (dcd.num_atoms, dcd.num_frames, dcd.periodic) == (7, 2, cells is not None)
    assert dcd.steps().tolist() == [0, 50]
    assert dcd.timestep == pytest.approx(0.5)
    positions, found = dcd.read(np.array([1, 0]))
    assert positions == pytest.approx(frames[::-1], abs=1e-5)
    if cells is None:
        assert found is None
    else:
        assert found == pytest.approx(cells[::-1], abs=1e-6)


def test_a_file_of_openmm(tmp_path, frames):
    app, unit = pytest.importorskip("openmm.app"), pytest.importorskip("openmm.unit")
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for _ in range(7):
        topology.addAtom("C", app.element.carbon, residue)
    topology.setPeriodicBoxVectors(CELLS[0] * unit.angstrom)
    with open(tmp_path / "a.dcd", "wb") as file:
        writer = app.DCDFile(file, topology, 2.0 * unit.femtosecond, 100, 10)
        for frame, cell in zip(frames, CELLS, strict=True):
            writer.writeModel(frame * unit.angstrom, periodicBoxVectors=cell * unit.angstrom)
    dcd = open_dcd(tmp_path / "a.dcd")
    positions, cells = dcd.read(np.arange(2))
    assert positions == pytest.approx(frames, abs=1e-5)
    assert cells == pytest.approx(CELLS, abs=1e-5)
    assert dcd.steps().tolist() == [100, 110]
    assert dcd.timestep == pytest.approx(2.0, rel=1e-4)


def test_the_other_byte_order(tmp_path, frames):
    control = struct.pack(">i4s9if10ii", 84, b"CORD", 1, 5, 2, *[0] * 6, 0.02, 0, *[0] * 8, 24, 84)
    title = struct.pack(">ii80si", 84, 1, b"x" * 80, 84)
    content = control + title + struct.pack(">3i", 4, 7, 4)
    for column in frames[0].T.astype(">f4"):
        content += struct.pack(">i", 28) + column.tobytes() + struct.pack(">i", 28)
    (tmp_path / "a.dcd").write_bytes(content)
    dcd = open_dcd(tmp_path / "a.dcd")
    assert dcd.steps().tolist() == [5]
    assert dcd.read(np.array([0]))[0] == pytest.approx(frames[:1], abs=1e-5)


def test_an_incomplete_frame_is_left_out(tmp_path, frames):
    path = written(tmp_path / "a.dcd", frames)
    path.write_bytes(path.read_bytes()[:-5])
    assert open_dcd(path).num_frames == 1


@pytest.mark.parametrize("content", [b"", b"ITEM: TIMESTEP\n" * 20, struct.pack("<i", 84) + b"VELD" + bytes(100)])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.dcd").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.dcd' must be a DCD trajectory, got other content"):
        open_dcd(tmp_path / "a.dcd")


def test_fixed_atoms_are_refused(tmp_path, frames):
    path = written(tmp_path / "a.dcd", frames)
    content = bytearray(path.read_bytes())
    content[8 + 4 * 8 : 12 + 4 * 8] = struct.pack("<i", 3)
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="must have no fixed atoms"):
        open_dcd(path)


@pytest.mark.parametrize(
    "wrong",
    [
        (6e-18, -7e-14, 2e-313, 3e-4, 2e-313, 6e-10),  # random bytes: a length of 0
        (9.0, 120.0, 9.0, 30.0, 30.0, 9.0),  # angles of no three vectors
        (9.0, 180.0, 9.0, 90.0, 90.0, 9.0),
        (9.0, 90.0, -9.0, 90.0, 90.0, 9.0),
        (np.inf, 90.0, 9.0, 90.0, 90.0, 9.0),
        (9.0, np.nan, 9.0, 90.0, 90.0, 9.0),
        (9.0, 450.0, 9.0, 90.0, 90.0, 9.0),
    ],
)
def test_lengths_and_angles_of_no_cell_are_refused(tmp_path, frames, wrong):
    path = written(tmp_path / "a.dcd", frames, CELLS)
    second = 276 + 56 + 3 * (4 * 7 + 8) + 4  # the cell of frame 1
    content = bytearray(path.read_bytes())
    content[second : second + 48] = struct.pack("<6d", *wrong)
    path.write_bytes(bytes(content))
    dcd = open_dcd(path)
    assert dcd.read(np.array([0]))[1] == pytest.approx(CELLS[:1], abs=1e-6)
    words = r"a\.dcd': the cell of .* lengths of at least 0.001 Å and angles that three vectors can have, got .* 1$"
    with pytest.raises(ValueError, match=words):
        dcd.read(np.arange(2))


def test_angles_may_be_degrees_and_a_cell_of_zeros_is_none(tmp_path, frames):
    path = written(tmp_path / "a.dcd", frames[:1], CELLS[:1])
    content = bytearray(path.read_bytes())
    content[280:328] = struct.pack("<6d", 9.0, 60.0, 8.0, 70.0, 80.0, 7.0)
    path.write_bytes(bytes(content))
    assert open_dcd(path).read(np.array([0]))[1][0] == pytest.approx(cellpar_to_cell([9, 8, 7, 80, 70, 60]), abs=1e-12)
    for angle in (0.0, 90.0):
        content[280:328] = struct.pack("<6d", 0.0, angle, 0.0, angle, angle, 0.0)
        path.write_bytes(bytes(content))
        assert open_dcd(path).read(np.array([0]))[1] is None
