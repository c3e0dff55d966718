"""Covalent bonds of a System: Urey-Bradley terms and restraints are none, and a topology may lack bonds."""

import numpy as np
import openmm
import pytest
from mixed_systems import LAMBDA, force_of, mix, nonbonded_of, without_bonds
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system, selected
from openmm import app
from other_force_fields import built

from torchmdx import save
from torchmdx.openmm.find import find
from torchmdx.openmm.mixed_bonds import are_near, bonds_inside, covalent_bonds, is_bonded, partners_of

SIDE_CHAIN = tuple(range(10, 14))


def with_urey_bradley(topology: app.Topology, **options: object) -> openmm.System:
    """Amber's, with a harmonic term between the ends of every angle."""
    system = mm_system(topology, **options)
    (angles,) = [force for force in system.getForces() if isinstance(force, openmm.HarmonicAngleForce)]
    added = openmm.HarmonicBondForce()
    for index in range(angles.getNumAngles()):
        first, _, last = angles.getAngleParameters(index)[:3]
        added.addBond(first, last, 0.22, 900.0)
    added.setName("UreyBradley")
    system.addForce(added)
    return system


def bonds_of(topology: app.Topology) -> set[frozenset[int]]:
    return {frozenset((bond[0].index, bond[1].index)) for bond in topology.bonds()}


@pytest.mark.parametrize("constraints", [None, app.HBonds, app.HAngles], ids=str)
def test_urey_bradley_terms_are_no_bonds(constraints) -> None:
    topology, _ = cluster(2)
    system = with_urey_bradley(topology, constraints=constraints, rigidWater=True)
    assert covalent_bonds(system, topology) == bonds_of(topology)


def test_a_topology_may_lack_bonds() -> None:
    topology, _ = selected(SOLUTE)
    system = with_urey_bradley(topology)
    assert covalent_bonds(system, without_bonds(topology)) == bonds_of(topology)
    bare = openmm.System()
    for force in (force for force in system.getForces() if not isinstance(force, openmm.NonbondedForce)):
        bare.addForce(openmm.XmlSerializer.clone(force))
    for _ in SOLUTE:
        bare.addParticle(12.0)
    assert covalent_bonds(bare, without_bonds(topology)) == set()
    inside = {bond for bond in bonds_of(topology) if bond <= set(SIDE_CHAIN)}
    assert bonds_inside(bare, set(), frozenset(SIDE_CHAIN)) == inside


def test_a_ring_of_three_keeps_its_bonds() -> None:
    system, force, angles = openmm.System(), openmm.HarmonicBondForce(), openmm.HarmonicAngleForce()
    nonbonded = openmm.NonbondedForce()
    topology = app.Topology()
    residue = topology.addResidue("RNG", topology.addChain())
    for k in range(3):
        system.addParticle(12.0)
        nonbonded.addParticle(0.0, 0.3, 0.2)
        topology.addAtom(f"C{k}", app.element.carbon, residue)
        force.addBond(k, (k + 1) % 3, 0.15, 1e5)
        nonbonded.addException(k, (k + 1) % 3, 0, 0.3, 0)
        angles.addAngle(k, (k + 1) % 3, (k + 2) % 3, 1.05, 500.0)
    for each in (force, angles, nonbonded):
        system.addForce(each)
    ring = {frozenset(pair) for pair in ((0, 1), (1, 2), (0, 2))}
    assert covalent_bonds(system, topology) == ring


def test_a_bond_that_only_the_force_field_has_is_one() -> None:
    """A crosslink, between atoms far from each other in the topology."""
    topology, _ = selected(SOLUTE)
    system = mm_system(topology)
    force_of(system, "HarmonicBondForce").addBond(1, 18, 0.15, 1e5)
    nonbonded_of(system).addException(1, 18, 0, 0.3, 0)
    assert covalent_bonds(system, topology) == bonds_of(topology) | {frozenset((1, 18))}


def test_graphs_of_bonds() -> None:
    partners = partners_of([frozenset(pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 4))])
    assert [are_near((0, k), partners) for k in range(5)] == [True, True, True, True, False]
    assert [is_bonded((0, k), partners) for k in (1, 2, 3)] == [True, True, False]
    assert is_bonded((0, 1, 2, 3), partners)
    assert not is_bonded((0, 1, 3, 4), partners)


@pytest.mark.parametrize("interpolate", [None, LAMBDA])
def test_link_atoms_beside_urey_bradley_terms(potential, interpolate) -> None:
    """Those inside the region go, those across its border stay."""
    topology, positions = selected(SOLUTE)
    system = with_urey_bradley(topology)
    mixed = mix(
        system, topology, SIDE_CHAIN, potential, link_atoms=True, interpolate=interpolate, replace="UreyBradley"
    )
    assert [(link.inner, link.outer) for link in find(mixed)[0].link_atoms] == [(10, 8)]
    plain = mix(mm_system(topology), topology, SIDE_CHAIN, potential, link_atoms=True)
    (added,) = [force for force in system.getForces() if force.getName() == "UreyBradley"]
    across = openmm.System()
    outer = openmm.HarmonicBondForce()
    for index in range(added.getNumBonds()):
        first, last, *values = added.getBondParameters(index)
        if not {first, last} <= set(SIDE_CHAIN):
            outer.addBond(first, last, *values)
    for _ in SOLUTE:
        across.addParticle(12.0)
    across.addForce(outer)
    assert 0 < outer.getNumBonds() < added.getNumBonds()
    wanted = energy_and_forces(plain, positions)[0] + energy_and_forces(across, positions)[0]
    assert energy_and_forces(mixed, positions)[0] == pytest.approx(wanted, rel=1e-9)
    if interpolate:
        assert_same(energy_and_forces(mixed, positions, **{LAMBDA: 0.0}), energy_and_forces(system, positions), 1e-8)


@pytest.mark.nightly_for("6")
@pytest.mark.parametrize("names", [("CB", "HB1", "HB2", "HB3"), ("CA", "HA", "CB", "HB1", "HB2", "HB3")], ids=len)
def test_link_atoms_with_charmm(potential, tmp_path, names) -> None:
    """As openmm-ml's embedding, from which the 1-4 terms inside the region are taken: it keeps them."""
    pytest.importorskip("openmmml")
    from openmmml.embeddings.mechanicalembedding import MechanicalEmbedding

    from torchmdx.openmm.openmmml import PotentialFactory

    save(potential, tmp_path / "model.safetensors")
    system, topology, positions = built(app.ForceField("charmm36.xml"), ("ALAD",))
    region = [atom.index for atom in topology.atoms() if atom.name in names]
    assert len(region) == len(names)
    stripped = openmm.XmlSerializer.clone(system)
    terms = force_of(stripped, "CustomBondForce")
    for index in range(terms.getNumBonds()):
        first, last, (sigma, epsilon) = terms.getBondParameters(index)
        terms.setBondParameters(index, first, last, [sigma, 0.0 if {first, last} <= set(region) else epsilon])
    mixed = mix(system, topology, region, potential, link_atoms=True, replace=())
    impl = PotentialFactory().createImpl("torchmdx", str(tmp_path / "model.safetensors"))
    options = dict(transport="python", device="cpu", precision="float64", charge=0)
    theirs = MechanicalEmbedding().createMixedSystem(impl, topology, stripped, region, 0, False, True, **options)
    reference = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(theirs["system"], openmm.VerletIntegrator(1), reference)
    links = theirs["system"].getNumParticles() - len(positions)
    context.setPositions(np.vstack([positions, np.zeros((links, 3))]))
    context.computeVirtualSites()
    wanted = context.getState(energy=True).getPotentialEnergy()._value
    assert links == len(find(mixed)[0].link_atoms) > 0
    assert energy_and_forces(mixed, positions)[0] == pytest.approx(wanted, rel=2e-7)
