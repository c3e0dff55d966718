"""Trajectories whose arrays are in other files are refused. Data sets: tests/datasets/test_readers.py."""

import numpy as np
import pytest

from torchmdx.report.view.hdf5 import open_hdf5
from torchmdx.runtime.hdf5_content import require_own

h5py = pytest.importorskip("h5py")


@pytest.mark.parametrize("way", ["external storage", "external link"])
def test_a_trajectory_does_not_read_other_files(tmp_path, way):
    values = np.zeros((2, 3, 3), np.float32)
    (tmp_path / "secret").write_bytes(values.tobytes())
    with h5py.File(tmp_path / "run.h5", "w") as file:
        if way == "external link":
            file["coordinates"] = h5py.ExternalLink("other.h5", "coordinates")
        else:
            place = [(str(tmp_path / "secret"), 0, values.nbytes)]
            file.create_dataset("coordinates", values.shape, values.dtype, external=place)
    with pytest.raises(ValueError, match=r"run.h5.*'/?coordinates' must be (stored )?in the file itself, got"):
        open_hdf5(tmp_path / "run.h5")


def test_arrays_and_links_of_the_file_itself_are_its_own(tmp_path):
    with h5py.File(tmp_path / "run.h5", "w") as file:
        file["coordinates"] = np.zeros((2, 3, 3))
        file["again"], file["soft"] = file["coordinates"], h5py.SoftLink("/coordinates")
        layout = h5py.VirtualLayout((2, 3, 3), float)
        layout[...] = h5py.VirtualSource(file["coordinates"])
        file.create_virtual_dataset("view", layout)
        require_own(file)
