"""Regions, forces and options that make no ML/MM system."""

import numpy as np
import openmm
import pytest
from mixed_systems import LAMBDA, made_up, mix
from mm_systems import SOLUTE, cluster, mm_system, selected, water_box
from openmm import app, unit

from torchmdx.models.priors.coulomb import CoulombConfig


def test_cut_bonds_are_refused_by_name(potential) -> None:
    topology, _ = cluster(1)
    system = mm_system(topology)
    with pytest.raises(
        ValueError,
        match=r"without link atoms: atom 4 \(ACE 1 C\) is inside and atom 6 \(ALA 2 N\), bonded to it, is not",
    ):
        mix(system, topology, range(6), potential)
    with pytest.raises(ValueError, match=r"atom 22 \(HOH \S+ O\) is inside and atom 23 \(HOH \S+ H1\)"):
        mix(system, topology, [*SOLUTE, 22], potential)


def test_bonds_that_the_topology_lacks_are_found_in_the_system(potential) -> None:
    system, topology, _ = made_up()
    mix(system, topology, range(6), potential)  # 5-6 could be a restraint: it keeps its nonbonded interaction
    standard = openmm.NonbondedForce()
    for _ in range(10):
        standard.addParticle(0, 1, 0)
    standard.addException(6, 5, 0, 1, 0)
    system.addForce(standard)
    with pytest.raises(ValueError, match=r"atom 5 \(AR 1 A5\) is inside and atom 6 \(AR 1 A6\)"):
        mix(system, topology, range(6), potential)


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        ([], "at least one atom, got none"),
        ([22, 23, 24, 22], "must not be repeated, got 22 more than once"),
        ([-1, 22], "must be between 0 and 24, got -1"),
        ([22, 25], "must be between 0 and 24, got 25"),
    ],
)
def test_regions_that_are_none(potential, atoms, message) -> None:
    topology, _ = cluster(1)
    with pytest.raises(ValueError, match=message):
        mix(mm_system(topology), topology, atoms, potential)


def test_topology_of_another_system(potential) -> None:
    with pytest.raises(ValueError, match="must have the same atoms, got 25 and 28"):
        mix(mm_system(cluster(1)[0]), cluster(2)[0], SOLUTE, potential)


def test_virtual_sites(potential) -> None:
    topology, positions = cluster(2)
    field = app.ForceField("amber14-all.xml", "amber14/tip4pew.xml")
    modeller = app.Modeller(topology, positions * unit.nanometer)
    modeller.addExtraParticles(field)
    system = field.createSystem(modeller.topology)
    with pytest.raises(
        ValueError, match=r"sites, got particle 25, a site on atoms \[22, 23, 24\]: leave this molecule"
    ):
        mix(system, modeller.topology, [22, 23, 24], potential)
    mix(system, modeller.topology, SOLUTE, potential)


def test_a_potential_that_takes_charges_as_given_is_refused(make_potential) -> None:
    given = make_potential(priors=[lambda: CoulombConfig(charges="given")])
    topology, _ = selected(SOLUTE)
    with pytest.raises(ValueError, match="must predict its charges or have none: OpenMM Systems have no partial char"):
        mix(mm_system(topology), topology, SOLUTE, given)


def unknown_forces() -> list[openmm.Force]:
    centroid = openmm.CustomCentroidBondForce(2, "distance(g1,g2)")
    centroid.addGroup([0, 1])
    centroid.addGroup([4, 5])
    centroid.addBond([0, 1])
    drude = openmm.DrudeForce()
    drude.addParticle(8, 5, -1, -1, -1, 1, 1, 1, 1)
    born = openmm.CustomGBForce()
    for _ in range(10):
        born.addParticle([])
    born.addExclusion(0, 1)
    biased = openmm.CustomCVForce("1")
    biased.setName("umbrella")
    return [
        centroid,
        drude,
        born,
        biased,
        openmm.AmoebaVdwForce(),
        openmm.AmoebaMultipoleForce(),
        openmm.AmoebaTorsionTorsionForce(),
        openmm.HippoNonbondedForce(),
        openmm.GayBerneForce(),
        openmm.CustomManyParticleForce(3, "1"),
        openmm.CustomHbondForce("1"),
        openmm.PythonForce(_nothing),
        openmm.PythonForce(_nothing, {}, [5, 6]),
    ]


def _nothing(state: openmm.State) -> tuple[float, np.ndarray]:
    return 0.0, np.zeros((len(state.getPositions()), 3))


@pytest.mark.parametrize("force", unknown_forces(), ids=lambda force: type(force).__name__)
def test_forces_that_cannot_be_taken_apart_are_refused_by_name(potential, force) -> None:
    system, topology, _ = made_up()
    system.addForce(force)
    kind = type(force).__name__
    title = "CustomCVForce 'umbrella'" if kind == "CustomCVForce" else kind
    why = "belongs to a polarizable" if kind.startswith(("Amoeba", "Hippo", "Drude")) else "is a bias"
    with pytest.raises(ValueError, match=rf"unknown, got {title} \(force 9\)\. (It|If it) {why}"):
        mix(system, topology, range(6), potential)


def test_forces_clear_of_the_region_are_kept(potential) -> None:
    system, topology, positions = made_up()
    python = openmm.PythonForce(_nothing, {}, [8, 9])
    centroid = openmm.CustomCentroidBondForce(2, "distance(g1,g2)")
    centroid.addGroup([0, 1])
    centroid.addGroup([5, 6])
    centroid.addBond([0, 1])
    born = openmm.GBSAOBCForce()
    for _ in range(10):
        born.addParticle(0.2, 0.2, 0.8)
    for force in (python, centroid, born, openmm.RMSDForce(positions)):
        system.addForce(force)
    mixed = mix(system, topology, range(6), potential)
    assert mixed.getNumForces() == system.getNumForces() + 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(interpolate="1-x"), "must be the name of a parameter, got '1-x'"),
        (dict(interpolate="common"), "a name that no energy expression uses, got 'common'"),
        (dict(interpolate="r"), "a name that no energy expression uses, got 'r'"),
        (
            dict(interpolate="a", scale_parameter="b"),
            "scale_parameter must be None with it, got 'b' and interpolate 'a'",
        ),
    ],
)
def test_names_of_parameters(potential, options, message) -> None:
    system, topology, _ = made_up()
    with pytest.raises(ValueError, match=message):
        mix(system, topology, range(6), potential, **options)


def test_interpolation_with_a_switched_ljpme_is_refused(potential) -> None:
    topology, _ = water_box()
    system = mm_system(topology, nonbondedMethod=app.LJPME, nonbondedCutoff=0.75, switchDistance=0.6)
    mix(system, topology, SOLUTE, potential)
    with pytest.raises(ValueError, match="LJPME without a switching function"):
        mix(system, topology, SOLUTE, potential, interpolate=LAMBDA)
