"""Structures of files that move, in both engines: velocities at other masses, final structures, orientation."""

import os
import signal
import subprocess
import sys

import ase.io
import numpy as np
import pytest
from ase import units
from ase.build import bulk, molecule
from ase.constraints import FixAtoms
from device_runs import md as device_md
from md_runs import assert_refused
from md_runs import md as openmm_md

from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.run import moving
from torchmdx.report.view.dcd import open_dcd

pytestmark = [
    pytest.mark.usefixtures("unplotted"),
    pytest.mark.filterwarnings("always:trajectories hold lengths and angles of cells"),
]


@pytest.fixture(params=["openmm", "torchmdx"])
def md(request):
    if request.param == "openmm":
        pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")
        return lambda *given: openmm_md(*given, "--save-every", 4, "--log-every", 2, "--timestep", 0.25, "--seed", 5)
    return device_md


def warm(atoms):
    masses = atoms.get_masses()
    velocities = np.random.default_rng(1).normal(size=(len(atoms), 3)) * np.sqrt(300 * units.kB / masses)[:, None]
    atoms.set_velocities(velocities - np.average(velocities, axis=0, weights=masses))
    return atoms


def temperature(masses, velocities, freedoms):
    """K, of velocities in units of ASE."""
    return (masses @ (velocities**2).sum(1)) / (freedoms * units.kB)


def test_heavy_hydrogens_keep_the_temperature_of_the_file(md, model, folder, capsys):
    atoms = warm(molecule("CH3CH2OH"))
    ase.io.write("v.traj", atoms)
    expected = temperature(atoms.get_masses(), atoms.get_velocities(), 3 * len(atoms) - 3)
    for further in ([], ["--hydrogen-mass", 3]):
        assert md("v.traj", model, "run", "--ensemble", "nve", "--steps", 4, "--overwrite", *further) == 0
        assert read_log(folder / "run.log")["temperature_K"][0] == pytest.approx(expected, rel=2e-3)
        said = "velocities: from the file, scaled to the masses of the run, which keeps their temperature"
        assert (said in capsys.readouterr().out) == bool(further)


def test_a_temperature_for_velocities_of_the_file_is_refused(md, model, folder, capsys):
    """At constant energy it would have no effect."""
    ase.io.write("v.traj", warm(molecule("CH3OH")))
    given = ["--ensemble", "nve", "--temperature", 300, "--steps", 4]
    words = "--temperature applies to new velocities, but 'v.traj' has velocities; add --velocities new"
    assert_refused(capsys, md("v.traj", model, "run", *given), words)
    assert md("v.traj", model, "run", *given, "--velocities", "new") == 0


def test_a_final_structure_continues_a_run(md, model, folder):
    """In the orientation of its file, with velocities and masses: as if the run had not ended."""
    atoms = warm(molecule("CH3CH2OH"))
    atoms.set_constraint(FixAtoms([0]))
    ase.io.write("v.traj", atoms)
    options = ["--ensemble", "nve", "--hydrogen-mass", 3]
    assert md("v.traj", model, "whole", *options, "--steps", 8) == 0
    assert md("v.traj", model, "first", *options, "--steps", 4) == 0
    assert md("first.final.xyz", model, "second", *options, "--steps", 4) == 0
    first, second, whole = (ase.io.read(f"{name}.final.xyz") for name in ("first", "second", "whole"))
    assert first.get_masses()[first.numbers == 1] == pytest.approx(3.0)
    np.testing.assert_allclose(second.positions, whole.positions, atol=2e-6)
    np.testing.assert_allclose(second.get_velocities(), whole.get_velocities(), atol=2e-6)
    assert not first.get_velocities()[0].any()


@pytest.mark.parametrize("left", [False, True])
def test_a_rotated_crystal_returns_in_its_orientation(md, model, folder, capsys, left):
    atoms = bulk("NaCl", "rocksalt", a=5.64) * (2, 2, 2)
    atoms.rotate(40, (1, -2, 3), rotate_cell=True)
    if left:
        atoms.set_cell(atoms.cell.array[[1, 0, 2]])
    atoms.rattle(0.05, seed=3)
    ase.io.write("in.extxyz", warm(atoms))
    assert md("in.extxyz", model, "run", "--ensemble", "nve", "--steps", 4) == 0
    said = capsys.readouterr()
    assert "a along x and b in the xy plane" in said.out + said.err
    final = ase.io.read("run.final.xyz")
    np.testing.assert_allclose(final.cell.array, atoms.cell.array, atol=1e-6)
    # After a femtosecond atoms are near where they were and fly nearly as fast: a rotation would move them by Å.
    assert np.abs(final.positions - atoms.positions).max() < 0.1
    assert np.abs(final.get_velocities() - atoms.get_velocities()).max() < 0.2 * np.abs(atoms.get_velocities()).max()
    positions, cells = open_dcd("run.dcd").read(np.array([1]))
    found = ase.Atoms(atoms.numbers, positions[0], cell=cells[0], pbc=True)
    np.testing.assert_allclose(found.get_all_distances(mic=True), final.get_all_distances(mic=True), atol=1e-4)


def test_a_restart_with_another_cell_is_refused(md, model, salt_file, capsys):
    assert md(salt_file, model, "run", "--steps", 4) == 0
    atoms = ase.io.read(salt_file)
    atoms.set_cell(atoms.cell.array * 1.01)
    ase.io.write(salt_file, atoms, format="extxyz")
    status = md(salt_file, model, "run", "--steps", 8, "--restart")
    assert_refused(capsys, status, "a restart needs the settings of the run", "in Å", "11.3928", "11.28")


def test_a_second_run_is_refused_and_a_killed_one_blocks_nobody(md, model, ethanol_file, folder, capsys):
    assert md(ethanol_file, model, "run", "--steps", 4) == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    hold = "from torchmdx.runtime.output_lock import OutputLock as L; l = L('run'); print(1, flush=True); input()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", hold], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"1\n"
        for options in (["--restart"], ["--overwrite"]):
            status = md(ethanol_file, model, "run", "--steps", 8, *options)
            assert_refused(capsys, status, f"only one run at a time may write an output, and process {other.pid} on ")
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"} == before
        other.send_signal(signal.SIGKILL)
    assert md(ethanol_file, model, "run", "--steps", 8, "--restart") == 0
    assert not (folder / "run.lock").exists()


def test_a_signal_while_it_reads_leaves_a_run_to_restart(md, model, ethanol_file, folder, monkeypatch, capsys):
    assert md(ethanol_file, model, "whole", "--steps", 8) == 0

    def slow(*given, read=moving.read_record):
        signal.raise_signal(signal.SIGTERM)
        return read(*given)

    monkeypatch.setattr(moving, "read_record", slow)
    assert md(ethanol_file, model, "run", "--steps", 8) == 75
    assert (
        "stopped by SIGTERM at step 0 of 8; the same command with --restart continues from" in capsys.readouterr().err
    )
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert md(ethanol_file, model, "run", "--steps", 8, "--restart") == 0
    assert (folder / "run.dcd").read_bytes() == (folder / "whole.dcd").read_bytes()
