"""ML/MM systems against the sum of parts that are computed apart."""

import numpy as np
import openmm
import pytest
from mixed_systems import FF19, force_of, mix, nonbonded_of, solute_and_far_water
from mm_systems import (
    BOX,
    SOLUTE,
    assert_same,
    cluster,
    energy_and_forces,
    ml_energy_and_forces,
    mm_system,
    selected,
    water_box,
)
from openmm import app, unit

from torchmdx.openmm.native import native


@pytest.mark.parametrize("names", [(), FF19], ids=["ff14SB", "ff19SB"])
@pytest.mark.parametrize("waters", [(), (0,), (0, 3)], ids=["solute", "and a water", "and two"])
def test_energy_is_whole_minus_isolated_region_plus_potential(potential, names, waters) -> None:
    topology, positions = cluster()
    region = [*SOLUTE, *(22 + 3 * water + site for water in waters for site in range(3))]
    whole = energy_and_forces(mm_system(topology, *names), positions)
    mixed = energy_and_forces(mix(mm_system(topology, *names), topology, region, potential), positions)

    modeller = app.Modeller(topology, positions * unit.nanometer)
    modeller.delete([atom for atom in topology.atoms() if atom.index not in region])
    isolated = energy_and_forces(mm_system(modeller.topology, *names), positions[region])
    learned = ml_energy_and_forces(potential, topology, positions, region)
    forces = whole[1].copy()
    forces[region] += learned[1] - isolated[1]
    assert abs(isolated[0]) > 1
    assert abs(learned[0]) > 1
    assert_same(mixed, (whole[0] - isolated[0] + learned[0], forces), 1e-10)


def test_polarizable_water_outside_is_kept(potential) -> None:
    """SWM4-NDP, with displaced Drude particles: the same sum, for given positions of all particles."""
    field = app.ForceField("amber14-all.xml", "swm4ndp.xml")
    waters, alone = cluster(2), selected(SOLUTE)[0]
    modeller = app.Modeller(waters[0], waters[1] * unit.nanometer)
    modeller.addExtraParticles(field)
    topology, positions = modeller.topology, np.array(modeller.positions.value_in_unit(unit.nanometer))
    system = field.createSystem(topology)
    (drude,) = (force for force in system.getForces() if isinstance(force, openmm.DrudeForce))
    moved = [drude.getParticleParameters(index)[0] for index in range(drude.getNumParticles())]
    assert len(moved) == 2
    positions[moved] += 0.004
    whole = energy_and_forces(system, positions)
    mixed = energy_and_forces(mix(system, topology, SOLUTE, potential), positions)
    isolated = energy_and_forces(field.createSystem(alone), positions[list(SOLUTE)])
    learned = ml_energy_and_forces(potential, alone, positions, SOLUTE)
    forces = whole[1].copy()
    forces[list(SOLUTE)] += learned[1] - isolated[1]
    assert_same(mixed, (whole[0] - isolated[0] + learned[0], forces), 1e-10)


def test_water_is_a_region_in_the_middle_of_the_system_and_order_is_free(potential) -> None:
    topology, positions = cluster(3)
    region = [27, 25, 26]
    learned = ml_energy_and_forces(potential, topology, positions, sorted(region))
    got = energy_and_forces(mix(mm_system(topology), topology, region, potential, force_group=7), positions)
    water = app.Modeller(topology, positions * unit.nanometer)
    water.delete([atom for atom in topology.atoms() if atom.index not in region])
    isolated = energy_and_forces(mm_system(water.topology), positions[sorted(region)])
    whole = energy_and_forces(mm_system(topology), positions)
    assert got[0] == pytest.approx(whole[0] - isolated[0] + learned[0], rel=1e-10)


def test_charge_name_and_group_reach_the_potential(make_potential) -> None:
    topology, _ = cluster(1)
    mixed = mix(mm_system(topology), topology, SOLUTE, make_potential(), force_group=5, name="inner", skin=0.5)
    force = mixed.getForce(mixed.getNumForces() - 1)
    assert force.getName() == "inner"
    assert force.getForceGroup() == 5


def test_scale_parameter_multiplies_the_potential_alone(potential) -> None:
    topology, positions = cluster(2)
    mixed = mix(mm_system(topology), topology, SOLUTE, potential, scale_parameter="strength")
    learned = ml_energy_and_forces(potential, topology, positions, SOLUTE)[0]
    full, none = (energy_and_forces(mixed, positions, strength=value)[0] for value in (1.0, 0.0))
    assert full - none == pytest.approx(learned, rel=1e-10)


def test_the_given_system_is_left_alone(potential) -> None:
    topology, _ = cluster(2)
    system = mm_system(topology, constraints=app.HBonds)
    before = openmm.XmlSerializer.serialize(system)
    mix(system, topology, SOLUTE, potential)
    assert openmm.XmlSerializer.serialize(system) == before


def test_constraints_inside_go_and_all_else_stays(potential) -> None:
    topology, _ = cluster(2)
    system = mm_system(topology, constraints=app.HBonds, rigidWater=True, hydrogenMass=3, removeCMMotion=True)
    system.addForce(openmm.AndersenThermostat(300, 1))
    system.addForce(openmm.CustomExternalForce("x"))
    system.addConstraint(0, 22, 1.0)  # across

    def pairs(of: openmm.System) -> set[frozenset[int]]:
        return {frozenset(of.getConstraintParameters(index)[:2]) for index in range(of.getNumConstraints())}

    mixed = mix(system, topology, SOLUTE, potential)
    assert pairs(mixed) == {pair for pair in pairs(system) if not pair <= set(SOLUTE)}
    assert len(pairs(mixed)) == 7
    assert pairs(mix(system, topology, SOLUTE, potential, remove_constraints=False)) == pairs(system)
    masses = [[of.getParticleMass(index)._value for index in range(of.getNumParticles())] for of in (system, mixed)]
    assert masses[0] == masses[1]
    kinds = [[type(force).__name__ for force in of.getForces()] for of in (system, mixed)]
    assert kinds[1][: len(kinds[0])] == kinds[0]
    assert kinds[1][len(kinds[0]) :] == ["CustomBondForce", "PythonForce"]  # bonds without energy, and the potential


@pytest.mark.parametrize("options", [{}, dict(interpolate="lam"), dict(difference_group=3)], ids=str)
@pytest.mark.parametrize("link_atoms", [False, True])
def test_the_region_stays_a_molecule(potential, options, link_atoms) -> None:
    """For barostats, which scale the distances between molecules, and in positions that are wrapped into the box."""
    topology, positions = water_box()
    system = mm_system(
        topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75, constraints=app.HBonds, flexibleConstraints=True
    )
    region = range(8, 14) if link_atoms else SOLUTE
    mixed = mix(system, topology, region, potential, link_atoms=link_atoms, **options)
    platform = openmm.Platform.getPlatformByName("Reference")
    contexts = [openmm.Context(each, openmm.VerletIntegrator(1), platform) for each in (system, mixed)]
    assert sorted(map(sorted, contexts[1].getMolecules())) == sorted(map(sorted, contexts[0].getMolecules()))
    contexts[1].setPositions(positions + np.array([1.1, 0.9, -3.3]))
    wrapped = contexts[1].getState(positions=True, enforcePeriodicBox=True).getPositions(asNumpy=True)._value
    difference = wrapped[:22] - positions[:22]
    np.testing.assert_allclose(difference - difference[0], 0, atol=1e-9)


def test_barostat_and_box_stay(potential) -> None:
    topology, _ = water_box()
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    system.addForce(openmm.MonteCarloBarostat(1, 300, 25))
    mixed = mix(system, topology, SOLUTE, potential)
    assert force_of(mixed, "MonteCarloBarostat").getFrequency() == 25
    assert mixed.getDefaultPeriodicBoxVectors() == system.getDefaultPeriodicBoxVectors()


def test_implicit_solvent_keeps_answering_to_the_whole(potential) -> None:
    names = ("amber14-all.xml", "amber14/tip3p.xml", "implicit/obc2.xml")
    topology, positions = selected(SOLUTE)
    dissolved = mm_system(topology, *names)
    got = energy_and_forces(mix(dissolved, topology, SOLUTE, potential), positions)
    solvation = energy_and_forces(dissolved, positions)[0] - energy_and_forces(mm_system(topology), positions)[0]
    learned = ml_energy_and_forces(potential, topology, positions, SOLUTE)[0]
    assert solvation < -10
    assert got[0] == pytest.approx(learned + solvation, rel=1e-9)


def coulomb_and_lennard_jones(system: openmm.System, positions: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    """kJ/mol of the pairs' nearest images, written out; 1/r without, Lennard-Jones with the cutoff."""
    force = nonbonded_of(system)
    particles = [[value._value for value in force.getParticleParameters(index)] for index in range(len(positions))]
    excepted = {
        frozenset(values[:2]): [value._value for value in values[2:]]
        for values in map(force.getExceptionParameters, range(force.getNumExceptions()))
    }
    total = 0.0
    for i, j in pairs:
        vector = positions[i] - positions[j]
        r = np.linalg.norm(vector - BOX * np.round(vector / BOX))
        (qi, si, ei), (qj, sj, ej) = particles[i], particles[j]
        product, sigma, epsilon = excepted.get(frozenset((i, j)), (qi * qj, (si + sj) / 2, np.sqrt(ei * ej)))
        within = frozenset((i, j)) in excepted or r < force.getCutoffDistance()._value
        total += 138.93545764438198 * product / r + within * 4 * epsilon * ((sigma / r) ** 12 - (sigma / r) ** 6)
    return total


@pytest.mark.nightly_for("method1")
@pytest.mark.parametrize("method", [app.Ewald, app.PME])
def test_a_lattice_sum_loses_each_pairs_nearest_image(potential, method) -> None:
    topology, positions = water_box()
    system = mm_system(topology, nonbondedMethod=method, nonbondedCutoff=0.75, ewaldErrorTolerance=1e-6)
    for index, force in enumerate(system.getForces()):
        force.setForceGroup(index)
    region = solute_and_far_water(positions)
    mixed = mix(system, topology, region, potential, force_group=31)
    group = 1 << nonbonded_of(system).getForceGroup()

    def nonbonded(of: openmm.System) -> float:
        context = openmm.Context(of, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
        context.setPositions(positions)
        return context.getState(energy=True, groups=group).getPotentialEnergy()._value

    pairs = [(i, j) for i in region for j in region if i < j]
    removed = coulomb_and_lennard_jones(system, positions, pairs)
    assert abs(removed) > 50
    assert nonbonded(system) - nonbonded(mixed) == pytest.approx(removed, abs=2e-3)


def test_what_a_lattice_sum_keeps_is_between_images(potential) -> None:
    """A neutral molecule in an empty box keeps what a cubic lattice of its dipoles has, -2π/3 μ²/(4πε₀ L³)."""
    topology, positions = selected(SOLUTE)
    box = 9.0
    topology.setUnitCellDimensions(openmm.Vec3(box, box, box))
    system = mm_system(topology, nonbondedMethod=app.Ewald, nonbondedCutoff=2.0, ewaldErrorTolerance=1e-9)
    force = nonbonded_of(system)
    force.setUseDispersionCorrection(False)
    dipole = np.array([force.getParticleParameters(index)[0]._value for index in SOLUTE]) @ positions
    learned = ml_energy_and_forces(potential, topology, positions, SOLUTE)[0]
    kept = energy_and_forces(mix(system, topology, SOLUTE, potential), positions)[0] - learned
    assert kept == pytest.approx(-2 * np.pi / 3 * 138.93545764438198 * (dipole @ dipole) / box**3, rel=0.05)


def test_a_wrapped_region_has_the_energy_of_a_whole_one(potential) -> None:
    topology, positions = water_box()
    region = [22, 23, 24, 25, 26, 27]
    system = mm_system(topology, nonbondedMethod=app.PME, nonbondedCutoff=0.75)
    mixed = mix(system, topology, region, potential)
    moved = positions.copy()
    moved[25:28] += (BOX, -BOX, 0)
    assert_same(energy_and_forces(mixed, moved), energy_and_forces(mixed, positions), 1e-9)


@pytest.mark.parametrize("transport", ["python", "native"])
def test_two_regions_one_after_the_other(make_potential, transport) -> None:
    if transport == "native" and (reason := native.unavailable(cuda=False)) is not None:
        pytest.skip(f"no plugin: {reason}")
    topology, positions = cluster(3)
    first, second = make_potential(seed=1), make_potential(seed=2)
    system, water = mm_system(topology), (25, 26, 27)
    whole = energy_and_forces(system, positions)[0]
    one = mix(system, topology, SOLUTE, first, name="one", transport=transport)
    other = mix(system, topology, water, second, name="other", transport=transport)
    both = mix(one, topology, water, second, name="other", transport=transport)
    with pytest.raises(ValueError, match="no force whose part inside the ML region is unknown, got .*Force 'one'"):
        mix(one, topology, SOLUTE, second)
    separate = [energy_and_forces(mixed, positions)[0] - whole for mixed in (one, other)]
    assert min(map(abs, separate)) > 1
    assert energy_and_forces(both, positions)[0] - whole == pytest.approx(sum(separate), rel=1e-10)
