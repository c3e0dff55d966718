"""The rule for the total charge, in its order."""

import numpy as np
import pytest
from ase import Atoms

from torchmdx.structure_files import charge_of


def ion(**info) -> Atoms:
    return Atoms("NH", [[0, 0, 0], [0, 0, 1]], info=info)


def test_each_source_gives_way_to_the_one_before():
    atoms = ion()
    assert charge_of(atoms) == (0.0, "the default")
    atoms.set_initial_charges([-0.3, -0.7])
    assert charge_of(atoms) == (-1.0, "sum of initial charges")
    atoms.set_array("formal_charges", np.array([3, -1]))
    assert charge_of(atoms) == (2.0, "sum of formal charges")
    atoms.info["total_charge"] = -3
    assert charge_of(atoms) == (-3.0, "'total_charge' in the file")
    atoms.info["charge"] = np.array([4])
    assert charge_of(atoms) == (4.0, "'charge' in the file")
    assert charge_of(atoms, 0.0) == (0.0, "--charge")


def test_a_database_row_has_a_charge():
    assert charge_of(ion(key_value_pairs={"charge": -1})) == (-1.0, "'charge' in the file")


def test_charges_that_cannot_be_are_refused():
    atoms = ion()
    atoms.set_initial_charges([0.1, 0.2])
    with pytest.raises(ValueError, match=r"must add up to an integer .* got 0.3 e; --charge sets the total charge"):
        charge_of(atoms)
    assert charge_of(atoms, 1) == (1.0, "--charge")
    with pytest.raises(TypeError, match="charge must be a number of elementary charges, got 'many'"):
        charge_of(ion(charge="many"))
