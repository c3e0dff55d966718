"""Frames on demand, compared with ASE's reader of the whole file."""

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule

from torchmdx.structure_files.on_demand import TrajectoryFrames, XyzFrames


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
