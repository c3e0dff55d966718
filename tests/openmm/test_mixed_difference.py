"""The difference E_ML - E_MM of a region as a force group of its own, and multiple time steps with it."""

import numpy as np
import openmm
import pytest
from mixed_systems import METHODS, mix, solute_and_far_water, system_with, with_custom_nonbonded
from mm_systems import SOLUTE, assert_same, cluster, energy_and_forces, mm_system
from openmm import app, unit

from torchmdx.openmm import find, request_derivative

GROUP = 7


def of_group(system, positions, group, **parameters):
    context = openmm.Context(system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    for name, value in parameters.items():
        context.setParameter(name, value)
    state = context.getState(energy=True, forces=True, groups=group)
    return state.getPotentialEnergy()._value, state.getForces(asNumpy=True)._value


@pytest.mark.nightly_for("Ewald", "periodic reaction field", "LJPME", "PME with own width", "reaction field")
@pytest.mark.parametrize("method", METHODS)
def test_the_whole_is_the_mixed_system_and_the_rest_the_force_field(potential, method):
    system, topology, positions = system_with(method)
    region = solute_and_far_water(positions)
    split = mix(system, topology, region, potential, difference_group=GROUP)
    mechanical = energy_and_forces(system, positions)
    learned = energy_and_forces(mix(system, topology, region, potential), positions)
    assert_same(energy_and_forces(split, positions), learned, 1e-8)
    assert_same(of_group(split, positions, 1), mechanical, 1e-12)
    difference = of_group(split, positions, 1 << GROUP)
    assert difference[0] == pytest.approx(learned[0] - mechanical[0], rel=1e-6)
    assert [found.force.getForceGroup() for found in find(split)] == [GROUP]


def test_with_interpolation_only_the_difference_is_scaled(potential):
    system, topology, positions = with_custom_nonbonded([])
    split = mix(system, topology, range(6), potential, difference_group=GROUP, interpolate="lam")
    whole = mix(system, topology, range(6), potential, interpolate="lam")
    for value in (0.0, 0.3, 1.0):
        ends = (energy_and_forces(each, positions, lam=value) for each in (split, whole))
        assert_same(*ends, 1e-8)
        assert_same(of_group(split, positions, 1, lam=value), energy_and_forces(system, positions), 1e-12)
    request_derivative(split, "lam")
    context = openmm.Context(split, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    one, zero = (energy_and_forces(whole, positions, lam=value)[0] for value in (1.0, 0.0))
    found = context.getState(parameterDerivatives=True).getEnergyParameterDerivatives()["lam"]
    assert found == pytest.approx(one - zero, rel=1e-8)


@pytest.mark.nightly
def test_a_multiple_time_step_integrator_follows_small_steps(potential):
    """With the difference once in four steps: as with all forces in each, to the order of the step."""
    topology, positions = cluster(1)
    system = mm_system(topology)
    split = mix(system, topology, SOLUTE, potential, difference_group=1)
    ends = []
    for integrator, steps in (
        (openmm.MTSIntegrator(0.4 * unit.femtosecond, [(1, 1), (0, 4)]), 10),
        (openmm.VerletIntegrator(0.1 * unit.femtosecond), 40),
        (openmm.VerletIntegrator(0.4 * unit.femtosecond), 10),
    ):
        context = openmm.Context(split, integrator, openmm.Platform.getPlatformByName("Reference"))
        context.setPositions(positions)
        integrator.step(steps)
        ends.append(np.array(context.getState(positions=True).getPositions(asNumpy=True)._value))
    assert np.abs(ends[1] - positions).max() > 1e-3
    small, plain = np.abs(ends[0] - ends[1]).max(), np.abs(ends[2] - ends[1]).max()
    assert small < 1e-4
    assert small < plain


def test_groups_and_constraints_are_checked(potential):
    topology, _ = cluster(1)
    system = mm_system(topology, constraints=app.HBonds)
    for options, message in [
        (dict(difference_group=0), "a group that no force of the system has, got 0, the group of HarmonicBondForce"),
        (dict(difference_group=32), "difference_group must be between 0 and 31, got 32"),
        (dict(difference_group=3, force_group=4), "takes the place of force_group, which must be 0 with it, got 4"),
        (dict(difference_group=3), "interpolate and difference_group need a bond or an angle in place of each removed"),
    ]:
        with pytest.raises(ValueError, match=message):
            mix(system, topology, SOLUTE, potential, **options)
    kept = mix(system, topology, SOLUTE, potential, difference_group=3, remove_constraints=False)
    assert kept.getNumConstraints() == system.getNumConstraints()
    flexible = mm_system(topology, constraints=app.HBonds, flexibleConstraints=True)
    assert mix(flexible, topology, SOLUTE, potential, difference_group=3).getNumConstraints() == 2
