"""Commands of LAMMPS that insert, exchange or replicate atoms: energies are those of the atoms that there are then."""

import numpy as np
import pytest
import torch
from ase import Atoms
from lammps_checks import BAR, STYLE
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


def test_two_potentials_in_one_run(tmp_path, model):
    """pair_style hybrid/scaled, for thermodynamic integration from one potential to another."""
    torch.manual_seed(1)
    config = torchmdx.TensorNetConfig(num_channels=8, num_radial=4, num_layers=1, cutoff=3.5)
    other = torchmdx.Potential(config).double()
    torchmdx.save(other, tmp_path / "other.safetensors")
    write(tmp_path, water(8))
    styles = f"hybrid/scaled 0.3 {STYLE} 0.7 {STYLE.replace('model', 'other')}"
    pairs = [f"pair_coeff * * torchmdx {k} H O" for k in (1, 2)]
    text = setup(styles, elements="TYPES").replace("pair_coeff * * TYPES", "\n".join(pairs))
    found = launch(tmp_path, text + "run 0\n", 2)
    assert found.status == 0, found.text[-2000:]
    both = [torchmdx.evaluate(each, torchmdx.System.from_ase(water(8)), stress=True) for each in (model, other)]
    energies, forces, stress = (
        0.3 * getattr(both[0], name) + 0.7 * getattr(both[1], name) for name in ("energy", "forces", "stress")
    )
    assert found.thermo["PotEng"][-1] == pytest.approx(float(energies), rel=1e-12)
    assert np.abs(found.dump()[:, 3:6] - forces.numpy()).max() < 1e-11
    assert found.thermo["Pxy"][-1] == pytest.approx(-float(stress[0, 0, 1]) * BAR, rel=1e-5)


STRAINED = """\
compute virial all pressure NULL virial
fix strained all numdiff/virial 1 1e-5
compute born all born/matrix numdiff 1e-4 virial
thermo_style custom step pe pxx pyy pzz pyz pxz pxy f_strained[*] c_born[1]
thermo_modify format float %.17g
run 0
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_atoms_strained_in_a_fixed_box(tmp_path, model, ranks):
    """numdiff/virial and born/matrix move the copies of atoms too: no direction may then be left to the potential."""
    write(tmp_path, water(8))
    found = launch(tmp_path, setup(STYLE) + STRAINED, ranks)
    assert found.status == 0, found.text[-2000:]
    for k, name in enumerate(("Pxx", "Pyy", "Pzz", "Pyz", "Pxz", "Pxy"), 1):
        assert found.thermo[f"f_strained[{k}]"][-1] == pytest.approx(found.thermo[name][-1], rel=1e-5, abs=0.1)

    def stretched(strain: float) -> float:
        atoms = water(8)
        atoms.set_cell(atoms.cell.array @ np.diag([1 + strain, 1, 1]), scale_atoms=True)
        return energy(model, atoms)

    low, middle, high = (stretched(strain) for strain in (-1e-3, 0, 1e-3))
    born = (high - 2 * middle + low) / 1e-6 - (high - low) / 2e-3
    assert found.thermo["c_born[1]"][-1] == pytest.approx(born, rel=1e-3)


REFUSED = {
    "tally": (
        "compute f all heat/flux/tally all\nthermo_style custom step c_f[1]\nrun 0\n",
        "pair_style torchmdx has no energies and forces of pairs of atoms, which compute heat/flux/tally needs",
    ),
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
