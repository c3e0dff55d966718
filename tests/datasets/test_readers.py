"""Readers of several formats: formats that are found, charges, dipole moments, damaged numbers."""

import ase.db
import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from water_files import BOHR, HARTREE, NUMBERS, WATER, opened, structures

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.readers import format_of, refusal
from torchmdx.datasets.store import Store, StoreWriter


def test_stress_in_atomic_units_scales_with_volume(tmp_path):
    atoms = bulk("Cu", a=3.6)
    atoms.set_cell(atoms.cell / BOHR, scale_atoms=True)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=np.array([1.0, 0, 0, 0, 0, 0]) * 1e-4)
    ase.io.write(tmp_path / "c.traj", atoms)
    frames = opened(tmp_path, tmp_path / "c.traj", energy_unit="hartree", length_unit="bohr").gather([0])
    np.testing.assert_allclose(frames.stress[0, 0, 0], 1e-4 * HARTREE / BOHR**3, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.det(frames.cell[0]), 3.6**3 / 4, rtol=1e-9)


def test_every_record_of_sdf_with_its_energy_and_formal_charge(tmp_path):
    atom = "    0.0000    0.0000    0.0000 O   0  0\n    0.0000    0.0000    0.9700 H   0  0"
    record = f"\n     made        3D\n\n  2  0  0  0  0  0  0  0  0  0999 V2000\n{atom}\nM  CHG  1   1  -1\nM  END\n"
    items = "> <energy>\n{}\n\n$$$$\n"
    (tmp_path / "ions.sdf").write_text(
        record + items.format(-1.5) + record.replace("-1\nM", " 0\nM") + items.format(-2)
    )
    frames = opened(tmp_path, tmp_path / "ions.sdf").gather([0, 1])
    assert frames.energy.tolist() == [-1.5, -2.0]
    assert frames.charge.tolist() == [-1.0, 0.0]


DEBYE = 0.2081943  # e Å


def test_charges_and_dipole_moments(tmp_path):
    charges, dipole = np.array([-0.8, 0.4, 0.4]), np.array([0.0, 0.5, -0.25])
    atoms = Atoms(NUMBERS, WATER)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, charges=charges, dipole=dipole)
    ase.io.write(tmp_path / "a.traj", atoms)
    other = Atoms(NUMBERS, WATER, cell=[9, 9, 9], pbc=True)
    other.info |= {"energy": -1.0, "mu": dipole / DEBYE}
    other.set_array("hirshfeld", charges)
    molecule = other.copy()
    molecule.pbc = False
    ase.io.write(tmp_path / "b.xyz", [other, molecule])
    frames = opened(tmp_path, tmp_path / "a.traj").gather([0])
    np.testing.assert_allclose(frames.charges, charges, rtol=1e-6)
    np.testing.assert_allclose(frames.dipole, [dipole], rtol=1e-6)
    store = opened(
        tmp_path, tmp_path / "b.xyz", keys={"charges": "hirshfeld", "dipole": "mu"}, dipole_unit="debye", overwrite=True
    )
    assert store.labels == {"energy", "charges", "dipole"}
    assert store.units["dipole"] == "debye"
    frames = store.gather([0, 1])
    assert frames.has("dipole").tolist() == [False, True]  # that of a crystal is not defined
    np.testing.assert_allclose(frames.dipole[1], dipole, rtol=1e-5)
    np.testing.assert_allclose(frames.charges[3:], charges, rtol=1e-6)
    np.savez(
        tmp_path / "c.npz", z=NUMBERS, R=WATER[None], q=charges[None, :, None], D=dipole[None] / BOHR, charges=NUMBERS
    )
    keys = {"charges": "q", "dipole": "D"}
    frames = opened(tmp_path, tmp_path / "c.npz", keys=keys, dipole_unit="e*bohr", overwrite=True).gather([0])
    np.testing.assert_allclose(frames.charges, charges, rtol=1e-6)
    np.testing.assert_allclose(frames.dipole, [dipole], rtol=1e-6)
    for name, value, said in (
        ("q", charges[:2], r"charges must have shape \[1, 3\]"),
        ("D", dipole[:2], "dipole moments"),
    ):
        arrays = {"q": charges[None], "D": dipole[None]} | {name: value[None]}
        np.savez(tmp_path / "d.npz", z=NUMBERS, R=WATER[None], **arrays)
        with pytest.raises(ValueError, match=said):
            opened(tmp_path, tmp_path / "d.npz", keys=keys, overwrite=True)


def test_other_things_called_charges_are_not_read(tmp_path):
    atoms = Atoms(NUMBERS, WATER)
    atoms.info |= {"energy": -1.0, "charges": "unknown", "dipole": 1.85}
    ase.io.write(tmp_path / "a.xyz", atoms)
    assert opened(tmp_path, tmp_path / "a.xyz").labels == {"energy"}


def test_charge_of_a_frame(tmp_path):
    ion = molecule("OH")
    ion.info["charge"] = -1
    ion.calc = SinglePointCalculator(ion, energy=-2.0)
    ase.io.write(tmp_path / "ion.xyz", ion)
    assert opened(tmp_path, tmp_path / "ion.xyz").gather([0]).charge.tolist() == [-1.0]


def test_format_is_forced_or_found(tmp_path, water):
    positions, energy, _ = water
    with h5py.File(tmp_path / "odd.data", "w") as file:
        group = file.create_group("deep").create_group("er")
        group["zz"], group["xx"], group["ee"] = NUMBERS, positions, energy
    with pytest.raises(ValueError, match="must have groups with 'pos' .* or 'conformations'"):
        opened(tmp_path, tmp_path / "odd.data")
    keys = {"positions": "xx", "atomic_numbers": "zz", "energy": "ee"}
    store = opened(tmp_path, tmp_path / "odd.data", format="torchmdnet-hdf5", keys=keys)
    np.testing.assert_allclose(store.gather([4]).energy, energy[4:])
    with pytest.raises(FileNotFoundError, match="no data at"):
        format_of(tmp_path / "nowhere.xyz")
    assert format_of(tmp_path / "out") == "store"
    with pytest.raises(ValueError, match="format must be one of ase, npz"):
        opened(tmp_path, tmp_path / "odd.data", format="hdf")
    with pytest.raises(ValueError, match="energy unit must be one of eV"):
        opened(tmp_path, tmp_path / "odd.data", format="npz", energy_unit="ev")
    ase.io.write(tmp_path / "w.xyz", structures(water))
    with pytest.raises(ValueError, match="read by ASE, which needs no positions key, got 'R'"):
        opened(tmp_path, tmp_path / "w.xyz", keys={"positions": "R"}, overwrite=True)
    np.savez(tmp_path / "none.npz", z=NUMBERS, R=positions[:0], E=energy[:0])
    with pytest.raises(ValueError, match="at least one frame, got none in .*none.npz"):
        opened(tmp_path, tmp_path / "none.npz", overwrite=True)
    with pytest.raises(ValueError, match="keys must be of positions, .* got 'enrgy'"):
        opened(tmp_path, tmp_path / "odd.data", keys={"enrgy": "x"})


def test_an_absurd_number_of_atoms_is_told_at_once(tmp_path):

    (tmp_path / "a.xyz").write_text("1\nenergy=1.0\nH 0 0 0\n999999999999\nenergy=1.0\nH 0 0 0\n")
    with pytest.raises(ValueError, match="frame 1: the file ends after 1 of its 999999999999 atoms"):
        convert([tmp_path / "a.xyz"], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a.lmdb", "is an LMDB database of fairchem .* pickled Python objects, .* .aselmdb with fairchem's own tools"),
        ("a.pt", "write .npz or extended XYZ from it"),
        ("a.parquet", "pip install colabfit-tools"),
        ("a.tar.gz", "unpack it first"),
        ("a.cfg", "is a file of MTP .*: pip install maml"),
    ],
)
def test_what_is_not_read(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"BEGIN_CFG\n Size\n")
    with pytest.raises(ValueError, match=said):
        format_of(tmp_path / name)


def test_others_are_not_refused(tmp_path):
    (tmp_path / "a.cfg").write_text("Number of particles = 2\n")
    (tmp_path / "a.xyz").write_text("1\n\nH 0 0 0\n")
    assert refusal(tmp_path / "a.cfg") is None
    assert format_of(tmp_path / "a.xyz") == "ase"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b.aselmdb").touch()
    with pytest.raises(ValueError, match="is a folder of databases: give its files"):
        format_of(tmp_path / "folder")


def frame(energy, **labels):
    return Frames.single(WATER, NUMBERS, energy=energy, **labels)


@pytest.fixture
def two(tmp_path):
    """A store of three frames with different labels, and a file in kcal/mol."""
    with StoreWriter(tmp_path / "a") as writer:
        writer.add(frame(-1.0, forces=np.ones((3, 3))), "x", 0)
        writer.add(frame(-2.0, weight=3.0, config_type="hot"), "x", 1)
        writer.add(frame(np.nan, forces=np.full((3, 3), 2.0)), "x", 2)
    atoms = Atoms(NUMBERS, WATER)
    atoms.calc = SinglePointCalculator(atoms, energy=-69.18)
    ase.io.write(tmp_path / "b.xyz", atoms)
    return tmp_path / "a", tmp_path / "b.xyz"


def test_a_store_and_a_file_in_other_units_become_one(two, tmp_path):
    convert(two, tmp_path / "out", energy_unit="kcal/mol", log=[].append)
    store = Store.open(tmp_path / "out")
    frames = store.gather(np.arange(4))
    np.testing.assert_allclose(frames.energy, [-1, -2, np.nan, -3.0], rtol=1e-4)
    assert frames.forces[[0, 6], 0].tolist() == [1.0, 2.0]
    assert np.isnan(frames.forces[3:6]).all()
    assert frames.weight.tolist() == [1, 3, 1, 1]
    assert frames.config_type.tolist() == ["", "hot", "", ""]
    assert [store.origin(k) for k in (1, 3)] == [(str(two[0]), 1), (str(two[1]), 0)]


def test_units_without_a_file_to_apply_to_are_refused(two, tmp_path):
    with pytest.raises(ValueError, match="apply to files, but all data are stores"):
        convert([two[0]], tmp_path / "out", energy_unit="kcal/mol", log=[].append)
