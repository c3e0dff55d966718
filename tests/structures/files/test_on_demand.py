"""Frames on demand, compared with ASE's reader of the whole file."""

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule

from torchmdx.datasets.labelling.sources import read
from torchmdx.structures.files import read_structures
from torchmdx.structures.files.on_demand import TrajectoryFrames, XyzFrames


@pytest.mark.parametrize(("ending", "kind"), [("xyz", XyzFrames), ("traj", TrajectoryFrames)])
def test_frames_are_those_of_ase(tmp_path, ending, kind):
    path = tmp_path / f"several.{ending}"
    structures = [molecule("CH4"), bulk("NaCl", "rocksalt", a=5.6), molecule("H2O", info={"charge": 1, "name": "Å"})]
    ase.io.write(path, structures)
    frames, expected = kind(str(path)), ase.io.read(path, ":")
    assert len(frames) == 3
    for found, wanted in zip([frames[0], *frames[1:]], expected, strict=True):
        assert found.info == wanted.info
        assert (found.numbers == wanted.numbers).all()
        np.testing.assert_array_equal(found.positions, wanted.positions)
        np.testing.assert_array_equal(found.cell.array, wanted.cell.array)
    with pytest.raises(IndexError):
        frames[3]


@pytest.mark.parametrize(
    ("text", "words"),
    [("2\n\nH 0 0 0\n", "must have 2 atoms, got 1"), ("x\n", "'x"), ("1\n\nH 0 0 0\n\n1\n", "blank line")],
)
def test_other_files_are_refused(tmp_path, text, words):
    path = tmp_path / "bad.xyz"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        XyzFrames(str(path))


@pytest.mark.parametrize(
    "frames",
    [lambda path: XyzFrames(path), lambda path: read_structures(path, "0"), lambda path: list(read(Path(path)))],
)
def test_an_absurd_number_of_atoms_is_told_at_once(tmp_path, frames):
    """ASE would count the missing lines, which takes minutes."""
    path = tmp_path / "cut.xyz"
    path.write_text("1\n\nH 0 0 0\n999999999\n\nO 0 0 0\n")
    with pytest.raises(ValueError, match=r"frame 1 of .*cut.xyz' must have 999999999 atoms, got 1"):
        frames(str(path))


@pytest.mark.parametrize("count", ["-1", "99999999999999999999"])
def test_a_number_of_atoms_that_is_none(tmp_path, count):
    path = tmp_path / "bad.xyz"
    path.write_text(f"{count}\n\nO 0 0 0\n")
    with pytest.raises(ValueError, match=f"the number of atoms of a frame of .* must be at least 0, got {count}"):
        XyzFrames(str(path))
