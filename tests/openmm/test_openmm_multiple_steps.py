"""A fast potential and the difference to the full one as two force groups, and multiple time steps with them."""

import copy

import numpy as np
import pytest

openmm = pytest.importorskip("openmm", reason="needs OpenMM")
from boxes import assert_same, context_of, empty_system, expected, found, topology_of  # noqa: E402
from mm_systems import SOLUTE, cluster, energy_and_forces, mm_system  # noqa: E402
from openmm import unit  # noqa: E402
from transports import EXACT, TRANSPORTS  # noqa: E402

from torchmdx import Dynamics, System  # noqa: E402
from torchmdx.openmm import add_difference, add_potential, create_mixed_system, find  # noqa: E402
from torchmdx.openmm.multiple_steps import multiple_step_integrator  # noqa: E402
from torchmdx.structures.units import KJ_PER_MOL, NANOMETER  # noqa: E402


@pytest.fixture
def potential(make_potential):
    return make_potential(num_channels=8, num_layers=1, cutoff=3.0)


@pytest.fixture
def fast(make_potential):
    return make_potential(num_channels=4, num_layers=0, num_radial=4, cutoff=2.5, seed=3)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_the_sum_is_the_potential_and_each_group_its_part(potential, fast, request, transport, name):
    atoms = request.getfixturevalue(name)
    if name == "crystal":  # in a box as OpenMM wants it
        atoms.set_cell([[3.2, 0, 0], [0.5, 3.1, 0], [-0.6, 0.4, 3.3]], scale_atoms=True)
    system = empty_system(atoms)
    first = add_potential(system, topology_of(atoms), fast, transport=transport, **EXACT)
    full = add_difference(system, first, potential, transport=transport)
    assert (full.transport, full.force.getForceGroup()) == (transport, 1)
    assert_same(found(context_of(system, atoms, "Reference")), expected(potential, atoms))
    state = context_of(copy.deepcopy(system), atoms, "Reference").getState(energy=True, forces=True, groups={0})
    energy, forces = expected(fast, atoms)[:2]
    assert KJ_PER_MOL * state.getPotentialEnergy()._value == pytest.approx(energy, rel=1e-9)
    np.testing.assert_allclose(KJ_PER_MOL / NANOMETER * state.getForces(asNumpy=True)._value, forces, atol=1e-8)


def test_the_region_of_a_mixed_system_keeps_its_force_field_outside(potential, fast):
    topology, positions = cluster(2)
    system, options = mm_system(topology), dict(device="cpu", precision="float64")
    learned = energy_and_forces(create_mixed_system(system, topology, SOLUTE, potential, **options), positions)
    mixed = create_mixed_system(system, topology, SOLUTE, fast, **options)
    (first,) = find(mixed)
    add_difference(mixed, first, potential, force_group=5)
    assert_same(energy_and_forces(mixed, positions), learned, 1e-8)
    assert [found.force.getForceGroup() for found in find(mixed)][:2] == [0, 5]


def test_verlet_steps_are_those_of_dynamics(potential, fast, ethanol):
    velocities = 1e-3 * np.random.default_rng(2).normal(size=(9, 3))
    options = dict(integrator="verlet", timestep=0.1, fast=fast, inner=4, max_force_difference=1e3)
    dynamics = Dynamics(potential, System.from_ase(ethanol), velocities=velocities, **options)
    system = empty_system(ethanol)
    for index, mass in enumerate(dynamics.motion.particles.masses):
        system.setParticleMass(index, mass)
    add_difference(system, add_potential(system, topology_of(ethanol), fast, **EXACT), potential)
    integrator = multiple_step_integrator(0.1, 4, groups=(0, 1))
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(ethanol.positions / 10)
    context.setVelocities(velocities * 100)
    integrator.step(5)
    assert context.getState().getTime().value_in_unit(unit.femtosecond) == pytest.approx(2.0)
    ends = context.getState(positions=True).getPositions(asNumpy=True)._value * 10
    np.testing.assert_allclose(ends, dynamics.run(20).positions, atol=1e-7)


def test_langevin_energies_are_those_after_another_kick():
    """An oscillator, of which velocities at whole steps lack (omega h)^2/4 of the kinetic energy."""
    system, force = openmm.System(), openmm.CustomExternalForce("0.5*k*(x^2+y^2+z^2)")
    force.addGlobalParameter("k", 4e4)
    for index in range(600):
        system.addParticle(4.0)
        force.addParticle(index, [])
    system.addForce(force)  # group 0; nothing is slow
    integrator = multiple_step_integrator(9.0, 2, temperature=300, friction=20.0, groups=(0, 1))
    integrator.setRandomNumberSeed(3)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(np.zeros((600, 3)))
    integrator.step(100)
    energies = []
    for _ in range(60):
        integrator.step(5)
        energies.append(context.getState(energy=True).getKineticEnergy()._value)
    thermal = 900 * unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoule_per_mole / unit.kelvin) * 300
    assert np.mean(energies) == pytest.approx(thermal, rel=0.02)  # 0.80 without


def test_what_cannot_be_split_is_refused(potential, fast, ethanol):
    system, topology = empty_system(ethanol), topology_of(ethanol)
    first = add_potential(system, topology, fast, **EXACT)
    with pytest.raises(ValueError, match="force_group must be one that no force of the system has, got 0"):
        add_difference(system, first, potential, force_group=0)
    with pytest.raises(TypeError, match="fast must be the PotentialForce of add_potential or find, got Potential"):
        add_difference(system, fast, potential)
    system = empty_system(ethanol)
    scaled = add_potential(system, topology, fast, scale_parameter="lam", transport="python", **EXACT)
    with pytest.raises(ValueError, match="fast must not have a scale_parameter, got 'lam'"):
        add_difference(system, scaled, potential)
