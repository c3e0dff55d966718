import ase.build
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms, FixCartesian, FixedLine

from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.tasks import free_coordinates, groups_of, task_of


def test_what_constraints_leave_free():
    atoms = ase.build.molecule("NH3")
    atoms.set_constraint([FixAtoms([1]), FixCartesian([2, 3], mask=(True, False, False))])
    expected = np.array([[1, 1, 1], [0, 0, 0], [0, 1, 1], [0, 1, 1]], dtype=bool)
    assert np.array_equal(free_coordinates(atoms), expected)
    atoms.set_constraint(FixedLine(0, [1, 0, 0]))
    with pytest.raises(ValueError, match="constraints must be FixAtoms or FixCartesian in a batch, got FixedLine"):
        free_coordinates(atoms)


def test_groups_are_periodic_or_not_and_large_ones_come_first(potential):
    crystal, big = ase.build.bulk("C", "fcc", a=3.0), ase.build.bulk("C", "fcc", a=3.0) * 2
    charged = Atoms("C", [[0, 0, 0]])
    charged.set_initial_charges([0.5])
    charged.info["charge"] = 0
    structures = [ase.build.molecule("H2O"), crystal, charged, big, ase.build.molecule("CH4")]
    tasks = [task_of(k, atoms, potential, FireSettings(), None) for k, atoms in enumerate(structures)]
    assert [[task.index for task in group] for group in groups_of(tasks)] == [[4, 0], [3, 1], [2]]


def test_a_cell_of_too_many_images_is_refused(potential):
    thin = Atoms("C", [[0, 0, 0]], cell=[4, 4, 1e-3], pbc=True)
    with pytest.raises(ValueError, match="can't be counted"):
        task_of(0, thin, potential, FireSettings(), None)
