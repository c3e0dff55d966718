import h5py
import numpy as np
import pytest
from water_files import BOHR, HARTREE, NUMBERS, WATER, opened, same

from torchmdx.datasets.hdf5_files import smiles_charge
from torchmdx.datasets.readers import format_of


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
