"""Ways to select atoms, charges with units, and arguments in the wrong place."""

import copy

import numpy as np
import openmm
import pytest
from mm_systems import SOLUTE, cluster, selected
from openmm import app, unit

from torchmdx.openmm import add_potential
from torchmdx.openmm.atoms import charge_in_e, checked_atoms


@pytest.fixture
def waters():
    topology, _ = cluster(2)
    system = openmm.System()
    for _ in topology.atoms():
        system.addParticle(1.0)
    return system, topology


def test_every_way_to_select(waters):
    system, topology = waters
    residues, atoms = list(topology.residues()), list(topology.atoms())
    mask = np.zeros(28, bool)
    mask[[3, 25]] = True
    for given, expected in [
        (None, None),
        ([5, 3], (5, 3)),
        (np.array([5, 3]), (5, 3)),
        (atoms[7], (7,)),
        ([atoms[7], 2], (7, 2)),
        (residues[3], (22, 23, 24)),
        (residues[3].atoms(), (22, 23, 24)),
        ("HOH", tuple(range(22, 28))),
        (["ACE", residues[4]], (*range(6), 25, 26, 27)),
        (mask, (3, 25)),
        (mask.tolist(), (3, 25)),
        (list(copy.deepcopy(topology).residues())[4], (25, 26, 27)),
    ]:
        assert checked_atoms(system, topology, given) == expected


def test_what_selects_nothing_or_the_wrong_thing(waters):
    system, topology = waters
    foreign = next(selected(range(22, 40))[0].residues())
    for given, error, message in [
        ([False, True], ValueError, "a mask must have one value for each of the 28 atoms, got 2"),
        (np.zeros(28, bool), ValueError, "at least one atom, got none"),
        ([True, 5], TypeError, "a mixture with True"),
        ("LIG", ValueError, "must name residues of the topology, ACE, ALA, HOH, NME, got 'LIG'"),
        (foreign, ValueError, "is not in this topology"),
        (7, TypeError, "several atoms or a Residue, got int 7"),
        ([1.5], TypeError, "whole numbers, Atoms, Residues or names of residues, got 1.5"),
        (topology, TypeError, "got a Topology"),
        (["HOH", 22], ValueError, "must not be repeated, got 22"),
    ]:
        with pytest.raises(error, match=message):
            checked_atoms(system, topology, given)


def test_wrong_arguments_are_named(waters, potential):
    system, topology = waters
    with pytest.raises(TypeError, match="system and topology are swapped: the order is"):
        add_potential(topology, system, potential)
    with pytest.raises(TypeError, match=r"system must be an openmm.System, got NoneType"):
        add_potential(None, topology, potential)
    modeller = app.Modeller(topology, np.zeros((28, 3)) * unit.nanometer)
    with pytest.raises(TypeError, match=r"must be an openmm.app.Topology, got Modeller; use its attribute topology"):
        add_potential(system, modeller, potential)


def test_charges():
    assert charge_in_e(-1) == -1.0
    assert charge_in_e(2 * unit.elementary_charge) == 2.0
    assert charge_in_e(-1.602176634e-19 * unit.coulomb) == pytest.approx(-1.0)
    with pytest.raises(TypeError, match="charge must be in a unit of charge, got 1 K"):
        charge_in_e(1 * unit.kelvin)


def test_a_charge_with_a_unit_reaches_the_settings(potential):
    topology, _ = selected(SOLUTE)
    system = openmm.System()
    for _ in SOLUTE:
        system.addParticle(1.0)
    options = dict(device="cpu", transport="python")
    force = add_potential(system, topology, potential, charge=1 * unit.elementary_charge, **options)
    assert force.evaluator.settings.charge == 1.0
