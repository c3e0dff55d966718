"""Commands of LAMMPS that insert, exchange or replicate atoms: energies are those of the atoms that there are then."""

import numpy as np
import pytest
from ase import Atoms
from lammps_checks import STYLE
from mpi import launch, needs_lammps, setup, write

import torchmdx
from torchmdx.lammps.example import water

pytestmark = [needs_lammps, pytest.mark.nightly]
ELEMENT_OF = {1: 1, 2: 8}  # by type
# Frames of all steps, with the type of each atom.
INPUT = setup(STYLE).replace("id x y z fx fy fz c_each", "id type xu yu zu vx vy vz")
MOVE = "velocity all create 300 7 loop geom\nfix move all nve\ntimestep 0.0002\n"


def frames(path, pbc=True) -> list[Atoms]:
    """The structures of a dump file, with velocities in Å/ps."""
    found = []
    for text in path.read_text().split("ITEM: TIMESTEP")[1:]:
        box, rows = text.split("ITEM: BOX BOUNDS")[1].split("ITEM: ATOMS")
        edges = np.array([[float(x) for x in line.split()[:2]] for line in box.splitlines()[1:4]])
        values = np.array([[float(x) for x in line.split()] for line in rows.splitlines()[1:]])
        numbers = [ELEMENT_OF[kind] for kind in values[:, 1].astype(int)]
        atoms = Atoms(numbers, values[:, 2:5], cell=edges[:, 1] - edges[:, 0], pbc=pbc)
        atoms.arrays["velocities"] = values[:, 5:8]
        found.append(atoms)
    return found


def energy(model, atoms: Atoms) -> float:
    return float(torchmdx.evaluate(model, torchmdx.System.from_ase(atoms)).energy)


def energies_in(log: str) -> dict[int, float]:
    """By step, from the log of a partition."""
    rows = [line.split() for line in log.splitlines()]
    return {int(row[0]): float(row[2]) for row in rows if len(row) == 13 and row[0].isdigit()}


def require_energies(found, model, path) -> list[Atoms]:
    """Of every frame the energy that LAMMPS wrote is the potential's."""
    assert found.status == 0, found.text[-3000:]
    structures = frames(path)
    assert len(structures) == len(found.thermo["PotEng"])
    for atoms, written in zip(structures, found.thermo["PotEng"], strict=True):
        assert written == pytest.approx(energy(model, atoms), rel=1e-11)
    return structures


def test_deposition(tmp_path, model):
    """Atoms that arrive count from their first step."""
    write(tmp_path, water(8))
    text = INPUT + MOVE + "region r block 0 6 0 6 0 6\nfix in all deposit 3 2 2 11 region r near 0.5\nrun 8\n"
    structures = require_energies(launch(tmp_path, text, 2), model, tmp_path / "dump.0")
    assert [len(atoms) for atoms in structures][::4] == [24, 26, 27]


def test_grand_canonical_exchange(tmp_path, model):
    """fix gcmc takes the energy of the whole system for every insertion and deletion."""
    write(tmp_path, water(8))
    text = INPUT + "group o type 2\nfix mc all gcmc 1 6 4 2 29494 30000.0 -1.0 0.3\nrun 6\n"
    structures = require_energies(launch(tmp_path, text, 2), model, tmp_path / "dump.0")
    assert len({len(atoms) for atoms in structures}) > 1


def test_swaps_of_types(tmp_path, model):
    """fix atom/swap changes elements without new lists of neighbours."""
    write(tmp_path, water(8))
    text = INPUT + "fix mc all atom/swap 1 4 29494 50000.0 ke no types 1 2\nrun 6\n"
    structures = require_energies(launch(tmp_path, text, 2), model, tmp_path / "dump.0")
    assert len({tuple(atoms.numbers) for atoms in structures}) > 2
    assert {int((atoms.numbers == 8).sum()) for atoms in structures} == {8}


def test_respa_evaluates_the_potential_at_its_level(tmp_path, model):
    """With nothing at the inner level the atoms coast: the trajectory is Verlet's at the outer time step."""
    write(tmp_path, water(8))
    plain = launch(tmp_path, INPUT + MOVE + "run 5\n", 2)
    respa = launch(tmp_path, INPUT + MOVE + "run_style respa 2 2 pair 2\nrun 5\n", 2)
    assert respa.status == 0, respa.text[-2000:]
    assert respa.thermo["PotEng"] == pytest.approx(plain.thermo["PotEng"], rel=1e-12)
    assert respa.thermo["TotEng"] == pytest.approx(plain.thermo["TotEng"], rel=1e-12)


def test_tempering(tmp_path, model):
    """Replicas exchange temperatures by the energies of the potential, which are those of their atoms."""
    write(tmp_path, water(8))
    text = "variable t world 100 4000\nvariable s world 0.9 1.1\nvariable p world 1 2\n" + INPUT.replace(
        "pair_style", "change_box all x scale $s y scale $s z scale $s remap\npair_style"
    ).replace("dump.0", "dump.$p")
    text += "velocity all create $t 7 loop geom\nfix nvt all nvt temp $t $t 0.05\ntimestep 0.0002\n"
    text += "temper 8 4 $t nvt 3847 58382\n"
    found = launch(tmp_path, text, 2, options=["-partition", "2x1", "-plog", "part"])
    assert found.status == 0, found.text[-3000:]
    energies = []
    for part in ("1", "2"):
        structures = frames(tmp_path / f"dump.{part}")
        log = (tmp_path / f"part.{int(part) - 1}").read_text()
        written = energies_in(log)
        assert list(written.values()) == pytest.approx([energy(model, atoms) for atoms in structures], rel=1e-11)
        energies.append(written)
    rows = [line.split() for line in found.text.splitlines()]
    swaps = [[int(word) for word in row] for row in rows if len(row) == 3 and all(word.isdigit() for word in row)]
    cold_is_higher = energies[0][4] > energies[1][4]
    gap = abs(energies[0][4] - energies[1][4]) / 8.617e-5 * (1 / 100 - 1 / 4000)
    assert gap > 30  # so that no random number decides
    assert [step for step, *_ in swaps] == [0, 4, 8]
    assert (swaps[1][1:] != swaps[0][1:]) == cold_is_higher


def test_parallel_replicas(tmp_path, model):
    """prd copies states between partitions; a replica's energy remains that of its atoms."""
    write(tmp_path, water(8))
    text = "variable p world 1 2\n" + INPUT.replace("dump.0", "dump.$p") + MOVE
    text += "compute moved all event/displace 0.5\nprd 8 4 1 2 4 moved 54985 temp 300 time steps\n"
    text += "write_dump all custom end.$p id type xu yu zu vx vy vz modify sort id format float %.17g\n"
    found = launch(tmp_path, text, 2, options=["-partition", "2x1", "-plog", "part"])
    assert found.status == 0, found.text[-3000:]
    assert "Loop time" in found.text
    for part in ("1", "2"):
        (end,) = frames(tmp_path / f"end.{part}")
        log = (tmp_path / f"part.{int(part) - 1}").read_text()
        # Rows of step 9 are those of a minimization from step 8, to which prd then returns.
        assert energies_in(log)[8] == pytest.approx(energy(model, end), rel=1e-11)


REFUSED = {
    "group/group": ("group h type 1\ngroup o type 2\ncompute g h group/group o\nrun 0\n", "compute group/group"),
    "respa inner": ("run_style respa 2 2 inner 1 2.0 3.0 outer 2\nrun 1\n", "rRESPA"),
    "pair/local": ("compute g all pair/local eng\ndump 3 all local 1 x c_g\nrun 0\n", "compute pair/local"),
    "pair_write": ("pair_write 1 1 10 r 1.0 2.0 table.txt OH\n", "pair_write"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, model, name):
    text, message = REFUSED[name]
    write(tmp_path, water(8))
    found = launch(tmp_path, setup(STYLE) + text, 1)
    assert found.status != 0
    assert message in found.text
