import ase.db
import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from water_files import GPA, HARTREE, KCAL, opened, same, structures

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.store import Store


@pytest.mark.parametrize("name", ["w.xyz", "w.extxyz", "w.traj", "w.db", "w.json"])
def test_formats_of_ase(tmp_path, water, name):
    if name.endswith(".db"):
        with ase.db.connect(tmp_path / name) as rows:
            for atoms in structures(water):
                rows.write(atoms)
    else:
        ase.io.write(tmp_path / name, structures(water))
    same(opened(tmp_path, tmp_path / name), water, atol=1e-8 if name.endswith("xyz") else 0)  # which has eight decimals


def with_two_energies(water, name, tmp_path) -> np.ndarray:
    """Writes waters whose `energy` differs from the energy that belongs to the forces; returns the latter."""
    found = structures(water)
    for number, atoms in enumerate(found):
        atoms.calc.results["free_energy"] = atoms.calc.results["energy"] - 0.1 * (number + 1)
    ase.io.write(tmp_path / name, found)
    return water[1] - 0.1 * np.arange(1, 6)


@pytest.mark.parametrize("name", ["w.extxyz", "w.traj"])
def test_the_energy_is_the_one_that_belongs_to_the_forces(tmp_path, water, name):
    free = with_two_energies(water, name, tmp_path)
    report = convert([tmp_path / name], tmp_path / "out")
    frames = Store.open(tmp_path / "out").gather(np.arange(5))
    np.testing.assert_allclose(frames.energy, free, rtol=1e-9)
    assert len(report.warnings) == 1
    assert "is read from free_energy, whose derivative the forces are" in report.warnings[0]
    assert "differs from it by up to 0.5 " in report.warnings[0]
    assert "--energy-key energy" in report.warnings[0]


def test_the_other_energy_on_request_and_without_forces(tmp_path, water):
    with_two_energies(water, "w.traj", tmp_path)
    report = convert([tmp_path / "w.traj"], tmp_path / "asked", keys={"energy": "energy"})
    np.testing.assert_allclose(Store.open(tmp_path / "asked").gather(np.arange(5)).energy, water[1], rtol=1e-9)
    assert not report.warnings
    found = ase.io.read(tmp_path / "w.traj", ":")
    for atoms in found[2:]:
        del atoms.calc.results["forces"]
    ase.io.write(tmp_path / "some.traj", found)
    report = convert([tmp_path / "some.traj"], tmp_path / "some")
    energies = Store.open(tmp_path / "some").gather(np.arange(5)).energy
    np.testing.assert_allclose(energies, [*(water[1][:2] - [0.1, 0.2]), *water[1][2:]], rtol=1e-9)
    assert any("3 frames of " in text and "2 frames have both" in text for text in report.warnings)


def test_equal_energies_are_not_mentioned(tmp_path, water):
    found = structures(water)
    for atoms in found:
        atoms.calc.results["free_energy"] = atoms.calc.results["energy"]
    ase.io.write(tmp_path / "w.traj", found)
    assert not convert([tmp_path / "w.traj"], tmp_path / "out").warnings


def test_keys_and_units_of_extended_xyz(tmp_path, water):
    ase.io.write(tmp_path / "w.xyz", structures(water, 1 / KCAL, named=True))
    store = opened(
        tmp_path, tmp_path / "w.xyz", energy_unit="kcal/mol", keys={"energy": "REF_energy", "forces": "REF_forces"}
    )
    frames = store.gather(np.arange(5))
    np.testing.assert_allclose(frames.energy, water[1], rtol=1e-9)
    np.testing.assert_allclose(frames.forces, water[2].reshape(-1, 3), atol=1e-6)
    assert store.units["energy"] == "kcal/mol"
    assert store.units["force"] == "kcal/mol/angstrom"


def test_columns_of_a_database_are_keys(tmp_path, water):
    with ase.db.connect(tmp_path / "w.db") as rows:
        for atoms, energy in zip(structures(water), water[1], strict=True):
            atoms.calc = None
            rows.write(atoms, mine=energy / HARTREE, q=-1)
    store = opened(tmp_path, tmp_path / "w.db", keys={"energy": "mine", "charge": "q"}, energy_unit="hartree")
    frames = store.gather(np.arange(5))
    np.testing.assert_allclose(frames.energy, water[1], rtol=1e-12)
    assert frames.charge.tolist() == [-1.0] * 5
    assert store.labels == {"energy"}


def test_key_that_no_frame_has(tmp_path, water):
    ase.io.write(tmp_path / "w.xyz", structures(water, named=True))
    with pytest.raises(
        ValueError, match="the energy key must be in frames of .*got 'dft'; there is REF_energy, REF_for"
    ):
        opened(tmp_path, tmp_path / "w.xyz", keys={"energy": "dft", "forces": "REF_forces"})
    assert not (tmp_path / "out").exists()


def test_stress_and_virial(tmp_path):
    """Voigt's order is xx, yy, zz, yz, xz, xy; a virial is minus volume times stress."""
    voigt = np.array([1.0, 2, 3, 4, 5, 6]) * 1e-2
    square = np.array([[1.0, 6, 5], [6, 2, 4], [5, 4, 3]]) * 1e-2
    atoms = bulk("NaCl", "rocksalt", a=5.6)
    volume = 5.6**3 / 4
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=voigt)
    ase.io.write(tmp_path / "stress.xyz", atoms)
    other = bulk("NaCl", "rocksalt", a=5.6)
    other.info |= {"energy": -1.0, "virials": -square * volume}
    ase.io.write(tmp_path / "virial.xyz", other)
    third = bulk("NaCl", "rocksalt", a=5.6)
    third.info |= {"energy": -1.0, "pressure_like": voigt / GPA}
    ase.io.write(tmp_path / "gpa.xyz", third)
    cases = [
        ("stress.xyz", {}),
        ("virial.xyz", {"keys": {"virial": "virials"}}),
        ("gpa.xyz", {"keys": {"stress": "pressure_like"}, "stress_unit": "GPa"}),
    ]
    for name, options in cases:
        frames = opened(tmp_path, tmp_path / name, overwrite=True, **options).gather([0])
        np.testing.assert_allclose(frames.stress[0], square, rtol=1e-6)
        assert frames.pbc.all()
        np.testing.assert_allclose(frames.cell[0], atoms.cell.array, atol=1e-8)
    with pytest.raises(ValueError, match="a virial is in the energy unit.*'GPa'"):
        opened(tmp_path, tmp_path / "virial.xyz", keys={"virial": "virials"}, stress_unit="GPa")


def test_molecule_has_no_stress_whatever_its_file_says(tmp_path):
    atoms = molecule("H2O")
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=np.zeros(6))
    ase.io.write(tmp_path / "m.traj", atoms)
    assert opened(tmp_path, tmp_path / "m.traj").labels == {"energy"}
