"""Partitions of processes: each goes its own way through its input, and none waits for another."""

import pytest
from lammps_checks import STYLE
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx.lammps.example import water

pytestmark = [needs_lammps, pytest.mark.nightly]
INPUT = setup(STYLE).split("compute each")[0]
# Records which number on its machine, and so which GPU, each process is given.
PROGRAM = """
import os, sys
from pathlib import Path
from torchmdx.commands.cli import main
from torchmdx.lammps.session import LammpsSession

made = LammpsSession.__init__

def recorded(self, settings, local_rank):
    Path(f"place.{os.environ['PMI_RANK']}").write_text(str(local_rank))
    made(self, settings, local_rank)

LammpsSession.__init__ = recorded
sys.exit(main(["lammps", *sys.argv[1:]]))
"""


def run(folder, text, *partitions):
    (folder / "program.py").write_text(PROGRAM)
    ranks = sum(int(size) for size in partitions)
    found = launch(folder, text, ranks, timeout=200, program=["program.py", "-partition", *partitions])
    assert found.status == 0, found.text[-3000:]
    return {int(path.suffix[1:]): int(path.read_text()) for path in folder.glob("place.*")}


def energy_of(model, atoms):
    return float(torchmdx.evaluate(model, torchmdx.System.from_ase(atoms)).energy)


def test_a_work_farm(tmp_path, model):
    """Three jobs for two partitions: their numbers of potentials differ."""
    write(tmp_path, water(8))
    text = "variable s universe 1.0 1.1 1.2\nlabel again\n"
    text += INPUT.replace("pair_style", "change_box all x scale $s y scale $s z scale $s remap\npair_style")
    text += 'run 0\nprint "$(pe:%.12g) $s" file energy.$s\nclear\nnext s\njump in.test again\n'
    assert run(tmp_path, text, "1", "1") == {0: 0, 1: 1}
    for scale in ("1.0", "1.1", "1.2"):
        atoms = water(8)
        atoms.set_cell(float(scale) * atoms.cell.array, scale_atoms=True)
        found, name = (tmp_path / f"energy.{scale}").read_text().split()
        assert name == scale
        assert float(found) == pytest.approx(energy_of(model, atoms), rel=1e-10)


def test_another_style_in_another_partition(tmp_path, model):
    """One partition never opens a potential; the other has two processes."""
    write(tmp_path, water(8))
    text = INPUT.replace("pair_", "partition yes 2 pair_")
    other = "partition yes 1 pair_style lj/cut 4.0\npartition yes 1 pair_coeff * * 0.01 2.0\nneighbor"
    text = text.replace("neighbor", other) + "variable part world 1 2\nrun 0\n"
    assert run(tmp_path, text + 'print "$(pe:%.12g)" file energy.${part}\n', "1", "2") == {1: 1, 2: 2}
    assert float((tmp_path / "energy.2").read_text()) == pytest.approx(energy_of(model, water(8)), rel=1e-10)
    assert (tmp_path / "energy.1").exists()
