"""ASE databases in LMDB, written as ase-db-backends writes them."""

import json
import sys
import zlib

import numpy as np
import pytest
from ase.build import bulk

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.readers import format_of
from torchmdx.datasets.store import Store


def written(path, rows, **more):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), subdir=False, map_size=1 << 24) as environment, environment.begin(write=True) as put:
        for number, row in enumerate(rows, start=1):
            put.put(str(number).encode(), zlib.compress(json.dumps(row).encode()))
        values = {"nextid": len(rows) + 1, "metadata": {"format": "x"}} | more
        for name, value in values.items():
            put.put(name.encode(), zlib.compress(json.dumps(value).encode()))


def row(k):
    atoms = bulk("NaCl", "rocksalt", a=5.6 + 0.01 * k)
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": [True] * 3,
        "energy": -7.0 - k,
        "forces": [[0.1 * k, 0, 0], [-0.1 * k, 0, 0]],
        "stress": [0.01, 0.02, 0.03, 0.0, 0.0, 0.004],
        "unique_id": f"{k:032x}",
        "ctime": 25.0,
        "mtime": 25.0,
        "user": "x",
        "data": {"charge": 1, "spin": 1},
        "key_value_pairs": {},
    }


def test_rows_are_frames(tmp_path):
    written(tmp_path / "a.aselmdb", [row(0), row(1), row(2)])
    assert format_of(tmp_path / "a.aselmdb") == "ase"
    convert([tmp_path / "a.aselmdb"], tmp_path / "out", log=[].append)
    frames = Store.open(tmp_path / "out").gather(np.arange(3))
    assert frames.energy.tolist() == [-7.0, -8.0, -9.0]
    assert frames.charge.tolist() == [1.0] * 3
    assert frames.atomic_numbers.tolist() == [11, 17] * 3
    np.testing.assert_allclose(frames.forces[:, 0], [0, 0, 0.1, -0.1, 0.2, -0.2], rtol=1e-6)
    np.testing.assert_allclose(frames.stress[0, 0], [0.01, 0.004, 0.0], rtol=1e-6)
    assert frames.pbc.all()


def test_damage_is_named(tmp_path):
    written(tmp_path / "a.aselmdb", [row(0), {"numbers": [1]}])
    with pytest.raises(ValueError, match="row 2 of .* must be a structure with numbers and positions"):
        convert([tmp_path / "a.aselmdb"], tmp_path / "out", log=[].append)
    written(tmp_path / "b.aselmdb", [row(0)], nextid="many")
    with pytest.raises(ValueError, match="must have the number nextid"):
        convert([tmp_path / "b.aselmdb"], tmp_path / "out", log=[].append)
    (tmp_path / "c.aselmdb").write_bytes(b"x" * 9000)
    with pytest.raises(ValueError, match="is not a whole LMDB database"):
        convert([tmp_path / "c.aselmdb"], tmp_path / "out", log=[].append)


def test_without_lmdb_the_error_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.aselmdb").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises((ImportError, ValueError), match="which needs lmdb: pip install lmdb"):
        convert([tmp_path / "a.aselmdb"], tmp_path / "out", log=[].append)
