"""A model that was registered from outside, in OpenMM."""

import pytest
from boxes import assert_same, context_of, empty_system, expected, found, topology_of
from outside_model import outside_potential, registration  # noqa: F401 (used by every test)

from torchmdx.openmm import add_potential


@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_openmm_gets_its_energy_and_forces(name, request):
    atoms, potential = request.getfixturevalue(name), outside_potential()
    if atoms.pbc.any():
        atoms = atoms.repeat(4)  # OpenMM wants boxes in a reduced form
        atoms.set_cell([[12.4, 0, 0], [0, 11.6, 0], [0, 0, 13.2]], scale_atoms=True)
    system = empty_system(atoms)
    add_potential(system, topology_of(atoms), potential, precision="float64", device="cpu")
    wanted = expected(potential, atoms)
    assert abs(wanted[1]).max() > 1e-2
    assert_same(found(context_of(system, atoms)), wanted)
