import numpy as np
from ase import Atoms

from torchmdx.dynamics.paths.ends import fitted


def test_periodic_atoms_take_their_nearest_images():
    first = Atoms("HH", [[0.2, 1, 1], [5, 5, 5]], cell=[8, 8, 8], pbc=[True, False, False])
    last = Atoms("HH", [[7.8, 1, 1], [5, 5, 6]], cell=[8, 8, 8], pbc=[True, False, False])
    assert np.allclose(fitted(first, last).positions, [[-0.2, 1, 1], [5, 5, 6]])
