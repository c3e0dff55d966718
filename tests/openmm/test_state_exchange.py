"""Replica exchange over global parameters: free energies and populations that are known exactly."""

import numpy as np
import openmm
import pytest
from openmm import unit

from torchmdx.dynamics.reweighting import errors_of_differences, free_energies
from torchmdx.openmm import StateExchange

KT = 2.494338785445972  # kJ/mol at 300 K


def context_of(expression, states, particles=1, **parameters) -> openmm.Context:
    """Particles in an external potential of x, y, z in nm with global parameters."""
    system, force = openmm.System(), openmm.CustomExternalForce(expression)
    for name, value in {**states[0], **parameters}.items():
        force.addGlobalParameter(name, value)
    for index in range(particles):
        system.addParticle(12.0)
        force.addParticle(index)
    system.addForce(force)
    return started(system, particles)


def started(system, particles, apart=0.0) -> openmm.Context:
    integrator = openmm.LangevinMiddleIntegrator(300, 20.0, 0.004)
    integrator.setRandomNumberSeed(3)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(0.1 + apart * np.arange(particles)[:, None] * np.ones(3))
    context.setVelocitiesToTemperature(300, 5)
    return context


def test_free_energies_of_oscillators():
    """F = 3/2 kT ln k for each of two particles."""
    stiffness = [500.0, 1000.0, 2000.0, 4000.0]
    states = [{"k": value} for value in stiffness]
    exchange = StateExchange(
        context_of("0.5*k*(x^2+y^2+z^2)", states, particles=2), states, temperature=300 * unit.kelvin, steps=20, seed=1
    )
    exchange.run(250, equilibration=10)
    found = free_energies(exchange.reduced_energies, exchange.counts)[-1]
    error = errors_of_differences(exchange.reduced_energies, exchange.counts)[0, -1]
    assert error < 0.2
    assert abs(found - 3 * np.log(8)) < 4 * error
    assert exchange.visited.shape == (250, 4)
    assert (np.sort(exchange.visited, axis=1) == np.arange(4)).all()
    assert all(len(set(exchange.visited[:, replica])) == 4 for replica in range(4))
    assert ((exchange.acceptance > 0.2) & (exchange.acceptance < 1)).all()


@pytest.mark.nightly
def test_exchange_crosses_a_barrier_that_dynamics_does_not():
    """A double well of 12 kT at λ = 1: its populations are those of the integral, though all begin on one side."""
    states = [{"lambda_well": value} for value in (0.0, 0.2, 0.45, 0.7, 1.0)]
    well = "lambda_well*30*((x/0.2)^2-1)^2 + lambda_well*2.5*x/0.2 + 100*x^4/0.2^4*0.1 + 200*(y^2+z^2)"
    exchange = StateExchange(context_of(well, states), states, temperature=300, steps=40, seed=2)
    places = []
    for _ in range(500):
        exchange.run(1)
        places.append([replica.getPositions(asNumpy=True)._value[0, 0] for replica in exchange.replicas])
    # The state in which each was sampled is that before the swap, which `visited` has.
    sampled, visited = np.array(places)[50:], exchange.visited[50:]
    left = np.array([(sampled[visited == index] < 0).mean() for index in range(5)])
    x = np.linspace(-0.6, 0.6, 20_001)
    wanted = []
    for state in states:
        scale = state["lambda_well"]
        u = scale * 30 * ((x / 0.2) ** 2 - 1) ** 2 + scale * 2.5 * x / 0.2 + 10 * x**4 / 0.2**4
        weight = np.exp(-(u - u.min()) / KT)
        wanted.append(weight[x < 0].sum() / weight.sum())
    np.testing.assert_allclose(left, wanted, atol=0.1)
    assert wanted[-1] > 0.8
    alone = context_of(well, [states[-1]])
    alone.setParameter("lambda_well", 1.0)
    crossings = 0
    for _ in range(100):
        alone.getIntegrator().step(40)
        crossings += alone.getState(positions=True).getPositions(asNumpy=True)._value[0, 0] < 0
    assert crossings == 0


def test_only_groups_that_depend_on_the_parameters_are_evaluated_in_other_states():
    calls = []

    def computed(state):
        calls.append(1)
        return 0.0, np.zeros((1, 3))

    states = [{"k": 500.0}, {"k": 600.0}, {"k": 700.0}]
    system, force = openmm.System(), openmm.CustomExternalForce("0.5*k*(x^2+y^2+z^2)")
    force.addGlobalParameter("k", 500.0)
    system.addParticle(12.0)
    force.addParticle(0)
    potential = openmm.PythonForce(computed)
    potential.setForceGroup(1)
    for each in (force, potential):
        system.addForce(each)
    exchange = StateExchange(started(system, 1), states, temperature=300, steps=5)
    before = len(calls)
    exchange.run(4)
    assert len(calls) - before <= 4 * 3 * (5 + 1)


def test_the_reciprocal_sum_is_evaluated_wherever_its_group_is():
    system, force = openmm.System(), openmm.NonbondedForce()
    force.setNonbondedMethod(openmm.NonbondedForce.PME)
    force.setCutoffDistance(0.9)
    force.addGlobalParameter("lambda_charge", 1.0)
    for index, charge in enumerate((0.5, -0.5)):
        system.addParticle(20.0)
        force.addParticle(0.0, 0.3, 0.1)
        force.addParticleParameterOffset("lambda_charge", index, charge, 0.0, 0.0)
    force.setReciprocalSpaceForceGroup(5)
    system.addForce(force)
    system.setDefaultPeriodicBoxVectors([2, 0, 0], [0, 2, 0], [0, 0, 2])
    context = started(system, 2, apart=0.2)
    states = [{"lambda_charge": 1.0}, {"lambda_charge": 0.0}]
    exchange = StateExchange(context, states, temperature=300, steps=1)
    exchange.run(1)
    differences = np.diff(exchange.reduced_energies, axis=0)[0]
    for difference, replica in zip(differences, exchange.replicas, strict=True):
        context.setPositions(replica.getPositions())
        energies = []
        for state in states:
            context.setParameter("lambda_charge", state["lambda_charge"])
            energies.append(context.getState(energy=True).getPotentialEnergy()._value)
        assert difference == pytest.approx((energies[1] - energies[0]) / KT, abs=1e-6)


def test_the_box_of_each_replica_is_kept():
    states = [{"k": 1.0}, {"k": 2.0}]
    context = context_of("k*x^2", states)
    context.setPeriodicBoxVectors([3, 0, 0], [0, 3, 0], [0, 0, 3])
    exchange = StateExchange(context, states, temperature=300, steps=1)
    context.setPeriodicBoxVectors([4, 0, 0], [0, 4, 0], [0, 0, 4])
    exchange.run(1)
    assert [replica.getPeriodicBoxVectors()[0][0]._value for replica in exchange.replicas] == [3, 3]


@pytest.mark.parametrize(
    ("states", "options", "words"),
    [
        ([{"k": 1.0}], {}, "an exchange needs at least 2 states, got 1"),
        ([{"k": 1.0}, {"q": 1.0}], {}, r"must set the same parameters, \['k'\], got \['q'\] in 1"),
        ([{"q": 1.0}, {"q": 2.0}], {}, r"no force depends on the parameter 'q' of the states; parameters are \['k'\]"),
        ([{"k": 1.0}, {"k": 2.0}], {"steps": 0}, "steps must be >= 1, got 0"),
        ([{"k": 1.0}, {"k": 2.0}], {"temperature": 310}, "must be that of the integrator, 300 K, got 310 K"),
        ([{"k": 1.0}, {"k": 2.0}], {"temperature": 0}, "temperature must be > 0 K and finite, got 0"),
    ],
)
def test_wrong_arguments(states, options, words):
    context = context_of("k*x^2", [{"k": 1.0}])
    with pytest.raises(ValueError, match=words):
        StateExchange(context, states, **{"temperature": 300, "steps": 1, **options})


def test_iterations_are_checked_and_energies_finite():
    states = [{"k": 1.0}, {"k": 2.0}]
    exchange = StateExchange(context_of("k*x^2", states), states, temperature=300, steps=1)
    with pytest.raises(ValueError, match="iterations must be >= 1 and equilibration >= 0, got 0 and 0"):
        exchange.run(0)
    assert np.isnan(exchange.acceptance).all()
    broken = StateExchange(context_of("k*x^2/(k-2)", states), states, temperature=300, steps=1)
    with pytest.raises(FloatingPointError, match="energies of replica 0 in state 0 are not finite"):
        broken.run(1)
