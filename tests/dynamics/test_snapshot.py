"""Snapshot files: complete, and refused when damaged or of another kind."""

import numpy as np
import pytest
from oscillators import springs

from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.snapshot import load_snapshot


@pytest.fixture
def snapshot():
    return springs(Langevin(), 1.0, [2, 3]).snapshot()


def test_everything_is_kept(snapshot, tmp_path):
    snapshot.save(tmp_path / "a.npz")
    found = load_snapshot(tmp_path / "a.npz", snapshot.particles)
    for name in ("step", "timestep", "positions", "velocities", "forces", "energy", "temperatures", "cell", "time"):
        np.testing.assert_array_equal(getattr(found, name), getattr(snapshot, name))
    for name, value in snapshot.frame.items():
        np.testing.assert_array_equal(found.frame[name], value)


def test_other_files_are_refused(snapshot, tmp_path):
    np.savez(tmp_path / "other.npz", positions=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    snapshot.save(tmp_path / "cut.npz")
    content = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    for name in ("other", "text", "cut"):
        with pytest.raises(ValueError, match=name):
            load_snapshot(tmp_path / f"{name}.npz", snapshot.particles)
    with pytest.raises(FileNotFoundError):
        load_snapshot(tmp_path / "none.npz", snapshot.particles)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("positions", lambda x: x + np.nan, "positions in .* must be finite"),
        ("energy", lambda x: x[:1], "energy in .* must have shape"),
        ("order", lambda x: x * 0, "order in .* must be a permutation of 5 atoms"),
    ],
)
def test_wrong_values_are_refused(snapshot, tmp_path, name, change, words):
    snapshot.save(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    arrays[name] = change(arrays[name])
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        load_snapshot(tmp_path / "a.npz", snapshot.particles)
