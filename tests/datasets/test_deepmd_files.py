"""Systems of DeePMD-kit, of fixed and of mixed types, written here as its documentation describes them."""

import numpy as np
import pytest

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.readers import format_of
from torchmdx.datasets.store import Store

WATER = np.array([[0, 0, 0.119], [0, 0.763, -0.477], [0, -0.763, -0.477]])


def system(path, types, names, sets, nopbc=False):
    """sets: arrays of each set by name."""
    path.mkdir(parents=True)
    np.savetxt(path / "type.raw", types, fmt="%d")
    (path / "type_map.raw").write_text("\n".join(names) + "\n")
    if nopbc:
        (path / "nopbc").touch()
    for number, arrays in enumerate(sets):
        (path / f"set.{number:03d}").mkdir()
        for name, array in arrays.items():
            np.save(path / f"set.{number:03d}" / f"{name}.npy", array)


def waters(count, seed=0):
    generator = np.random.default_rng(seed)
    coord = (WATER + generator.normal(0, 0.03, (count, 3, 3))).reshape(count, 9)
    return {
        "coord": coord,
        "box": np.tile(8.0 * np.eye(3).ravel(), (count, 1)),
        "energy": generator.normal(-14, 0.1, count),
        "force": generator.normal(0, 1, (count, 9)),
        "virial": generator.normal(0, 1, (count, 9)),
    }


def opened(tmp_path, path, **options):
    convert([path], tmp_path / "out", log=[].append, **options)
    return Store.open(tmp_path / "out")


def test_a_system_with_sets(tmp_path):
    sets = [waters(3), waters(2, seed=1)]
    del sets[1]["virial"]
    system(tmp_path / "data" / "a", [0, 1, 1], ["O", "H"], sets)
    system(tmp_path / "data" / "b", [1, 1], ["O", "H"], [{"coord": np.eye(1, 6), "energy": np.array([-6.0])}], True)
    assert format_of(tmp_path / "data") == "deepmd"
    store = opened(tmp_path, tmp_path / "data")
    frames = store.gather(np.arange(6))
    assert frames.counts.tolist() == [3] * 5 + [2]
    assert frames.atomic_numbers[:3].tolist() == [8, 1, 1]
    for name, own in (("energy", frames.energy[:5]), ("coord", frames.positions[:15].reshape(5, 9))):
        np.testing.assert_allclose(own, np.concatenate([one[name] for one in sets]))
    np.testing.assert_allclose(
        frames.forces[:15].reshape(5, 9), np.concatenate([one["force"] for one in sets]), rtol=1e-6
    )
    virial = sets[0]["virial"].reshape(3, 3, 3)
    np.testing.assert_allclose(frames.stress[:3], -(virial + virial.transpose(0, 2, 1)) / 2 / 512, rtol=1e-5)
    assert frames.has_stress.tolist() == [True] * 3 + [False] * 3
    assert frames.has_forces.tolist() == [True] * 5 + [False]
    assert frames.pbc.all(1).tolist() == [True] * 5 + [False]
    assert [store.origin(k)[1] for k in range(6)] == list(range(6))


def test_mixed_types_with_virtual_atoms(tmp_path):
    coord = np.tile(np.concatenate([WATER.ravel(), [5.0, 0, 0]]), (2, 1))
    kinds = np.array([[0, 1, 1, 2], [0, 1, 1, -1]])
    arrays = {"coord": coord, "energy": np.array([-1.0, -2.0]), "force": np.zeros((2, 12)), "real_atom_types": kinds}
    system(tmp_path / "mixed", [0, 0, 0, 0], ["O", "H", "Na"], [arrays])
    frames = opened(tmp_path, tmp_path / "mixed").gather([0, 1])
    assert frames.counts.tolist() == [4, 3]
    assert frames.atomic_numbers.tolist() == [8, 1, 1, 11, 8, 1, 1]


def test_what_is_wrong_is_said(tmp_path):
    system(tmp_path / "a", [0, 1, 2], ["O", "H"], [waters(1)])
    with pytest.raises(ValueError, match="must have types 0 to 1, got 2"):
        opened(tmp_path, tmp_path / "a")
    system(tmp_path / "b", [0, 1, 1], ["O", "X1"], [waters(1)])
    with pytest.raises(ValueError, match="must name elements, got 'X1'"):
        opened(tmp_path, tmp_path / "b")
    (tmp_path / "b" / "type_map.raw").unlink()
    with pytest.raises(ValueError, match="must have type_map.raw"):
        opened(tmp_path, tmp_path / "b")
    system(tmp_path / "c", [0, 1, 1], ["O", "H"], [waters(2) | {"force": np.zeros((2, 8))}])
    with pytest.raises(ValueError, match=r"set.000: force.npy must have shape \[2, 9\], got \[2, 8\]"):
        opened(tmp_path, tmp_path / "c")
    system(tmp_path / "d", [0], ["O"], [])
    with pytest.raises(ValueError, match=r"must have folders set.\* with coord.npy"):
        opened(tmp_path, tmp_path / "d")
    with pytest.raises(ValueError, match="deepmd is a format without a energy key"):
        opened(tmp_path, tmp_path / "c", keys={"energy": "e"})
