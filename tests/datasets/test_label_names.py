"""Names that look like labels: errors and warnings say which keys a file has, and which option reads them."""

import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.label_names import quantity_of
from torchmdx.datasets.store import Store

NUMBERS, WATER = np.array([8, 1, 1]), np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])


@pytest.mark.parametrize(
    ("name", "quantity"),
    [
        ("REF_energy", "energy"),
        ("dft_energy", "energy"),
        ("total_energies", "energy"),
        ("MACE_forces", "forces"),
        ("dft_force", "forces"),
        ("DFT_stress", "stress"),
        ("virials", "virial"),
        ("free_energy", None),
        ("config_energy_weight", None),
        ("energy_per_atom", None),
        ("old_forces", None),
        ("forces_spread", None),
        ("energies", None),
        ("config_type", None),
        ("12", None),
    ],
)
def test_names_of_labels(name, quantity):
    assert quantity_of(name) == quantity


def frames(count=3, **info):
    """Waters with this information and forces under the name `REF_forces`, if asked for."""
    found = []
    for _ in range(count):
        atoms = Atoms(NUMBERS, WATER)
        for name, value in info.items():
            if np.ndim(value) == 2:
                atoms.set_array(name, value)
            else:
                atoms.info[name] = value
        found.append(atoms)
    return found


def converted(tmp_path, structures, name="t.xyz", **options):
    ase.io.write(tmp_path / name, structures)
    return convert([tmp_path / name], tmp_path / "out", log=[].append, **options)


def test_a_file_without_known_labels_says_what_it_has_and_which_options_read_it(tmp_path):
    structures = frames(REF_energy=-5.0, REF_forces=np.ones((3, 3)), config_type="liquid")
    with pytest.raises(ValueError, match="must have labels") as error:
        converted(tmp_path, structures)
    said = str(error.value)
    assert "labels named energy, forces, stress, got REF_energy, REF_forces; read labels with" in said
    assert "--energy-key REF_energy --forces-key REF_forces (data.energy_key, data.forces_key in the conf" in said
    assert not (tmp_path / "out").exists()
    report = converted(tmp_path, structures, keys={"energy": "REF_energy", "forces": "REF_forces"})
    assert report.warnings == []
    assert Store.open(tmp_path / "out").labels == {"energy", "forces"}


def test_other_names_are_listed_too(tmp_path):
    with pytest.raises(ValueError, match="got E_tot; read labels with --energy-key NAME --forces-key NAME"):
        converted(tmp_path, frames(E_tot=-5.0))


def test_labels_that_are_not_read_are_warned_of(tmp_path):
    structures = frames(REF_energy=-5.0, REF_forces=np.ones((3, 3)))
    report = converted(tmp_path, structures, keys={"energy": "REF_energy"})
    assert report.warnings == [
        f"REF_forces of {str(tmp_path / 't.xyz')!r} is not read: --forces-key REF_forces (data.forces_key in the "
        "configuration of a training) reads it"
    ]
    for atoms in structures:
        atoms.calc = SinglePointCalculator(atoms, energy=-7.0, forces=np.zeros((3, 3)))
    said = converted(tmp_path, structures, overwrite=True).warnings
    assert [text.split(": ")[0] for text in said] == [
        f"{name}_{label} of {str(tmp_path / 't.xyz')!r} is not read; {label} is read from {label}"
        for name, label in (("REF", "energy"), ("REF", "forces"))
    ]
    assert converted(tmp_path, structures, overwrite=True, keys={"energy": "energy", "forces": "forces"}).warnings == []


def test_arrays_of_a_quantity_that_is_not_read_are_warned_of(tmp_path):
    arrays = {"E": np.zeros(2), "dft_forces": np.zeros((2, 3, 3)), "old_energies": np.zeros(2)}
    np.savez(tmp_path / "a.npz", z=NUMBERS, R=np.tile(WATER, (2, 1, 1)), **arrays)
    (said,) = convert([tmp_path / "a.npz"], tmp_path / "out", log=[].append).warnings
    assert said.startswith(f"dft_forces of {str(tmp_path / 'a.npz')!r} is not read: --forces-key dft_forces ")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in "ab":
            group = file.create_group(name)
            group["types"], group["pos"], group["energy"] = NUMBERS, np.tile(WATER, (2, 1, 1)), np.zeros(2)
            group["my_forces"] = np.zeros((2, 3, 3))
    (said,) = convert([tmp_path / "a.h5"], tmp_path / "h5", log=[].append).warnings
    assert said.startswith(f"my_forces of {str(tmp_path / 'a.h5')!r} is not read")
    np.savez(tmp_path / "b.npz", z=NUMBERS, R=np.tile(WATER, (2, 1, 1)), dft_energy=np.zeros(2))
    with pytest.raises(ValueError, match=r"other names: --energy-key dft_energy \(data.energy_key in"):
        convert([tmp_path / "b.npz"], tmp_path / "npz", log=[].append)


GPA = 1 / 160.2176634


@pytest.mark.parametrize(
    ("stress_of", "words"),
    [
        (lambda pressure, volume: pressure, None),
        (lambda pressure, volume: pressure * volume, "virials, which are energies (--virial-key instead"),
        (lambda pressure, volume: pressure / GPA, "in GPa (--stress-unit)"),
        (lambda pressure, volume: pressure / GPA * 10, "in kbar (--stress-unit)"),
    ],
    ids=["right", "virial", "GPa", "kbar"],
)
def test_stress_that_cannot_be_in_its_unit_is_warned_of(tmp_path, stress_of, words):
    """A rocksalt crystal under -8 to 8 GPa, 64 atoms of 22 Å³."""
    structures = []
    for k in range(9):
        atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True).repeat(2)
        pressure = (k - 4) * 2 * GPA
        stress = stress_of(pressure, atoms.get_volume())
        atoms.calc = SinglePointCalculator(atoms, energy=-3.0 * 64, stress=np.array([stress] * 3 + [0.0] * 3))
        structures.append(atoms)
    warnings = converted(tmp_path, structures).warnings
    assert len(warnings) == (words is not None)
    if words:
        assert warnings[0].startswith("stresses are ")
        assert words in warnings[0]
