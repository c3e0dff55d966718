"""Readers: values that were computed by hand from the units of each file come out in Å and eV."""

import ase.db
import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.hdf5_files import smiles_charge
from torchmdx.datasets.readers import format_of
from torchmdx.datasets.store import Store

HARTREE, BOHR, KCAL = 27.211386245981, 0.529177210544, 4.184 / 96.48533212331
GPA = 1 / 160.2176634
NUMBERS = np.array([8, 1, 1])
WATER = np.array([[0.0, 0, 0], [0.76, 0.59, 0], [-0.76, 0.59, 0]])


@pytest.fixture
def water():
    """Positions [5,3,3] Å, energies [5] eV, forces [5,3,3] eV/Å of five waters."""
    generator = np.random.default_rng(11)
    positions = WATER + generator.normal(scale=0.02, size=(5, 3, 3))
    return positions, -2080 + generator.normal(size=5), generator.normal(size=(5, 3, 3))


def opened(tmp_path, *files, **options) -> Store:
    lines: list[str] = []
    convert(files, tmp_path / "out", log=lines.append, **options)
    return Store.open(tmp_path / "out")


def same(store, water, atol=0.0) -> None:
    positions, energy, forces = water
    frames = store.gather(np.arange(len(store)))
    assert frames.counts.tolist() == [3] * 5
    assert frames.atomic_numbers.tolist() == [8, 1, 1] * 5
    np.testing.assert_allclose(frames.positions, positions.reshape(-1, 3), rtol=1e-9, atol=atol)
    np.testing.assert_allclose(frames.energy, energy, rtol=1e-9)
    np.testing.assert_allclose(frames.forces, forces.reshape(-1, 3), rtol=2e-6, atol=1e-7)
    assert not frames.has_stress.any()
    assert [store.origin(k)[1] for k in range(5)] == list(range(5))


def structures(water, scale_energy=1.0, scale_length=1.0, named=False) -> list[Atoms]:
    found = []
    for positions, energy, forces in zip(*water, strict=True):
        atoms = Atoms(NUMBERS, positions * scale_length)
        energy, forces = energy * scale_energy, forces * scale_energy / scale_length
        if named:
            atoms.info["REF_energy"] = energy
            atoms.set_array("REF_forces", forces)
        else:
            atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found


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


def test_stress_in_atomic_units_scales_with_volume(tmp_path):
    atoms = bulk("Cu", a=3.6)
    atoms.set_cell(atoms.cell / BOHR, scale_atoms=True)
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, stress=np.array([1.0, 0, 0, 0, 0, 0]) * 1e-4)
    ase.io.write(tmp_path / "c.traj", atoms)
    frames = opened(tmp_path, tmp_path / "c.traj", energy_unit="hartree", length_unit="bohr").gather([0])
    np.testing.assert_allclose(frames.stress[0, 0, 0], 1e-4 * HARTREE / BOHR**3, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.det(frames.cell[0]), 3.6**3 / 4, rtol=1e-9)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_of_rmd17(tmp_path, water, compressed):
    positions, energy, forces = water
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "w.npz",
        nuclear_charges=NUMBERS.astype(np.uint8),
        coords=np.asfortranarray(positions),
        energies=energy / KCAL,
        forces=forces / KCAL,
        old_indices=np.arange(5),
    )
    same(opened(tmp_path, tmp_path / "w.npz", energy_unit="kcal/mol"), water)


def test_npz_of_many_blocks_keeps_the_order(tmp_path, water, monkeypatch):
    monkeypatch.setattr("torchmdx.datasets.blocks.BLOCK_NUMBERS", 18)  # two waters
    positions, energy, forces = water
    np.savez(tmp_path / "w.npz", z=NUMBERS, R=positions, E=energy[:, None], F=forces)
    same(opened(tmp_path, tmp_path / "w.npz"), water)


def test_npz_padded_with_charges_and_other_names(tmp_path):
    positions = np.zeros((2, 3, 3))
    positions[0], positions[1, :2] = WATER, [[0, 0, 0], [0, 0, 0.97]]
    forces = np.arange(18.0).reshape(2, 3, 3)
    np.savez(tmp_path / "p.npz", xyz=positions, Z=[[8, 1, 1], [8, 1, 0]], Q=[0, -1], E=[1.0, 2.0], F=forces)
    frames = opened(tmp_path, tmp_path / "p.npz", keys={"positions": "xyz"}).gather([1, 0])
    assert frames.counts.tolist() == [2, 3]
    assert frames.atomic_numbers.tolist() == [8, 1, 8, 1, 1]
    assert frames.charge.tolist() == [-1.0, 0.0]
    assert frames.forces[:, 0].tolist() == [9, 12, 0, 3, 6]


def test_npz_with_edges_of_boxes_and_one_charge(tmp_path):
    edges = np.array([[9.0, 10, 11], [12, 13, 14]])
    np.savez(tmp_path / "b.npz", z=NUMBERS, R=np.tile(WATER, (2, 1, 1)), E=[1.0, 2.0], box=edges, charge=-1)
    frames = opened(tmp_path, tmp_path / "b.npz").gather([0, 1])
    np.testing.assert_array_equal(frames.cell, [np.diag(edges[0]), np.diag(edges[1])])
    assert frames.pbc.all()
    assert frames.charge.tolist() == [-1.0, -1.0]


def test_npz_with_python_objects_is_not_loaded(tmp_path):
    np.savez(tmp_path / "o.npz", z=NUMBERS, R=np.array([WATER, None], dtype=object), E=[1.0, 2.0])
    with pytest.raises(ValueError, match="'R' of .*o.npz' must be numbers; Python objects.*are not loaded"):
        opened(tmp_path, tmp_path / "o.npz")


def test_npz_without_labels_says_what_there_is(tmp_path):
    np.savez(tmp_path / "n.npz", z=NUMBERS, R=WATER[None], U=[1.0])
    with pytest.raises(ValueError, match=r"must have energy or forces \(energies, E,.*got z, R, U"):
        opened(tmp_path, tmp_path / "n.npz")


@pytest.mark.parametrize("shared", [False, True])
def test_hdf5_of_torchmdnet(tmp_path, water, shared):
    positions, energy, forces = water
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for name, part in (("a", slice(0, 2)), ("b", slice(2, 5))):
            group = file.create_group(name)
            size = len(energy[part])
            group["types"] = NUMBERS if shared else np.tile(NUMBERS, (size, 1))
            group["pos"], group["forces"] = positions[part], forces[part]
            group["energy"] = energy[part] if shared else energy[part][:, None]
        file.create_group("_metadata")["x"] = np.zeros(3)
    store = opened(tmp_path, tmp_path / "w.h5")
    same(store, water)
    assert not store.gather([0]).pbc.any()


@pytest.mark.parametrize("way", ["external storage", "virtual", "external link", "linked group"])
def test_hdf5_files_do_not_read_other_files(tmp_path, water, way):
    positions, energy, forces = water
    (tmp_path / "secret").write_bytes(positions.tobytes())
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["g/pos"] = positions
    with h5py.File(tmp_path / "set.h5", "w") as file:
        group = file.create_group("g")
        group["types"], group["energy"], group["forces"] = NUMBERS, energy, forces
        if way == "external storage":
            place = [(str(tmp_path / "secret"), 0, positions.nbytes)]
            group.create_dataset("pos", positions.shape, positions.dtype, external=place)
        elif way == "virtual":
            layout = h5py.VirtualLayout(positions.shape, positions.dtype)
            layout[...] = h5py.VirtualSource(str(tmp_path / "other.h5"), "g/pos", positions.shape)
            group.create_virtual_dataset("pos", layout)
        else:
            group["pos"] = positions if way == "linked group" else h5py.ExternalLink("other.h5", "g/pos")
            if way == "linked group":
                file["h"] = h5py.ExternalLink("other.h5", "g")
    with pytest.raises(ValueError, match=r"'[/gh]*(pos)?' must be (stored )?in the file itself, got (a link|values)"):
        opened(tmp_path, tmp_path / "set.h5", format="torchmdnet-hdf5")


def test_hdf5_of_torchmdnet_with_boxes(tmp_path):
    with h5py.File(tmp_path / "w.h5", "w") as file:
        group = file.create_group("all")
        group["types"], group["pos"], group["energy"] = NUMBERS, WATER[None], [3.0]
        group["box"] = 9 * np.eye(3)[None]
    frames = opened(tmp_path, tmp_path / "w.h5").gather([0])
    assert frames.pbc.all()
    np.testing.assert_array_equal(frames.cell[0], 9 * np.eye(3))


def test_hdf5_of_spice(tmp_path, water):
    positions, energy, forces = water
    with h5py.File(tmp_path / "s.hdf5", "w") as file:
        group = file.create_group("water")
        group["atomic_numbers"], group["smiles"] = NUMBERS, [b"[O:1]([H:2])[H:3]"]
        group["conformations"] = positions / BOHR
        group["dft_total_energy"] = energy / HARTREE
        group["dft_total_gradient"] = -forces * BOHR / HARTREE
        ion = file.create_group("z-hydroxide")
        ion["atomic_numbers"], ion["smiles"] = [8, 1], [b"[O-:1][H:2]"]
        ion["conformations"] = np.array([[[0, 0, 0], [0, 0, 1.8]]])
        ion["dft_total_energy"] = [-75.8]
    assert format_of(tmp_path / "s.hdf5") == "spice"
    store = opened(tmp_path, tmp_path / "s.hdf5")
    frames = store.gather(np.arange(5))
    np.testing.assert_allclose(frames.positions, positions.reshape(-1, 3), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(frames.energy, energy, rtol=1e-12)
    np.testing.assert_allclose(frames.forces, forces.reshape(-1, 3), rtol=2e-6)
    last = store.gather([5])
    assert last.charge.tolist() == [-1.0]
    assert not last.has_forces.any()
    assert store.units == {
        "energy": "hartree", "length": "bohr", "force": "hartree/bohr", "stress": "hartree/bohr^3"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("smiles", "charge"),
    [
        ("CCO", 0), ("[O-:1][H:2]", -1), ("[NH3+:12]C[C](=O)[O-:3]", 0), ("[Fe+2]", 2), ("[Ca++]", 2), ("[O--:4]", -2),
        ("C[N+:1](C)(C)C.[Cl-]", 0), ("[13C@@H-]", -1), ("[Mg+2:5].[Na+]", 3), ("C-C[C:1]-[H:2]", 0),
    ],
)  # fmt: skip
def test_charge_of_smiles(smiles, charge):
    assert smiles_charge(smiles) == charge


def test_folder_of_torchmdnet(tmp_path, water):
    positions, energy, forces = water
    folder = tmp_path / "custom"
    folder.mkdir()
    for k, part in enumerate((slice(0, 2), slice(2, 5))):
        np.save(folder / f"coordinates_{k}.npy", positions[part])
        np.save(folder / f"embeddings_{k}.npy", NUMBERS)
        np.save(folder / f"energies_{k}.npy", energy[part][:, None])
        np.save(folder / f"forces_{k}.npy", forces[part])
    same(opened(tmp_path, folder), water)
    (folder / "forces_1.npy").unlink()
    with pytest.raises(ValueError, match=r"as many files of each kind, got 2 of \*coord\*.npy.*1 of \*force\*.npy"):
        opened(tmp_path, folder, overwrite=True)


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
    from torchmdx.datasets.conversion import convert

    (tmp_path / "a.xyz").write_text("1\nenergy=1.0\nH 0 0 0\n999999999999\nenergy=1.0\nH 0 0 0\n")
    with pytest.raises(ValueError, match="frame 1: the file ends after 1 of its 999999999999 atoms"):
        convert([tmp_path / "a.xyz"], tmp_path / "out")
