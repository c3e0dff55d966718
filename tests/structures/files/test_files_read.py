"""Which structures of a file are read, and the messages about indices."""

import ase.build
import ase.io
import pytest
from ase.build import molecule
from ase.constraints import FixAtoms

from torchmdx.structures.files import read_record, read_records, read_structure, read_structures


@pytest.fixture(params=["xyz", "traj", "db"])
def six(request, tmp_path) -> str:
    path = str(tmp_path / f"six.{request.param}")
    ase.io.write(path, [molecule(name) for name in ("H2", "N2", "O2", "CO", "HF", "LiF")])
    return path


def test_indices_are_those_of_ase(six):
    record = read_record(six, "-2")
    assert str(record.atoms.symbols) == "FH"
    assert (record.number, record.count, record.place) == (4, 6, "frame 5 of 6 (index 4)")
    assert [record.number for record in read_records(six, "::-2")] == [5, 3, 1]
    assert [str(atoms.symbols) for atoms in read_structures(six, "1:3")] == ["N2", "O2"]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("6", "--index must be from -6 to 5, for the 6 structures of .*six.*, got 6"),
        ("-7", "--index must be from -6 to 5, for the 6 structures of .*six.*, got -7"),
        ("last", "--index must be a number or a slice such as ::10, got 'last'"),
        ("a:b", "--index must be a number or a slice such as ::10, got 'a:b'"),
        ("", "--index must be a number or a slice such as ::10, got ''"),
        ("9:", "has no structure at index '9:'; it has 6"),
        ("1:3", "--index must select one structure, got '1:3', which selects 2"),
    ],
)
def test_wrong_indices_are_explained(six, index, words):
    with pytest.raises(ValueError, match=words):
        read_structure(six, index)


def test_the_only_structure_has_no_place(tmp_path):
    path = str(tmp_path / "one.xyz")
    ase.io.write(path, molecule("H2"))
    assert read_record(path, "-1").place == ""
    with pytest.raises(ValueError, match="--index must be 0 or -1, for the one of"):
        read_record(path, "1")


def test_charges_are_kept_for_calculators(tmp_path):
    path = str(tmp_path / "ions.xyz")
    ions = [molecule("OH"), molecule("OH")]
    ions[0].set_initial_charges([-1, 0])
    ase.io.write(path, ions)
    charged, neutral = read_records(path, ":")
    assert charged.atoms.info["charge"] == charged.charge == -1
    assert "charge" not in neutral.atoms.info
    assert [record.charge for record in read_records(path, ":", 2)] == [2, 2]
    ions[0].set_initial_charges([-0.5, 0])
    ase.io.write(path, ions)
    with pytest.raises(ValueError, match=f"structure 0 of '{path}': initial charges must add up to an integer"):
        read_records(path, ":")
    assert len(read_structures(path, ":")) == 2  # where no charge is needed


def test_vasp_files_name_their_elements(tmp_path):
    crystal = ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    crystal.set_constraint(FixAtoms([0]))
    crystal.write(tmp_path / "POSCAR", format="vasp", direct=True)
    found = read_record(str(tmp_path / "POSCAR"), "-1").atoms
    assert found.get_chemical_formula() == "Cl4Na4"
    assert found.constraints[0].index.tolist() == [0]
    lines = (tmp_path / "POSCAR").read_text().splitlines()
    (tmp_path / "CONTCAR").write_text("\n".join(["no symbols", *lines[1:5], *lines[6:]]) + "\n")  # of VASP 4
    with pytest.raises(ValueError, match="can't read '.*CONTCAR'.*Could not determine chemical symbols"):
        read_record(str(tmp_path / "CONTCAR"), "-1")
