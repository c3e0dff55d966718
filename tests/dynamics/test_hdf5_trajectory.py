"""HDF5 trajectories: the layout by a reader of its own, by MDTraj, restarts, kills and full disks."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import forked_programs
import numpy as np
import pytest
import torch
from ase.geometry import cellpar_to_cell

from torchmdx import Dynamics, System
from torchmdx.dynamics.run.recording import Recording
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat, topology_of

h5py = pytest.importorskip("h5py")

HDF5 = TrajectoryFormat("hdf5", velocities=True)
INTERVALS = dict(save_every=4, log_every=3, trajectory=HDF5)
# The cell of the crystal is rotated, of which a recording warns.
pytestmark = pytest.mark.filterwarnings("ignore:trajectories hold lengths and angles of cells")
EV_IN_KJ_PER_MOL = 1.602176634e-19 * 6.02214076e23 / 1000


@pytest.fixture
def make(make_potential, ethanol, crystal):
    potential = make_potential(dtype=torch.float32, num_layers=0, num_channels=4, num_radial=4)
    systems = [System.from_ase(ethanol), System.from_ase(crystal)]
    return lambda **options: Dynamics(potential, systems, **{"timestep": 0.25, "seed": 3, **options})


@pytest.fixture
def prefix(tmp_path):
    return str(tmp_path / "run")


def record(dynamics, prefix, num_steps, **options):
    with Recording.begin(dynamics, prefix, **{**INTERVALS, **options}) as recording:
        recording.run(num_steps)


def arrays(path):
    """What is on disk: of a copy, since the library shares what it has open in a process."""
    copy = f"{path}.copy"
    shutil.copy(path, copy)
    with h5py.File(copy, "r") as file:
        return {name: file[name][()] for name in file}


def test_the_layout_is_that_of_mdtraj(make, prefix, ethanol, crystal):
    """As https://www.mdtraj.org/latest/hdf5_format.html says: names, units and shapes; values in its units."""
    record(make(), prefix, 10)
    states = [make().snapshot(), *make().snapshots(8, every=4)]
    units = {
        "coordinates": b"nanometers", "time": b"picoseconds", "velocities": b"nanometers/picosecond",
        "kineticEnergy": b"kilojoules_per_mole", "potentialEnergy": b"kilojoules_per_mole", "temperature": b"kelvin",
    }  # fmt: skip
    for number, (atoms, own) in enumerate([(ethanol, slice(0, 9)), (crystal, slice(9, 12))]):
        cell_units = {"cell_lengths": b"nanometers", "cell_angles": b"degrees", "cell_vectors": b"nanometers"}
        cell_units = cell_units if number else {}
        with h5py.File(f"{prefix}.{number}.h5", "r") as file:
            assert file.attrs["conventions"] == b"Pande"
            assert file.attrs["conventionVersion"] == b"1.1"
            for name, unit in (units | cell_units).items():
                assert file[name].attrs["units"] == unit
                assert file[name].dtype == np.float32
            assert set(file) == {*units, *cell_units, "topology"}
            topology = json.loads(file["topology"][0].decode("ascii"))
            names = [
                atom["element"]
                for chain in topology["chains"]
                for residue in chain["residues"]
                for atom in residue["atoms"]
            ]
            assert names == atoms.get_chemical_symbols()
            found = {name: file[name][()] for name in file if name != "topology"}
        expected = {
            "coordinates": [0.1 * state.positions[own] for state in states],
            "velocities": [100 * state.velocities[own] for state in states],
            "time": [0.0, 0.001, 0.002],
            "potentialEnergy": [EV_IN_KJ_PER_MOL * state.energy[number] for state in states],
            "kineticEnergy": [EV_IN_KJ_PER_MOL * state.kinetic_energy[number] for state in states],
            "temperature": [state.temperature[number] for state in states],
        }
        if number:
            expected["cell_lengths"] = [0.1 * crystal.cell.lengths()] * 3
            expected["cell_angles"] = [crystal.cell.angles()] * 3
            expected["cell_vectors"] = [0.1 * crystal.cell.array] * 3
            rotated = cellpar_to_cell(crystal.cell.cellpar())  # the orientation that MDTraj makes of them
            turn = np.linalg.solve(crystal.cell.array, rotated)
            for name in ("coordinates", "velocities"):
                expected[name] = [values @ turn for values in expected[name]]
        for name, values in expected.items():
            np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=1e-6, err_msg=name)


def test_mdtraj_reads_it(make, prefix, ethanol, crystal):
    mdtraj = pytest.importorskip("mdtraj")
    pytest.importorskip("tables")
    record(make(), prefix, 10)
    for number, atoms in enumerate((ethanol, crystal)):
        found = mdtraj.load(f"{prefix}.{number}.h5")
        held = arrays(f"{prefix}.{number}.h5")
        np.testing.assert_array_equal(found.xyz, held["coordinates"])
        np.testing.assert_allclose(found.time, [0, 0.001, 0.002])
        assert [atom.element.number for atom in found.topology.atoms] == atoms.numbers.tolist()
        if number:
            np.testing.assert_allclose(found.unitcell_lengths, [0.1 * atoms.cell.lengths()] * 3, rtol=1e-6)
            np.testing.assert_allclose(found.unitcell_angles, [atoms.cell.angles()] * 3, rtol=1e-6)
        else:
            assert found.unitcell_lengths is None


def test_a_continued_run_is_as_one_that_never_ended(make, prefix, tmp_path):
    record(make(), prefix, 21)
    other = str(tmp_path / "other")
    with Recording.begin(make(), other, **INTERVALS, checkpoint_every=6) as recording:
        for state in recording.dynamics.snapshots(15, every=[3, 4]):  # frames after the restart file are repeated
            recording._record(state)
            if state.step == 6:
                recording.save(state)
    with Recording.resume(make(), other, **INTERVALS) as recording:
        assert recording.saved_step == 6
        recording.run(15)
    for number in (0, 1):
        one, two = arrays(f"{prefix}.{number}.h5"), arrays(f"{other}.{number}.h5")
        assert set(one) == set(two)
        for name, values in one.items():
            np.testing.assert_array_equal(values, two[name])


def test_what_is_flushed_can_be_read_during_the_run(make, prefix):
    with Recording.begin(make(), prefix, **INTERVALS) as recording:
        recording.run(9)  # saves at its end
        assert len(arrays(f"{prefix}.0.h5")["coordinates"]) == 3
        script = "import h5py, sys; print(len(h5py.File(sys.argv[1], 'r')['coordinates']))"
        command = [sys.executable, "-c", script, f"{prefix}.0.h5"]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3\n"


def test_a_full_disk_names_the_file_and_changes_nothing(make, prefix, monkeypatch):
    with Recording.begin(make(), prefix, **INTERVALS) as recording:
        recording.run(5)
        before = arrays(f"{prefix}.0.h5")
        size = os.path.getsize(f"{prefix}.0.h5")

        def full(descriptor, offset, length):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match=r"run.0.h5' could not be written \(No space left on device\)") as caught:
            recording.run(5)
        assert caught.value.errno == errno.ENOSPC
        np.testing.assert_array_equal(arrays(f"{prefix}.0.h5")["coordinates"], before["coordinates"])
        assert os.path.getsize(f"{prefix}.0.h5") == size
        monkeypatch.undo()
    with Recording.resume(make(), prefix, **INTERVALS) as recording:
        assert recording.saved_step == 5
        recording.run(5)
    assert len(arrays(f"{prefix}.0.h5")["coordinates"]) == 3


WRITER = """
import sys, time
import numpy as np
from pathlib import Path
from torchmdx.dynamics import hdf5_trajectory
from torchmdx.dynamics.trajectory import TrajectoryFrame
from torchmdx.dynamics.trajectory_formats import TrajectoryFormat, topology_of
hdf5_trajectory.FLUSH_SECONDS = 0.0
numbers = np.full(40, 6)
file = TrajectoryFormat("hdf5").create(Path(sys.argv[1]), 40, 1, True, 1.0, topology_of(numbers))
cell = 9.0 * np.eye(3)
print("ready", flush=True)
for k in range(10**9):
    file.append(TrajectoryFrame(np.full((40, 3), 10.0 * k), cell, np.zeros((40, 3)), float(k), float(k), 0.0, float(k)))
    if k == 50:
        print("many", flush=True)
"""


@pytest.mark.nightly_for("40", "400")
@pytest.mark.parametrize("milliseconds", [1, 40, 400])
def test_a_killed_process_leaves_whole_frames(tmp_path, milliseconds):
    """With a flush for every frame, at any time."""
    path = tmp_path / "killed.h5"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*forked_programs.python(), "-c", textwrap.dedent(WRITER), str(path)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "many\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(milliseconds / 1000)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    found = arrays(path)
    count = len(found["coordinates"])
    assert count > 50
    np.testing.assert_array_equal(
        found["coordinates"], np.arange(count, dtype=np.float32)[:, None, None].repeat(40, 1).repeat(3, 2)
    )
    np.testing.assert_array_equal(found["time"][:count], np.arange(count))
    np.testing.assert_allclose(found["cell_angles"][:count], 90.0)
    file = HDF5_ALONE.reopen(path, 40, 1, True, 30)
    file.close()
    assert {len(values) for name, values in arrays(path).items() if name != "topology"} == {30}


HDF5_ALONE = TrajectoryFormat("hdf5")


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.h5"
    HDF5_ALONE.create(path, 3, 10, False, 0.5, topology_of(np.array([8, 1, 1]))).close()
    with pytest.raises(ValueError, match="must hold the 2 frames up to the checkpoint, got 0"):
        HDF5_ALONE.reopen(path, 3, 10, False, 2)
    with pytest.raises(ValueError, match="must be a trajectory of 4 atoms"):
        HDF5_ALONE.reopen(path, 4, 10, False, 0)
    with pytest.raises(ValueError, match="must hold the arrays cell_angles, .*, got coordinates"):
        HDF5_ALONE.reopen(path, 3, 10, True, 0)
    with pytest.raises(ValueError, match="must hold the arrays .*velocities, got"):
        HDF5.reopen(path, 3, 10, False, 0)
    path.write_text("text")
    with pytest.raises(ValueError, match="must be an HDF5 trajectory, got a file that cannot be read"):
        HDF5_ALONE.reopen(path, 3, 10, False, 0)
