"""Biases inside the ML region: kept, or refused by name; terms of the force field are replaced."""

import logging

import openmm
import pytest
from mixed_systems import made_up, mix, nonbonded_of, without_bonds
from mm_systems import SOLUTE, cluster, energy_and_forces, mm_system, selected
from openmm import app

PHI = (4, 6, 8, 14)
clone = openmm.XmlSerializer.clone


def umbrella(name: str = "umbrella", global_parameters: bool = True) -> openmm.CustomTorsionForce:
    force = openmm.CustomTorsionForce("0.5*k*(theta-t0)^2")
    for parameter, value in (("k", 500.0), ("t0", 1.0)):
        if global_parameters:
            force.addGlobalParameter(parameter, value)
        else:
            force.addPerTorsionParameter(parameter)
    force.addTorsion(*PHI, [] if global_parameters else [500.0, 1.0])
    force.setName(name)
    return force


def spring(first: int, second: int, name: str = "my restraint") -> openmm.HarmonicBondForce:
    force = openmm.HarmonicBondForce()
    force.addBond(first, second, 1.0, 1000.0)
    force.setName(name)
    return force


def with_and_without(potential, *biases: openmm.Force, **options):
    """The energy and forces that biases add to a mixed system, and those of the biases alone."""
    topology, positions = selected(SOLUTE)
    plain, biased, alone = mm_system(topology), mm_system(topology), openmm.System()
    for _ in SOLUTE:
        alone.addParticle(12.0)
    for bias in biases:
        biased.addForce(clone(bias))
        alone.addForce(clone(bias))
    got = energy_and_forces(mix(biased, topology, SOLUTE, potential, **{"replace": (), **options}), positions)
    without = energy_and_forces(mix(plain, topology, SOLUTE, potential), positions)
    return (got[0] - without[0], got[1] - without[1]), energy_and_forces(alone, positions)


@pytest.mark.nightly_for("None")
@pytest.mark.parametrize("interpolate", [None, "lam"])
def test_an_umbrella_and_a_restraint_are_kept(potential, interpolate, caplog):
    with caplog.at_level(logging.INFO):
        added, expected = with_and_without(potential, umbrella(), spring(0, 18), interpolate=interpolate)
    assert expected[0] > 100
    assert added[0] == pytest.approx(expected[0], rel=1e-8)
    assert added[1] == pytest.approx(expected[1], abs=1e-6)
    assert "CustomTorsionForce 'umbrella' (force 4) is kept" in caplog.text
    assert "'my restraint' (force 5) keeps 1 terms inside the ML region that follow no bonds: atoms 0-18" in caplog.text


def test_the_parameter_of_an_umbrella_still_acts_and_is_not_scaled(potential):
    topology, positions = selected(SOLUTE)
    system = mm_system(topology)
    system.addForce(umbrella())
    mixed = mix(system, topology, SOLUTE, potential, interpolate="lam", replace=())
    bias = with_and_without(potential, umbrella())[1][0]
    for value in (0.0, 1.0):
        weak, strong = (energy_and_forces(mixed, positions, k=k, lam=value)[0] for k in (500.0, 5000.0))
        assert strong - weak == pytest.approx(9 * bias, rel=1e-6)


@pytest.mark.parametrize(
    ("force", "message"),
    [
        (
            umbrella("mine", False),
            r"CustomTorsionForce 'mine' \(force 4\) and another force have terms on the same atoms",
        ),
        (spring(4, 6, "mine"), r"HarmonicBondForce 'mine' \(force 4\) and another force .* region, 4-6: add its name"),
    ],
)
def test_what_could_be_either_is_refused_until_it_is_named(potential, force, message):
    with pytest.raises(ValueError, match=message):
        with_and_without(potential, force)
    added, expected = with_and_without(potential, force, keep=["mine"])
    assert expected[0] > 10
    assert added[0] == pytest.approx(expected[0], rel=1e-6)
    added, _ = with_and_without(potential, force, replace="mine")
    assert added[0] == pytest.approx(0, abs=1e-6)


def test_global_parameters_without_other_terms_on_the_atoms_are_refused(potential):
    system, topology, _ = made_up()
    with pytest.raises(ValueError, match=r"CustomBondForce \(force 5\) has global parameters \(common\) and terms"):
        mix(system, topology, range(6), potential, replace=["CustomAngleForce", "CustomTorsionForce"])


def test_forces_of_unknown_action_may_be_kept(potential):
    inner = openmm.CustomTorsionForce("theta")
    inner.addTorsion(*PHI, [])
    outer = openmm.CustomCVForce("50*angle^2")
    outer.addCollectiveVariable("angle", inner)
    outer.setName("metadynamics")
    with pytest.raises(ValueError, match=r"unknown, got CustomCVForce 'metadynamics' .* add its name to keep"):
        with_and_without(potential, outer)
    added, expected = with_and_without(potential, outer, keep=["metadynamics"])
    assert expected[0] > 10
    assert added[0] == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.nightly
def test_a_topology_without_bonds_does_not_keep_the_force_field(potential):
    topology, positions = cluster(1)
    bare = without_bonds(topology)
    for constraints in (None, app.HBonds, app.AllBonds):
        system = mm_system(topology, constraints=constraints)
        expected, got = (energy_and_forces(mix(system, t, SOLUTE, potential), positions) for t in (topology, bare))
        assert got[0] == pytest.approx(expected[0], rel=1e-12)
        with pytest.raises(ValueError, match=r"atom 4 \(ACE 1 C\) is inside and atom 6 \(ALA 2 N\), bonded to it"):
            mix(system, bare, range(6), potential)


def test_names_are_checked(potential):
    topology, _ = selected(SOLUTE)
    system = mm_system(topology)
    for options, message in [
        (dict(keep=["umbrela"]), r"keep must name forces of the system, \['Harmonic.*got 'umbrela'"),
        (dict(replace="x"), "replace must name forces of the system"),
        (dict(keep=["NonbondedForce"]), "keep must not name a NonbondedForce"),
        (dict(keep=["HarmonicBondForce"], replace=["HarmonicBondForce"]), "got 'HarmonicBondForce' in both"),
    ]:
        with pytest.raises(ValueError, match=message):
            mix(system, topology, SOLUTE, potential, **options)
    with pytest.raises(TypeError, match="keep must be names of forces, got <openmm"):
        mix(system, topology, SOLUTE, potential, keep=[nonbonded_of(system)])
