"""Running inputs: the example runs as it is, and LAMMPS gets its options."""

import numpy as np
import pytest
from lammps_checks import STYLE
from mpi import launch, needs_lammps, setup, write

from torchmdx.lammps.example import water, write_example
from torchmdx.lammps.options import OPTIONS

pytestmark = needs_lammps


@pytest.mark.nightly
def test_the_example_runs(tmp_path):
    _, text = write_example(tmp_path, molecules=8)
    whole = ["-m", "torchmdx.commands.cli", "lammps"]  # not a fork: as users start it
    found = launch(tmp_path, text.read_text().replace("run             50", "run 2"), 2, program=whole)
    assert found.status == 0, found.text
    assert len(found.thermo["Step"]) == 2
    assert (tmp_path / "water.restart").exists()


LENNARD_JONES = """\
units metal
lattice fcc 5.26
region all block 0 2 0 2 0 2
create_box 1 all
create_atoms 1 box
mass 1 39.9
pair_style lj/cut 8.0
pair_coeff * * 0.01 3.4
velocity all create ${t} 1
fix 1 all nve
run 2
print "t is ${t}"
write_restart lj.restart
"""
VALUES = {
    "-var": "t 7 8", "-log": "log.1", "-screen": "screen.txt", "-echo": "screen", "-cite": "none", "-suffix": "omp",
    "-package": "omp 1", "-kokkos": "off", "-reorder": "nth 1", "-mpicolor": "3",
}  # fmt: skip
ALONE = {"-in", "-partition", "-plog", "-pscreen", "-restart2data", "-restart2dump", "-restart2info"}


@pytest.mark.parametrize("spelling", ["long", "short"])
def test_lammps_knows_the_options(tmp_path, spelling):
    """All of those that one process can have together."""
    options = [option for option in OPTIONS if option.long not in ALONE]
    words = [word for option in options for word in (getattr(option, spelling), *VALUES.get(option.long, "").split())]
    found = launch(tmp_path, LENNARD_JONES, 1, options=words)
    assert found.status == 0, found.text
    text = (tmp_path / "screen.txt").read_text()
    assert "pair lj/cut/omp" in text  # -suffix
    assert "write_restart lj.restart" in text  # -echo
    assert "\nt is 7\n" in text  # -var
    assert "Loop time" not in text  # -skiprun


def test_restart_files_are_converted(tmp_path):
    assert launch(tmp_path, LENNARD_JONES, 1, options=["-v", "t", "7"]).status == 0
    for options, file in [
        (["-r2data", "lj.restart", "lj.data"], "lj.data"),
        (["-restart2dump", "lj.restart", "all", "atom", "lj.dump"], "lj.dump"),
        (["-r2info", "lj.restart"], "lj.restart"),
    ]:
        found = launch(tmp_path, "", 1, options=options)
        assert found.status == 0, found.text
        assert (tmp_path / file).stat().st_size > 500


def test_partitions_are_runs_of_their_own(tmp_path, model):
    """Each evaluates with the pair style, at a temperature of its own, also where other styles are those of OpenMP."""
    write(tmp_path, water(8))
    text = "variable t world 100 200\n" + setup(STYLE) + "velocity all create ${t} 1 loop geom\nrun 0\n"
    found = launch(tmp_path, text, 2, options=["-partition", "2x1", "-pscreen", "part", "-sf", "omp"])
    assert found.status == 0, found.text
    assert "Running on 2 partitions" in found.text
    logs = [(tmp_path / f"part.{k}").read_text().split("Step ")[1].splitlines()[1].split() for k in (0, 1)]
    assert [float(row[1]) for row in logs] == pytest.approx([100, 200])
    assert np.isfinite(float(logs[0][2]))
    assert logs[0][2] == logs[1][2]  # the same positions


def test_an_error_of_one_partition_ends_all(tmp_path):
    text = "partition yes 2 frobnicate\npartition yes 1 shell sleep 100\n"
    found = launch(tmp_path, text, 2, timeout=60, options=["-p", "2x1"])
    assert found.status != 0
    assert "Unknown command: frobnicate" in found.text


def test_lammps_that_does_not_start_ends_all(tmp_path):
    found = launch(tmp_path, "", 2, timeout=60, options=["-k", "on"])
    assert found.status != 0
    assert "Cannot use -kokkos on without KOKKOS installed" in found.text
    assert "Traceback" not in found.text
