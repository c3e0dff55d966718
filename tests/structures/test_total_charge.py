"""The rule for the total charge, in its order."""

import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms

from torchmdx import Calculator, System, evaluate, relax
from torchmdx.datasets.labelling.geometry import UnlabelledStructure
from torchmdx.structures.total_charge import charge_of, set_charge


def ion(**info) -> Atoms:
    return Atoms("NH", [[0, 0, 0], [0, 0, 1]], info=info)


def test_each_source_gives_way_to_the_one_before():
    atoms = ion()
    assert charge_of(atoms) == (0.0, "the default")
    atoms.set_initial_charges([-0.3, -0.7])
    assert charge_of(atoms) == (-1.0, "sum of initial charges")
    atoms.set_array("formal_charges", np.array([3, -1]))
    assert charge_of(atoms) == (2.0, "sum of formal charges")
    atoms.info["total_charge"] = 4
    assert charge_of(atoms) == (4.0, "'total_charge' in the file")
    atoms.info["charge"] = np.array([4])
    assert charge_of(atoms) == (4.0, "'charge' in the file")
    assert charge_of(atoms, 0.0) == (0.0, "--charge")


def test_a_database_row_has_a_charge():
    assert charge_of(ion(key_value_pairs={"charge": -1})) == (-1.0, "'charge' in the file")


def test_charges_that_cannot_be_are_refused():
    atoms = ion()
    atoms.set_initial_charges([0.1, 0.2])
    with pytest.raises(ValueError, match=r"must add up to an integer .* got 0.3 e; --charge, or charge=, sets the"):
        charge_of(atoms)
    assert charge_of(atoms, 1) == (1.0, "--charge")
    with pytest.raises(TypeError, match="charge must be a number of elementary charges, got 'many'"):
        charge_of(ion(charge="many"))


@pytest.mark.parametrize(
    "info",
    [{"charge": 1, "total_charge": 0}, {"charge": 0, "key_value_pairs": {"total_charge": -1}}],
)
def test_entries_that_differ_are_refused_and_replaced(info):
    atoms = ion(**info)
    with pytest.raises(
        ValueError, match=r"must state one total charge, got 'charge' \+[01] and 'total_charge' [+-][01]"
    ):
        charge_of(atoms)
    assert charge_of(atoms, 2)[0] == 2.0
    set_charge(atoms, 2.0)
    assert charge_of(atoms) == (2.0, "'charge' in the file")


def relaxed_energy(potential, atoms):
    atoms.set_constraint(FixAtoms([0, 1]))
    return relax([atoms], potential, dtype="float64")[0].atoms.get_potential_energy()


def labelled_energy(potential, atoms):
    geometry = UnlabelledStructure.from_ase(atoms)
    return evaluate(
        potential, System.create(geometry.positions, geometry.numbers, charge=geometry.charge)
    ).energy.item()


DOORS = {
    "System": lambda potential, atoms: evaluate(potential, System.from_ase(atoms)).energy.item(),
    "Calculator": lambda potential, atoms: Calculator(potential, dtype="float64").get_potential_energy(atoms),
    "relax": relaxed_energy,
    "label": labelled_energy,
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_has_the_rule(potential, door):
    energy = DOORS[door]
    neutral, charged = (evaluate(potential, System.from_ase(ion(), charge)).energy.item() for charge in (0, 1))
    assert abs(neutral - charged) > 1e-5
    with_formal = ion()
    with_formal.set_array("formal_charges", np.array([1, 0]))
    for atoms in (ion(charge=1), ion(total_charge=1.0), ion(key_value_pairs={"charge": 1}), with_formal):
        assert energy(potential, atoms) == pytest.approx(charged, abs=1e-9)
    assert energy(potential, ion()) == pytest.approx(neutral, abs=1e-9)


def test_a_calculator_and_a_system_refuse_entries_that_differ(potential):
    atoms = ion(charge=1, total_charge=0)
    for door in ("System", "Calculator"):
        with pytest.raises(ValueError, match="entries of a structure must state one total charge"):
            DOORS[door](potential, atoms)
    (found,) = relax([atoms], potential)
    assert "entries of a structure must state one total charge" in found.reason
