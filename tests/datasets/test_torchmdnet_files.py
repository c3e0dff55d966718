import numpy as np
import pytest
from water_files import NUMBERS, opened, same


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
    with pytest.raises(ValueError, match=r"number of files of each kind, got 2 of \*coord\*.npy.*1 of \*force\*.npy"):
        opened(tmp_path, folder, overwrite=True)
