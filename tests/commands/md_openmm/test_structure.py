"""Reading and writing of structures for OpenMM."""

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.constraints import FixAtoms
from md_runs import read_for_openmm as read
from structures import DATA

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from openmm import app, unit

from torchmdx.commands.md_openmm.structure import write_structure

PDB = str(DATA / "alanine_dipeptide.pdb")
TWO_WATERS = """\
CRYST1   20.000   21.000   22.000  90.00  90.00  90.00 P 1           1
MODEL        1
HETATM    1  O   HOH A   7       0.000   0.000   0.000  1.00  0.00           O
HETATM    2  H1  HOH A   7       0.960   0.000   0.000  1.00  0.00           H
HETATM    3  H2  HOH A   7      -0.240   0.930   0.000  1.00  0.00           H
HETATM    4  O   HOH B   9       5.000   0.000   0.000  1.00  0.00           O
HETATM    5  H1  HOH B   9       5.960   0.000   0.000  1.00  0.00           H
HETATM    6  H2  HOH B   9       4.760   0.930   0.000  1.00  0.00           H
ENDMDL
END
"""


@pytest.fixture
def waters(tmp_path) -> str:
    """Two models of two waters in a box, the second moved by 1 Å along z."""
    path = tmp_path / "waters.pdb"
    first, end = TWO_WATERS.split("END\n")[0].replace("ENDMDL\n", ""), "ENDMDL\n"
    second = first.split("MODEL        1\n")[1].replace("   0.000  1.00", "   1.000  1.00")
    path.write_text(f"{first}{end}MODEL        2\n{second}{end}END\n")
    return str(path)


def names(topology) -> list[tuple[str, str, str, str]]:
    return [(atom.name, atom.residue.name, atom.residue.id, atom.residue.chain.id) for atom in topology.atoms()]


def test_pdb_keeps_residues_chains_and_box(waters):
    structure = read(waters, index="0")
    assert names(structure.topology)[:4] == [
        ("O", "HOH", "7", "A"),
        ("H1", "HOH", "7", "A"),
        ("H2", "HOH", "7", "A"),
        ("O", "HOH", "9", "B"),
    ]
    assert list(structure.atomic_numbers) == [8, 1, 1, 8, 1, 1]
    np.testing.assert_allclose(structure.cell, np.diag([20.0, 21.0, 22.0]), atol=1e-6)
    np.testing.assert_allclose(structure.positions[4], [5.96, 0, 0], atol=1e-6)
    np.testing.assert_allclose(structure.masses[:2], [15.99943, 1.007947], atol=1e-4)
    assert (structure.record.charge, structure.suffix) == (0.0, ".pdb")
    np.testing.assert_allclose(read(waters).positions[:, 2], 1, atol=1e-6)
    assert read(waters, vacuum=True).cell is None
    assert read(waters, charge=-1).record.charge == -1


@pytest.mark.parametrize(("ending", "reader"), [(".pdb", app.PDBFile), (".cif", app.PDBxFile)])
def test_written_files_keep_residues_positions_and_box(waters, tmp_path, ending, reader):
    structure = read(waters)
    if ending == ".cif":
        source = tmp_path / "source.cif"
        write_structure_as_cif(structure, source)
        structure = read(str(source))
        assert structure.suffix == ".cif"
    path, cell = tmp_path / f"final{ending}", np.diag([19.0, 20.0, 21.0])
    write_structure(structure, path, structure.positions + 0.25, cell)
    back = reader(str(path))
    assert names(back.topology) == names(structure.topology)
    found = back.topology.getPeriodicBoxVectors().value_in_unit(unit.angstrom)
    np.testing.assert_allclose(np.array(found), cell, atol=1e-3)
    positions = back.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
    np.testing.assert_allclose(positions, structure.positions + 0.25, atol=1e-3)


def write_structure_as_cif(structure, path):
    with path.open("w") as file:
        app.PDBxFile.writeFile(structure.topology, structure.positions / 10 * unit.nanometer, file, keepIds=True)


def test_a_peptide_without_a_box_is_not_periodic():
    structure = read(PDB)
    assert structure.cell is None
    assert structure.num_atoms == 22
    assert {atom.residue.name for atom in structure.topology.atoms()} == {"ACE", "ALA", "NME"}


def test_other_formats_are_read_with_ase(tmp_path, cation):
    path = tmp_path / "ammonium.xyz"
    cation.set_masses([14.0, 2.0, 1.0, 1.0, 1.0])
    ase.io.write(path, cation, format="extxyz", columns=["symbols", "positions", "masses"])
    structure = read(str(path))
    assert structure.topology.getNumResidues() == 1
    assert [atom.element.symbol for atom in structure.topology.atoms()] == ["N", "H", "H", "H", "H"]
    assert (structure.record.charge, structure.suffix, structure.cell) == (1.0, ".xyz", None)
    assert list(structure.masses) == [14.0, 2.0, 1.0, 1.0, 1.0]
    assert read(str(path), charge=0).record.charge == 0
    write_structure(structure, tmp_path / "back.xyz", structure.positions, None)
    back = ase.io.read(tmp_path / "back.xyz")
    np.testing.assert_allclose(back.positions, cation.positions, atol=1e-7)
    assert back.info["charge"] == 1
    assert not back.pbc.any()


def test_cif_files_of_crystals_are_read_with_ase(tmp_path, crystal):
    path = tmp_path / "crystal.cif"
    ase.io.write(path, crystal)
    structure = read(str(path))
    assert structure.suffix == ".xyz"
    assert abs(np.linalg.det(structure.cell)) == pytest.approx(crystal.cell.volume, rel=1e-4)


def refuse(match, *arguments, **options):
    with pytest.raises(ValueError, match=match):
        read(*arguments, **options)


def test_invalid_structures_are_rejected(tmp_path, waters, slab):
    with pytest.raises(FileNotFoundError, match="no structure file at 'nowhere.pdb'"):
        read("nowhere.pdb")
    refuse("--index must be from -2 to 1, for the 2 structures of .*, got 2", waters, index="2")
    refuse("--index must select one structure, got ':', which selects 2", waters, index=":")
    refuse("charge must be", waters, charge=float("nan"))
    ase.io.write(tmp_path / "slab.xyz", slab, format="extxyz")
    words = r"periodic in all three directions or in none, got pbc \[True, True, False\]; --vacuum ignores"
    refuse(words, str(tmp_path / "slab.xyz"))
    assert read(str(tmp_path / "slab.xyz"), vacuum=True).cell is None
    ase.io.write(tmp_path / "ghost.xyz", Atoms("XH", [[0, 0, 0], [1, 0, 0]]), format="extxyz")
    refuse("every atom needs an element known to OpenMM, got atomic number 0 for atom 0", str(tmp_path / "ghost.xyz"))
    flat = Atoms("H", cell=[[1, 0, 0], [2, 0, 0], [0, 0, 1]], pbc=True)
    ase.io.write(tmp_path / "flat.traj", flat)
    refuse("a periodic structure needs a cell with a volume", str(tmp_path / "flat.traj"))


def test_invalid_pdb_files_are_rejected(tmp_path):
    path = tmp_path / "bad.pdb"

    def refuse_text(text, match):
        path.write_text(text)
        refuse(match, str(path))

    refuse_text("END\n", "has no structures")
    no_element = TWO_WATERS.replace("O   HOH A", "QX  HOH A").replace("0.00           O", "0.00            ", 1)
    refuse_text(no_element, r"every atom needs an element, got none for atom 0 \('QX' of residue HOH 7\).*77-78")
    refuse_text(
        TWO_WATERS.replace("   0.960   0.000", "   0.9x0   0.000"),
        "can't read '.*bad.pdb': the position of atom 1 must be in columns",
    )
    dense = TWO_WATERS.replace("20.000   21.000   22.000", " 1.000    1.000    2.000")
    refuse_text(dense, "must have at least 1 Å³ per atom for its 6 atoms, got 2 Å³ in total; --vacuum ignores the box")


def test_repeated_atom_names_lose_no_atom(tmp_path, ethanol):
    """As in PDB files of ASE, where all atoms of an element have one name."""
    path = tmp_path / "e.pdb"
    ase.io.write(path, ethanol)
    structure = read(str(path))
    assert structure.atomic_numbers.tolist() == ethanol.numbers.tolist()
    np.testing.assert_allclose(structure.positions, ethanol.positions, atol=6e-4)
    assert [atom.element.atomic_number for atom in structure.topology.atoms()] == ethanol.numbers.tolist()
    assert structure.notes == ("names of 8 atoms repeat within a residue; the final structure numbers them",)
    write_structure(structure, tmp_path / "final.pdb", structure.positions, None)
    assert app.PDBFile(str(tmp_path / "final.pdb")).topology.getNumAtoms() == 9


def test_a_file_of_which_openmm_drops_atoms_is_refused(tmp_path, waters):
    """mmCIF without a column of alternate locations, for which OpenMM takes the last column."""
    path = tmp_path / "repeated.cif"
    names = ("type_symbol", "label_atom_id", "label_comp_id", "label_asym_id", "label_seq_id", "Cartn_x", "Cartn_y")
    head = "\n".join(f"_atom_site.{name}" for name in (*names, "Cartn_z"))
    path.write_text(f"data_x\nloop_\n{head}\nO O LIG A 1 0 0 0.5\nH H LIG A 1 1 0 0.5\nH H LIG A 1 0 1 0.5\n#\n")
    refuse(r"OpenMM must read the 3 atoms of '.*repeated.cif', got \d; convert the file", str(path))


def test_the_charge_and_its_origin(tmp_path, cation):
    path = tmp_path / "ion.pdb"
    path.write_text("HETATM    1 ZN    ZN A   1       0.000   0.000   0.000  1.00  0.00          ZN2+\nEND\n")
    structure = read(str(path))
    assert (structure.record.charge, structure.record.charge_text) == (2.0, "charge +2 (sum of formal charges)")
    assert read(str(path), charge=0).record.charge_text == "charge 0 (--charge)"


def test_velocities_and_fixed_atoms_of_a_crystal_follow_its_orientation(tmp_path, chiral):
    cell = np.random.default_rng(0).normal(0, 3, (3, 3)) + np.diag([5.0, -6.0, 7.0])
    velocities = np.random.default_rng(1).normal(0, 0.01, (len(chiral), 3))
    chiral.set_cell(cell)
    chiral.pbc = True
    chiral.set_velocities(velocities / units.fs)
    chiral.set_constraint(FixAtoms([2]))
    ase.io.write(tmp_path / "c.traj", chiral)
    structure = read(str(tmp_path / "c.traj"))
    assert np.flatnonzero(structure.fixed).tolist() == [2]
    assert not read(str(tmp_path / "c.traj"), ignore_constraints=True).fixed.any()

    # Scalar products with distances do not depend on the orientation.
    def products(vectors, positions):
        return np.einsum("ad,bd->ab", vectors, positions - positions[0])

    np.testing.assert_allclose(
        products(structure.velocities, structure.positions), products(velocities, chiral.positions), atol=1e-12
    )


def test_heavy_hydrogens_take_mass_from_bonded_atoms():
    dipeptide = read(PDB)
    heavy = read(PDB, hydrogen_mass=3.0)
    assert heavy.masses.sum() == pytest.approx(dipeptide.masses.sum())
    hydrogens = dipeptide.atomic_numbers == 1
    assert heavy.masses[hydrogens] == pytest.approx(3.0)
    assert heavy.masses[1] == pytest.approx(12.01 - 3 * (3.0 - 1.008), abs=0.01)  # CH3
    assert heavy.masses[6] == pytest.approx(14.007 - (3.0 - 1.008), abs=0.01)  # NH
    assert heavy.masses[5] == pytest.approx(15.999, abs=0.01)  # O
    with pytest.raises(
        ValueError, match="every heavy atom must keep at least the hydrogen mass of 5.0 amu, got 0.0.* for atom 1"
    ):
        read(PDB, hydrogen_mass=5.0)


def test_heavy_hydrogens_across_the_faces_of_a_box(waters):
    water = read(waters)
    heavy = read(waters, hydrogen_mass=2.0)
    np.testing.assert_allclose(heavy.masses, [14.015, 2, 2, 14.015, 2, 2], atol=1e-3)
    np.testing.assert_array_equal(heavy.positions, water.positions)
