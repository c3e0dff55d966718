import pytest
from ase import units
from ase.build import bulk

from torchmdx.datasets.labelling.sources import _all_frames
from torchmdx.structures.files import read_record, read_records

CRYSTAL = bulk("NaCl", "rocksalt", a=5.6, cubic=True)


@pytest.mark.parametrize("name", ["salt.data", "data.salt", "salt.lmp"])
def test_elements_come_from_masses(tmp_path, name):
    path = tmp_path / name
    CRYSTAL.write(path, format="lammps-data", masses=True)
    atoms = read_record(str(path), "-1").atoms
    assert atoms.get_chemical_symbols() == CRYSTAL.get_chemical_symbols()
    assert atoms.positions == pytest.approx(CRYSTAL.positions)
    assert atoms.cell.array == pytest.approx(CRYSTAL.cell.array)
    assert atoms.pbc.all()


def written(text: str, path) -> str:
    """The data file of the crystal with other lines of masses."""
    CRYSTAL.write(path, format="lammps-data", masses=True)
    lines = path.read_text().splitlines()
    start = lines.index("Masses")
    path.write_text("\n".join(lines[: start + 2] + text.splitlines() + lines[start + 4 :]) + "\n")
    return str(path)


def test_elements_come_from_masses_without_comments_and_from_labels(tmp_path):
    path = written("1 35.453\n2 22.99", tmp_path / "a.data")
    assert read_record(path, "-1").atoms.get_chemical_formula() == "Cl4Na4"
    path = written("1 58.9332 # Co\n2 58.6934 # Ni", tmp_path / "b.data")  # their masses differ by 0.24
    assert read_record(path, "-1").atoms.get_chemical_formula() == "Co4Ni4"
    with pytest.raises(ValueError, match="every type needs the mass of an element, got 50 amu for type 1"):
        read_record(written("1 50.0\n2 22.99", tmp_path / "c.data"), "-1")


@pytest.mark.parametrize("form", [None, "lammps-data"])
def test_types_without_masses_are_refused(tmp_path, form):
    path = tmp_path / "salt.data"
    CRYSTAL.write(path, format="lammps-data")
    with pytest.raises(ValueError, match="salt.data.*needs the section Masses, which tells elements of types"):
        read_records(str(path), ":", format=form)


def test_other_units_are_refused(tmp_path):
    path = tmp_path / "a.data"
    CRYSTAL.write(path, format="lammps-data", masses=True)
    path.write_text(path.read_text().replace("(written by ASE)", "LAMMPS data file, units = lj"))
    with pytest.raises(ValueError, match="the units of a LAMMPS data file must be metal or real, got lj"):
        read_record(str(path), "-1")


def test_velocities_are_in_the_units_of_the_file(tmp_path):
    path = tmp_path / "a.data"
    CRYSTAL.write(path, format="lammps-data", masses=True)
    rows = "\n".join(f"{k} 0.001 0 0" for k in range(1, 9))
    text = f"{path.read_text()}\nVelocities\n\n{rows}\n"
    path.write_text(text.replace("(written by ASE)", "LAMMPS data file, units = real"))
    velocities = read_record(str(path), "-1").atoms.get_velocities()
    assert velocities[:, 0] * units.fs == pytest.approx(0.001)  # Å/fs
    path.write_text(text)
    with pytest.warns(UserWarning, match="does not state its units are read as metal, Å/ps"):
        velocities = read_record(str(path), "-1").atoms.get_velocities()
    assert velocities[:, 0] * 1000 * units.fs == pytest.approx(0.001)


DUMP = """ITEM: TIMESTEP
0
ITEM: NUMBER OF ATOMS
1
ITEM: BOX BOUNDS pp pp pp
0.0 5.0
0.0 5.0
0.0 5.0
ITEM: ATOMS id type {}x y z
1 2 {}1.0 2.0 3.0
"""


@pytest.mark.parametrize("name", ["a.lammpstrj", "a.dump"])
def test_a_dump_needs_elements(tmp_path, name):
    path = tmp_path / name
    path.write_text(DUMP.format("element ", "Si "))
    assert read_record(str(path), "-1", format="lammps-dump-text").atoms.get_chemical_formula() == "Si"
    path.write_text(DUMP.format("", ""))
    for form in (None, "lammps-dump-text"):
        with pytest.raises(ValueError, match="a LAMMPS dump needs the column element, got id type x y z"):
            read_record(str(path), "-1", format=form)
    with pytest.raises(ValueError, match="a LAMMPS dump needs the column element"):
        next(_all_frames(path))


def test_another_file_of_this_name_is_left_to_ase(tmp_path):
    path = tmp_path / "a.data"
    path.write_text("nothing of LAMMPS\n")
    with pytest.raises(ValueError, match="ASE can't read|has no structures"):
        read_record(str(path), "-1")
