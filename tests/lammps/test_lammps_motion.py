"""Atoms that move: migration between processes, conservation of energy, relaxation, pressure, and restarts."""

import numpy as np
import pytest
import torch
from ase.optimize import BFGS
from lammps_checks import BAR, STYLE
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx import Potential, TensorNetConfig
from torchmdx.lammps.example import water
from torchmdx.models.priors.zbl import ZBLConfig

pytestmark = [needs_lammps, pytest.mark.nightly]
MOVE = "velocity all create {} 7 loop geom\nfix 1 all nve\ntimestep 0.0005\n"
WARM, HOT = MOVE.format(600), MOVE.format(5000)  # K


@pytest.fixture
def soft(tmp_path) -> Potential:
    """Weak attraction and ZBL repulsion: atoms neither fuse nor fly apart, and mix quickly."""
    torch.manual_seed(1)
    config = TensorNetConfig(num_channels=8, num_radial=8, num_layers=1, cutoff=3.0)
    made = Potential(config, priors=[ZBLConfig(cutoff=3.0, strength=0.02)]).double()
    made.scale.fill_(0.02)
    torchmdx.save(made, tmp_path / "model.safetensors")
    return made


def quiet(text: str) -> str:
    """Without a line for each step; with positions that are not wrapped into the box."""
    text = text.replace("thermo 1\n", "thermo 25\n").replace("custom 1 dump", "custom 25 dump")
    return text.replace("x y z fx", "xu yu zu fx")


def test_atoms_migrate(tmp_path, soft):
    """The trajectory is the one of a single process, until rounding has grown; the total energy stays."""
    write(tmp_path, water(27))
    runs = [launch(tmp_path, quiet(setup(STYLE, number=ranks) + HOT) + "run 125\n", ranks) for ranks in (1, 4)]
    assert [run.status for run in runs] == [0, 0], runs[1].text
    one, four = runs
    early = one.thermo["Step"] <= 50
    assert early.sum() == 3
    assert four.thermo["PotEng"][early] == pytest.approx(one.thermo["PotEng"][early], abs=1e-6)
    start, end = (frame for frame in (positions(four, 4, 0), positions(four, 4, -1)))
    assert np.linalg.norm(end - start, axis=1).mean() > 4.7  # the box is 9.3 Å wide, and a process has half of it
    kinetic = four.thermo["KinEng"].mean()
    for run in runs:
        assert np.ptp(run.thermo["TotEng"]) < 5e-4 * kinetic


def positions(outcome, number: int, frame: int) -> np.ndarray:
    """Of one frame of a file."""
    frames = (outcome.folder / f"dump.{number}").read_text().split("ITEM: ATOMS")[1:]
    rows = [line.split() for line in frames[frame].split("ITEM:")[0].splitlines()[1:]]
    return np.array([[float(x) for x in row[1:4]] for row in rows])


def test_minimize(tmp_path, soft):
    atoms = water(8)
    write(tmp_path, atoms)
    found = launch(tmp_path, setup(STYLE) + "min_style cg\nminimize 0 1e-4 500 2000\n", 2)
    assert found.status == 0, found.text
    assert np.abs(found.dump()[:, 3:6]).max() < 2e-3  # the line search ends before at the precision of the energy
    atoms.calc = torchmdx.Calculator(soft, dtype="float64", device="cpu")
    BFGS(atoms, logfile=None).run(fmax=1e-3, steps=500)
    assert found.thermo["PotEng"][-1] < found.thermo["PotEng"][0]
    assert found.thermo["PotEng"][-1] == pytest.approx(atoms.get_potential_energy(), abs=0.2)


def test_box_relax_ends_at_the_asked_pressure(tmp_path, soft):
    """`fix box/relax` needs the pressure as the derivative of the energy; ASE's stress at its end agrees."""
    atoms = water(8)
    write(tmp_path, atoms)
    text = setup(STYLE) + "fix 1 all box/relax iso 1000.0 vmax 0.005\nmin_style cg\nminimize 0 1e-5 300 3000\n"
    found = launch(tmp_path, text, 2)
    assert found.status == 0, found.text
    assert found.thermo["Press"][-1] == pytest.approx(1000.0, abs=50.0)
    side = found.thermo["Volume"][-1] ** (1 / 3)
    there = atoms.copy()
    there.set_cell([side] * 3)
    there.positions = found.dump()[:, :3]
    stress = torchmdx.evaluate(soft, torchmdx.System.from_ase(there), stress=True).stress[0].numpy()
    assert -np.trace(stress) / 3 * BAR == pytest.approx(found.thermo["Press"][-1], rel=1e-4, abs=1.0)


def test_constant_pressure(tmp_path, soft):
    """`fix npt` moves the box; the virial of every step is that of the moved box."""
    atoms = water(27)
    write(tmp_path, atoms)
    text = setup(STYLE) + WARM.replace("nve", "npt temp 300 300 0.05 iso 2e4 2e4 0.05")
    found = launch(tmp_path, quiet(text) + "run 50\n", 2)
    assert found.status == 0, found.text
    volumes = found.thermo["Volume"]
    assert abs(volumes[-1] / volumes[0] - 1) > 1e-3
    there = atoms.copy()
    there.set_cell([volumes[-1] ** (1 / 3)] * 3)
    there.positions = positions(found, 0, -1)
    stress = torchmdx.evaluate(soft, torchmdx.System.from_ase(there), stress=True).stress[0].numpy()
    kinetic = 2 * found.thermo["KinEng"][-1] / 3 / volumes[-1]
    assert (kinetic - np.trace(stress) / 3) * BAR == pytest.approx(found.thermo["Press"][-1], rel=2e-5)


def test_a_restart_goes_on(tmp_path, soft):
    write(tmp_path, water(8))
    whole = launch(tmp_path, setup(STYLE) + WARM + "run 10\nwrite_restart half\nrun 10\n", 2)
    text = setup(STYLE, number=1).replace("read_data data.all", "read_restart half")
    text += WARM.split("\n", 1)[1] + "run 10\n"
    again = launch(tmp_path, text, 1)
    assert (whole.status, again.status) == (0, 0), again.text
    assert again.thermo["TotEng"] == pytest.approx(whole.thermo["TotEng"], abs=1e-9)
