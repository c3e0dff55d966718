"""Fixed atoms and stored velocities: read from files, and kept by runs, compared with ASE's own dynamics."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import units
from ase.constraints import FixAtoms, FixBondLength, FixCartesian, FixedPlane
from ase.md.velocitydistribution import Stationary
from ase.md.verlet import VelocityVerlet
from dcd import read_dcd
from md_runs import assert_refused, md

from torchmdx import Calculator
from torchmdx.commands import cli

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from torchmdx.dynamics.log import read_log
from torchmdx.dynamics.run.motion import fixed_atoms, stored_velocities, unread_velocities

NVE = ["--ensemble", "nve", "--timestep", 0.5, "--save-every", 5, "--log-every", 1]


@pytest.fixture
def moving(ethanol):
    """With velocities of 300 K, and two fixed atoms."""
    ethanol.set_constraint(FixAtoms([0, 4]))
    velocities = np.random.default_rng(3).normal(0, 1, (9, 3)) * np.sqrt(units.kB * 300 / ethanol.get_masses()[:, None])
    ethanol.set_velocities(velocities)
    return ethanol


def test_constraints_that_fix_atoms_are_known(ethanol):
    assert not fixed_atoms(ethanol).any()
    ethanol.set_constraint([FixAtoms([1]), FixCartesian([3, 4], mask=(True, True, True))])
    assert np.flatnonzero(fixed_atoms(ethanol)).tolist() == [1, 3, 4]
    ethanol.set_constraint([FixBondLength(0, 1), FixedPlane(2, (0, 0, 1)), FixCartesian(3, mask=(True, False, False))])
    with pytest.raises(ValueError, match=r"got FixBondLengths?, FixCartesian, FixedPlane; --ignore-constraints runs"):
        fixed_atoms(ethanol)
    assert not fixed_atoms(ethanol, ignore=True).any()


def test_velocities_are_in_angstrom_per_femtosecond(ethanol):
    assert stored_velocities(ethanol) is None
    ethanol.set_velocities(np.zeros((9, 3)))
    assert stored_velocities(ethanol) is None
    ethanol.set_velocities(np.full((9, 3), 0.02) / units.fs)
    np.testing.assert_allclose(stored_velocities(ethanol), 0.02)
    assert unread_velocities(ethanol) is None
    ethanol.set_array("velo", np.ones((9, 3)))
    assert unread_velocities(ethanol) == "velo"
    ethanol.set_velocities(np.full((9, 3), np.nan))
    with pytest.raises(ValueError, match=r"stored velocities must be finite, got \[nan, nan, nan\] Å/fs for atom 0"):
        stored_velocities(ethanol)


@pytest.mark.parametrize("ending", ["traj", "xyz"])
def test_a_run_continues_the_motion_in_the_file(capsys, model, moving, unplotted, ending):
    """The same trajectory as velocity Verlet of ASE, with the same atoms fixed."""
    ase.io.write(f"moving.{ending}", moving)
    assert md(f"moving.{ending}", model, "run", *NVE, "--steps", 10) == 0
    printed = capsys.readouterr().out
    assert "9 atoms, 2 fixed, no box" in printed
    assert "velocities: from the file, " in printed
    assert "NVE, 0.5 fs; 10 steps" in printed
    start = moving.positions.copy()
    moving.calc = Calculator(model, dtype="float64", device="cpu")
    dynamics = VelocityVerlet(moving, 0.5 * units.fs)
    kinetic, frames = [moving.get_kinetic_energy()], [start]
    for step in range(1, 11):
        dynamics.run(1)
        kinetic.append(moving.get_kinetic_energy())
        frames += [moving.positions.copy()] * (step % 5 == 0)
    found, log = read_dcd(Path("run.dcd"))["frames"], read_log(Path("run.log"))
    np.testing.assert_allclose(found, frames, atol=2e-5)
    np.testing.assert_allclose(log["kinetic_eV"], kinetic, rtol=2e-4)
    np.testing.assert_allclose(log["temperature_K"], 2 * log["kinetic_eV"] / (21 * units.kB), rtol=1e-4)
    np.testing.assert_allclose(found[:, [0, 4]], [start[[0, 4]]] * 3, atol=1e-6)
    final = ase.io.read("run.final.xyz")
    assert final.constraints[0].get_indices().tolist() == [0, 4]


@pytest.mark.parametrize("engine", ["openmm", "torchmdx"])
def test_a_drift_in_the_file_is_no_heat(model, ethanol, unplotted, engine):
    """Without a thermostat it stays, but temperatures and kinetic energies are of the motion relative to it."""
    velocities = np.random.default_rng(3).normal(0, 1, (9, 3)) * np.sqrt(units.kB * 300 / ethanol.get_masses()[:, None])
    velocities -= ethanol.get_masses() @ velocities / ethanol.get_masses().sum()
    logs = []
    for name, drift in (("still", 0.0), ("moving", np.array([0.03, -0.02, 0.01]) / units.fs)):
        ethanol.set_velocities(velocities + drift)
        ase.io.write(f"{name}.traj", ethanol)
        options = ["--ensemble", "nve", "--steps", 6, "--log-every", 2, "--timestep", 1]
        if engine == "openmm":
            assert md(f"{name}.traj", model, name, *options) == 0
        else:
            options += ["--engine", "torchmdx", "--precision", "float64", "--device", "cpu"]
            assert cli.main(["md", f"{name}.traj", "--model", model, "-o", name, *map(str, options)]) == 0
        logs.append(read_log(Path(f"{name}.log")))
    expected, found = logs
    for name in ("kinetic_eV", "temperature_K"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    kinetic = 0.5 * (ethanol.get_masses()[:, None] * velocities**2).sum()
    assert found["kinetic_eV"][0] == pytest.approx(kinetic, rel=1e-5)
    assert found["temperature_K"][0] == pytest.approx(2 * kinetic / (24 * units.kB), rel=1e-5)


def test_fixed_atoms_stay_in_a_thermostat(model, moving, unplotted):
    ase.io.write("moving.traj", moving)
    options = ["--temperature", 500, "--friction", 50, "--timestep", 1, "--save-every", 10, "--steps", 20, "--seed", 2]
    assert md("moving.traj", model, "run", *options) == 0
    frames = read_dcd(Path("run.dcd"))["frames"]
    np.testing.assert_allclose(frames[:, [0, 4]], [moving.positions[[0, 4]]] * 3, atol=1e-6)
    assert np.abs(frames[-1] - moving.positions).max() > 0.1
    assert md("moving.traj", model, "free", *options, "--ignore-constraints") == 0
    assert np.abs(read_dcd(Path("free.dcd"))["frames"][-1][[0, 4]] - moving.positions[[0, 4]]).max() > 0.01


def test_new_velocities_on_request(capsys, model, moving, unplotted):
    moving.set_constraint()
    Stationary(moving)
    ase.io.write("moving.traj", moving)
    first = []
    for prefix, options in (("a", []), ("b", ["--velocities", "new", "--seed", 1]), ("c", ["--velocities", "file"])):
        assert md("moving.traj", model, prefix, *NVE, "--steps", 1, *options) == 0
        first.append(read_log(Path(f"{prefix}.log"))["kinetic_eV"][0])
    assert first[0] == first[2] == pytest.approx(moving.get_kinetic_energy(), rel=1e-5)
    assert first[1] != pytest.approx(first[0], rel=1e-3)
    assert "NVE, from 300 K, 0.5 fs" in capsys.readouterr().out
    assert md("moving.traj", model, "a", *NVE, "--steps", 2, "--restart") == 0
    assert "NVE, 0.5 fs; 2 steps" in capsys.readouterr().out


def test_what_cannot_be_kept_is_refused(capsys, model, moving, salt_file):
    ase.io.write("moving.traj", moving)
    assert_refused(
        capsys,
        md("moving.traj", model, "run", *NVE, "--steps", 1, "--temperature", 100),
        "--temperature applies to new velocities, but 'moving.traj' has velocities; add --velocities new",
    )
    moving.set_constraint(FixBondLength(0, 1))
    ase.io.write("rigid.traj", moving)
    assert_refused(capsys, md("rigid.traj", model, "run", "--steps", 1), "got FixBondLength", "--ignore-constraints")
    moving.set_constraint(FixAtoms(range(9)))
    ase.io.write("still.traj", moving)
    assert_refused(capsys, md("still.traj", model, "run", "--steps", 1), "at least one atom must move")
    salt = ase.io.read(salt_file)
    salt.set_constraint(FixAtoms([0]))
    ase.io.write("salt.traj", salt)
    status = md("salt.traj", model, "run", "--ensemble", "npt", "--steps", 1)
    assert_refused(capsys, status, "--ensemble npt moves all atoms with the box and cannot keep 1 atoms of 'salt.traj'")
