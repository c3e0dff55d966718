import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.constraints import FixCartesian

from torchmdx.dynamics.paths.ends import fitted


def test_periodic_atoms_take_their_nearest_images():
    first = Atoms("HH", [[0.2, 1, 1], [5, 5, 5]], cell=[8, 8, 8], pbc=[True, False, False])
    first.set_constraint(FixCartesian(0, (False, True, True)))
    last = Atoms("HH", [[7.8, 1, 1], [5, 5, 6]], cell=[8, 8, 8], pbc=[True, False, False])
    assert np.allclose(fitted(first, last).positions, [[-0.2, 1, 1], [5, 5, 6]])


def test_periodic_structures_are_shifted_as_a_whole():
    first = bulk("Cu", cubic=True) * (2, 2, 2)
    first.pbc = [True, True, False]
    hop = np.zeros((len(first), 3))
    hop[0] = [1.0, 0, 0]
    for shift in ([0, 0, 0], [3.61, 3.5, 40.0], [-20.0, 3.0, 1.0]):  # the cell is 7.22 Å wide
        last = first.copy()
        last.positions += hop + shift
        last.wrap()
        moved = fitted(first, last).positions - first.positions
        assert np.allclose(moved, hop - hop.mean(0))
