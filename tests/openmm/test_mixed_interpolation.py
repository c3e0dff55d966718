"""Interpolation between force field and potential, against both ends; terms of every kind."""

import numpy as np
import pytest
from mixed_systems import (
    FF19,
    LAMBDA,
    METHODS,
    force_of,
    made_up,
    mix,
    nonbonded_of,
    solute_and_far_water,
    system_with,
    with_custom_nonbonded,
)
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, ml_energy_and_forces, mm_system
from openmm import app


@pytest.mark.nightly_for("PME with own width", "Ewald", "LJPME")
@pytest.mark.parametrize("method", METHODS)
def test_interpolation_ends_at_both_systems(potential, method) -> None:
    system, topology, positions = system_with(method)
    region = solute_and_far_water(positions)
    both = mix(system, topology, region, potential, interpolate=LAMBDA)
    mechanical = energy_and_forces(system, positions)
    learned = energy_and_forces(mix(system, topology, region, potential), positions)
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    assert_same(energy_and_forces(both, positions), learned, 1e-10)
    between = tuple(0.7 * one + 0.3 * other for one, other in zip(mechanical, learned, strict=True))
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.3}), between, 1e-8)


def test_interpolation_with_cmap(potential) -> None:
    topology, positions = cluster(2)
    system = mm_system(topology, *FF19)
    assert force_of(system, "CMAPTorsionForce").getNumTorsions() == 1
    both = mix(system, topology, SOLUTE, potential, interpolate=LAMBDA)
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), energy_and_forces(system, positions), 1e-8)
    assert force_of(both, "CMAPTorsionForce").getNumTorsions() == 0


def test_force_groups_of_returned_terms_are_those_of_the_removed(potential) -> None:
    topology, _ = cluster(1)
    system = mm_system(topology, *FF19)
    for force in system.getForces():
        force.setForceGroup(3)
    both = mix(system, topology, SOLUTE, potential, interpolate=LAMBDA, force_group=4)
    groups = [force.getForceGroup() for force in both.getForces()]
    assert groups == [3] * (len(groups) - 1) + [4]


def test_constraints_that_nothing_replaces_are_refused(potential) -> None:
    topology, positions = cluster(1)
    rigid = mm_system(topology, constraints=app.HBonds)
    with pytest.raises(ValueError, match=r"there is none between atom 16 \(NME 3 N\) and atom 17 \(NME 3 H\)") as info:
        mix(rigid, topology, SOLUTE, potential, interpolate=LAMBDA)
    assert "flexibleConstraints=True" in str(info.value)
    both = mix(rigid, topology, SOLUTE, potential, interpolate=LAMBDA, remove_constraints=False)
    assert both.getNumConstraints() == rigid.getNumConstraints()
    flexible = mm_system(topology, constraints=app.HBonds, rigidWater=True, flexibleConstraints=True)
    both = mix(flexible, topology, (*SOLUTE, 22, 23, 24), potential, interpolate=LAMBDA)
    assert both.getNumConstraints() == 0
    ends = energy_and_forces(both, positions, **{LAMBDA: 0.0}), energy_and_forces(flexible, positions)
    assert_same(*ends, 1e-8)


ALL_BONDED = [
    "HarmonicBondForce",
    "HarmonicAngleForce",
    "PeriodicTorsionForce",
    "RBTorsionForce",
    "CMAPTorsionForce",
    "CustomBondForce",
    "CustomAngleForce",
    "CustomTorsionForce",
    "CustomCompoundBondForce",
]


@pytest.mark.parametrize("kind", ALL_BONDED)
def test_bonded_terms(potential, kind) -> None:
    system, topology, positions = made_up()
    for index in reversed(range(system.getNumForces())):
        if type(system.getForce(index)).__name__ != kind:
            system.removeForce(index)
    force = system.getForce(0)
    force.setForceGroup(2)
    force.setName("terms")
    region = range(6)
    both = mix(system, topology, region, potential, interpolate=LAMBDA)
    mixed = mix(system, topology, region, potential)

    kept = mixed.getForce(0)
    assert (kept.getName(), kept.getForceGroup()) == ("terms", 2)
    (counter,) = [name for name in ("getNumBonds", "getNumAngles", "getNumTorsions") if hasattr(kept, name)]
    assert 0 < getattr(kept, counter)() < getattr(force, counter)()
    mechanical = energy_and_forces(system, positions)
    assert abs(mechanical[0]) > 0.1
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    assert_same(energy_and_forces(both, positions), energy_and_forces(mixed, positions), 1e-10)
    # Terms inside the region no longer feel its atoms: what is left there comes from terms across.
    outside = energy_and_forces(mixed, positions)[1][6:]
    assert outside == pytest.approx(mechanical[1][6:], rel=1e-9, abs=1e-9)
    learned = ml_energy_and_forces(potential, topology, positions, region)[0]
    only_inside = mechanical[0] - (energy_and_forces(mixed, positions)[0] - learned)
    far = positions.copy()
    far[6:] += 50.0  # nothing inside depends on where the rest is
    elsewhere = energy_and_forces(system, far)[0] - energy_and_forces(mixed, far)[0] + learned
    assert only_inside == pytest.approx(elsewhere, rel=1e-6)


@pytest.mark.parametrize(
    "groups",
    [[], [({0, 1, 2, 3, 7}, {4, 5, 8, 9})], [({0, 1, 8}, {2, 9}), ({3, 4, 5}, {3, 4, 5, 6})]],
    ids=["all pairs", "two groups", "four groups"],
)
def test_custom_nonbonded_force(potential, groups) -> None:
    system, topology, positions = with_custom_nonbonded(groups)
    region = range(6)
    mixed, both = (mix(system, topology, region, potential, interpolate=name) for name in (None, LAMBDA))
    (custom,) = [force for force in mixed.getForces() if force.getName() == "tails"]
    exclusions = {frozenset(custom.getExclusionParticles(index)) for index in range(custom.getNumExclusions())}
    standard = nonbonded_of(mixed)
    exceptions = {frozenset(standard.getExceptionParameters(i)[:2]) for i in range(standard.getNumExceptions())}
    assert exclusions == exceptions  # or platforms other than Reference refuse
    assert len(exclusions) == custom.getNumExclusions() == 15 + 3
    mechanical = energy_and_forces(system, positions)
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    assert_same(energy_and_forces(both, positions), energy_and_forces(mixed, positions), 1e-10)
    assert energy_and_forces(mixed, positions)[1][6:] == pytest.approx(mechanical[1][6:], rel=1e-9, abs=1e-9)


def test_custom_nonbonded_force_that_does_not_act_inside_is_not_given_back(potential) -> None:
    system, topology, positions = with_custom_nonbonded([({0, 1, 2}, {6, 7})])
    both = mix(system, topology, range(6), potential, interpolate=LAMBDA)
    assert [force.getName() for force in both.getForces()].count("tails inside the ML region") == 0
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), energy_and_forces(system, positions), 1e-8)


def test_offsets_of_exceptions_inside_do_not_bring_them_back(potential) -> None:
    system, topology, positions = with_custom_nonbonded([])
    wanted = energy_and_forces(mix(system, topology, range(6), potential), positions)
    standard = nonbonded_of(system)
    standard.addGlobalParameter("offset", 0.7)
    (inside,) = [i for i in range(9) if frozenset(standard.getExceptionParameters(i)[:2]) == {0, 3}]
    standard.addExceptionParameterOffset("offset", inside, 0.5, 0.1, 0.2)
    assert_same(energy_and_forces(mix(system, topology, range(6), potential), positions), wanted, 1e-12)
    with pytest.raises(ValueError, match="that are constant, but there they depend on the global parameter 'offset'"):
        mix(system, topology, range(6), potential, interpolate=LAMBDA)


def test_offsets_of_particles_are_refused_when_interpolating(potential) -> None:
    system, topology, _ = with_custom_nonbonded([])
    nonbonded_of(system).addGlobalParameter("alchemy", 0.7)
    nonbonded_of(system).addParticleParameterOffset("alchemy", 2, 0.5, 0.1, 0.2)
    mix(system, topology, range(6), potential, charge=0)
    with pytest.raises(ValueError, match="depend on the global parameter 'alchemy'"):
        mix(system, topology, range(6), potential, interpolate=LAMBDA, charge=0)


@pytest.mark.nightly_for("custom-CPU", "PME-CPU")
@pytest.mark.parametrize("platform", ["CPU", pytest.param("CUDA", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("method", ["no cutoff", "PME", "LJPME", "custom"])
def test_platforms_agree(potential, platform, method) -> None:
    if method == "custom":
        system, topology, positions = with_custom_nonbonded([])
        region: tuple[int, ...] = tuple(range(6))
    else:
        system, topology, positions = system_with(method)
        region = solute_and_far_water(positions)
    both = mix(system, topology, region, potential, interpolate=LAMBDA)
    # What the platforms make of the MM system itself differs, for LJPME by more than the region is worth.
    own = [energy_and_forces(system, positions, *p) for p in ((), (platform,))]
    for value in (0.0, 0.4, 1.0):
        wanted = energy_and_forces(both, positions, **{LAMBDA: value})
        got = energy_and_forces(both, positions, platform, **{LAMBDA: value})
        got = (got[0] - own[1][0] + own[0][0], got[1] - own[1][1] + own[0][1])
        assert_same(got, wanted, 2e-4)


def test_long_range_correction_of_a_custom_force_is_counted_once(potential) -> None:
    system, topology, positions = with_custom_nonbonded([])
    system.setDefaultPeriodicBoxVectors(*np.eye(3) * 3.0)
    custom, standard = force_of(system, "CustomNonbondedForce"), nonbonded_of(system)
    custom.setEnergyFunction("depth1*depth2/(1+r)^6")
    for force in (custom, standard):
        force.setNonbondedMethod(force.CutoffPeriodic)
        force.setCutoffDistance(0.9)
    short = energy_and_forces(system, positions)[0]
    custom.setUseLongRangeCorrection(True)
    mechanical = energy_and_forces(system, positions)
    assert abs(mechanical[0] - short) > 1
    both, mixed = (mix(system, topology, range(6), potential, interpolate=name) for name in (LAMBDA, None))
    assert_same(energy_and_forces(both, positions, **{LAMBDA: 0.0}), mechanical, 1e-8)
    assert_same(energy_and_forces(both, positions), energy_and_forces(mixed, positions), 1e-10)
