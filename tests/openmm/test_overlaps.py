"""Warnings of energies that are counted twice, and none where all is well."""

import copy
import warnings

import openmm
import pytest
from mixed_systems import mix
from mm_systems import SOLUTE, cluster, mm_system, selected, water_box
from openmm import app

from torchmdx import save
from torchmdx.models.model_card import Card
from torchmdx.openmm import add_potential

OPTIONS = dict(device="cpu", transport="python")


def messages(system, topology, potential, atoms=None, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        add_potential(system, topology, potential, atoms, **{**OPTIONS, **options})
    found = [warning for warning in caught if issubclass(warning.category, UserWarning)]
    assert all(warning.filename == __file__ for warning in found)
    return [str(warning.message) for warning in found]


def particles(count: int) -> openmm.System:
    system = openmm.System()
    for _ in range(count):
        system.addParticle(12.0)
    return system


def test_a_force_field_on_the_same_atoms(potential):
    topology, _ = cluster(1)
    (message,) = messages(mm_system(topology), topology, potential, SOLUTE)
    assert "already has a force field for atoms of the potential (HarmonicAngleForce, HarmonicBondForce, " in message
    assert "create_mixed_system" in message
    restrained = particles(25)
    bond = openmm.HarmonicBondForce()
    bond.addBond(0, 18, 1.0, 10.0)
    restrained.addForce(bond)
    assert messages(restrained, topology, potential) == []


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_same_potential_twice(potential, make_potential, tmp_path, in_memory):
    path = tmp_path / "model.safetensors"
    save(potential, path)
    given = potential if in_memory else path
    topology, _ = selected(SOLUTE)
    system = particles(22)
    assert messages(system, topology, given, range(10), name="first") == []
    assert messages(system, topology, given, range(10, 22)) == []
    assert messages(copy.deepcopy(system), topology, make_potential(seed=9)) == []
    (message,) = messages(copy.deepcopy(system), topology, given, [8, 9], name="second")
    assert message == (
        "the same potential is already in the system, as force 'first', for 2 of the same atoms: its energy is counted "
        "twice"
    )


def test_mixed_systems_do_not_warn(potential):
    topology, _ = cluster(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = mix(mm_system(topology), topology, SOLUTE, potential, interpolate="lam")
        mix(mixed, topology, range(22, 25), potential)


@pytest.mark.nightly
def test_a_region_of_a_periodic_system_is_no_periodic_structure(potential):
    """A potential of molecules may describe a ligand in a box of water; for a whole box there is a warning."""
    topology, _ = water_box()
    molecules = copy.deepcopy(potential)
    molecules.card = Card(periodic=False)
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mix(system, topology, SOLUTE, molecules)
    with pytest.warns(UserWarning, match="without any periodic structure"):
        add_potential(particles(topology.getNumAtoms()), topology, molecules, **OPTIONS)
