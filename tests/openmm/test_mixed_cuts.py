"""Regions that cut bonds: which terms of the force field stay, against openmm-ml, and what is refused."""

import numpy as np
import openmm
import pytest
from mixed_systems import FF19, LAMBDA, force_of, mix
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system, selected, water_box
from openmm import app, unit

from torchmdx import save
from torchmdx.openmm.find import find
from torchmdx.openmm.link_atoms import LinkAtom
from torchmdx.openmm.mixed_cuts import _HYDROGEN, _RADII, Border

ALANINE = tuple(range(8, 14))
REGIONS = {
    "alanine": ALANINE,
    "acetyl": tuple(range(6)),
    "side chain": tuple(range(10, 14)),
    "residue": tuple(range(6, 16)),
}


@pytest.mark.nightly_for("ff19SB")
@pytest.mark.parametrize("names", [(), FF19], ids=["ff14SB", "ff19SB"])
@pytest.mark.parametrize("region", REGIONS)
def test_as_openmmml(potential, tmp_path, region, names) -> None:
    """Its link atoms are virtual sites, whose forces OpenMM distributes; its terms are removed by its own code."""
    pytest.importorskip("openmmml")
    from openmmml.embeddings.mechanicalembedding import MechanicalEmbedding

    from torchmdx.openmm.openmmml import PotentialFactory

    save(potential, tmp_path / "model.safetensors")
    topology, positions = cluster(2)
    options = dict(transport="python", device="cpu", precision="float64")
    impl = PotentialFactory().createImpl("torchmdx", str(tmp_path / "model.safetensors"))
    theirs = MechanicalEmbedding().createMixedSystem(
        impl, topology, mm_system(topology, *names), list(REGIONS[region]), 0, True, returnInfo=True, **options
    )
    mixed = mix(mm_system(topology, *names), topology, REGIONS[region], potential, link_atoms=True, interpolate=LAMBDA)
    added = theirs["system"].getNumParticles() - len(positions)
    assert added == len(find(mixed)[0].link_atoms) > 0
    for value in (0.0, 0.4, 1.0):
        context = openmm.Context(
            theirs["system"], openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
        )
        context.setPositions(np.vstack([positions, np.zeros((added, 3))]))
        context.computeVirtualSites()
        context.setParameter("lambda_interpolate", value)
        state = context.getState(energy=True, forces=True)
        forces = np.array(state.getForces(asNumpy=True)._value)[: len(positions)]
        wanted = state.getPotentialEnergy()._value, forces
        assert_same(energy_and_forces(mixed, positions, **{LAMBDA: value}), wanted, 2e-7)


def test_the_distances_are_those_of_openmmml() -> None:
    utilities = pytest.importorskip("openmmml.embeddings.utilities")
    for symbol, radius in {**_RADII, "H": _HYDROGEN}.items():
        number = app.Element.getBySymbol(symbol).atomic_number
        assert utilities.COVALENT_RADII[number].value_in_unit(unit.nanometer) == pytest.approx(radius)


def test_terms_that_stay(potential) -> None:
    """CA, HA and CB of alanine: of the terms at the border the bonds stay, and angles around N and C."""
    topology, _ = selected(SOLUTE)
    mixed = mix(mm_system(topology), topology, ALANINE, potential, link_atoms=True)
    bonds, angles = force_of(mixed, "HarmonicBondForce"), force_of(mixed, "HarmonicAngleForce")
    torsions = force_of(mixed, "PeriodicTorsionForce")
    region = set(ALANINE)
    pairs = {frozenset(bonds.getBondParameters(k)[:2]) for k in range(bonds.getNumBonds())}
    assert {pair for pair in pairs if pair & region} == {frozenset((6, 8)), frozenset((8, 14))}
    middles = {angles.getAngleParameters(k)[1] for k in range(angles.getNumAngles())}
    assert middles == {1, 4, 6, 14, 16, 18}
    left = {tuple(torsions.getTorsionParameters(k)[:4]) for k in range(torsions.getNumTorsions())}
    assert not [term for term in left if region.issuperset(term[1:3])]
    assert [term for term in left if set(term[1:3]) == {6, 8}]


def test_what_is_inside() -> None:
    """A chain 0-1-2-3-4-5 with 6 on 2; the region is 1, 2 and 6, its outer atoms 0 and 3."""
    bonds = frozenset(frozenset(pair) for pair in ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (2, 6)))
    links = (LinkAtom(1, 0, 0.1), LinkAtom(2, 3, 0.1))
    border, uncapped = Border(frozenset((1, 2, 6)), links, bonds), Border(frozenset((1, 2, 6)))
    inside = {"Bond": [(1, 2)], "Angle": [(0, 1, 2), (1, 2, 3), (1, 2, 6), (3, 2, 6)]}
    inside["Torsion"] = [(0, 1, 2, 3), (0, 1, 2, 6), (2, 1, 3, 6), (0, 1, 2, 3, 1, 2, 6, 3)]
    outside = {"Bond": [(0, 1), (2, 3), (0, 3), (1, 2, 3)], "Angle": [(2, 3, 4), (1, 2, 4), (1, 0, 2)]}
    outside["Torsion"] = [(1, 2, 3, 4), (6, 2, 3, 4), (0, 3, 1, 6), (0, 1, 2, 3, 1, 2, 3, 4)]
    for kind in ("Bond", "Angle", "Torsion"):
        assert [term for term in inside[kind] if not border.includes(term, kind)] == []
        assert [term for term in outside[kind] if border.includes(term, kind)] == []
    assert uncapped.includes((1, 2, 6), "Angle")
    assert not uncapped.includes((0, 1, 2), "Angle")


def test_a_bias_across_the_border_is_kept(potential) -> None:
    topology, positions = cluster(1)
    system = mm_system(topology)
    bias = openmm.CustomTorsionForce("0.5*k*(theta-1)^2")
    bias.addGlobalParameter("k", 500.0)
    bias.addTorsion(6, 8, 10, 11, [])
    system.addForce(bias)
    mixed = mix(system, topology, ALANINE, potential, link_atoms=True, replace=())
    assert force_of(mixed, "CustomTorsionForce").getNumTorsions() == 1
    energies = [energy_and_forces(mixed, positions, k=k)[0] for k in (0.0, 500.0)]
    assert energies[1] - energies[0] > 1


def test_an_uncut_region_needs_none(potential) -> None:
    topology, positions = cluster(1)
    mixed = mix(mm_system(topology), topology, SOLUTE, potential, link_atoms=True)
    assert find(mixed)[0].link_atoms == ()
    plain = mix(mm_system(topology), topology, SOLUTE, potential)
    assert_same(energy_and_forces(mixed, positions), energy_and_forces(plain, positions), 1e-12)


@pytest.mark.parametrize(
    ("atoms", "request_", "message"),
    [
        (ALANINE, False, r"without link atoms: atom 8 \(ALA 2 CA\) is inside and atom 6 \(ALA 2 N\)"),
        (ALANINE, [(8, 10, 0.1)], "must name bonds that the ML region cuts, got atoms 8 and 10"),
        (ALANINE, [(8, 6, 1.09)], "must be between 0.05 and 0.3 nm, got 1.09 nm for atoms 6 and 8"),
        (ALANINE, [(8, 6, float("nan"))], "must be between 0.05 and 0.3 nm, got nan nm"),
        (
            range(1, 6),
            True,
            r"two heavy atoms, got atom 1 \(ACE 1 CH3\) inside and atom 0 \(ACE 1 H1\) outside",
        ),
        ((*range(6), *range(8, 22)), True, r"atom 6 \(ALA 2 N\) outside the ML region is bonded to .* include it"),
    ],
)
def test_regions_and_requests_that_are_refused(potential, atoms, request_, message) -> None:
    topology, _ = selected(SOLUTE)
    system = mm_system(topology)
    with pytest.raises(ValueError, match=message):
        mix(system, topology, atoms, potential, link_atoms=request_)


@pytest.mark.parametrize("wrong", [3, "yes", [(8, 6)], None])
def test_requests_of_another_kind(potential, wrong) -> None:
    topology, _ = selected(SOLUTE)
    with pytest.raises(TypeError, match="link_atoms must be True, False or several"):
        mix(mm_system(topology), topology, ALANINE, potential, link_atoms=wrong)


def test_elements_without_a_distance(potential) -> None:
    from mixed_systems import with_custom_nonbonded

    system, topology, _ = with_custom_nonbonded([])
    atoms = list(topology.atoms())
    topology.addBond(atoms[5], atoms[6])
    with pytest.raises(ValueError, match=r"no distance .* for atom 5 \(AR 1 A5\), element Cl: give it as link_atoms="):
        mix(system, topology, range(6), potential, link_atoms=True)


def test_in_a_box_with_constraints(potential) -> None:
    topology, positions = water_box()
    rigid = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75, constraints=app.HBonds)
    mixed = mix(rigid, topology, ALANINE, potential, link_atoms=True)
    pairs = [frozenset(mixed.getConstraintParameters(k)[:2]) for k in range(mixed.getNumConstraints())]
    assert not [pair for pair in pairs if pair & set(ALANINE)]
    assert frozenset((6, 7)) in pairs
    assert np.isfinite(energy_and_forces(mixed, positions)[1]).all()
