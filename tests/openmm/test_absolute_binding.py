"""The absolute binding free energy of a molecule of two atoms to an ion, against its integral; the example."""

import numpy as np
import openmm
import pytest
from test_alchemical_regions import KT, decoupled, energy, hydroxyl_and_ion

from torchmdx.dynamics.reweighting import errors_of_differences, free_energies
from torchmdx.openmm import BoreschRestraint, StateExchange, create_mixed_system

pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]
CHARGES, SIGMA, EPSILON = (-0.4, 0.4, 0.6), (0.25, 0.1, 0.25), (0.6, 0.1, 0.8)
PLACES = np.array([[0.27, 0.0, 0.0], [0.32, 0.08, 0.0], [0.0, 0.0, 0.0]])  # nm, of O, H and the ion
NAMES = ("lambda_restraint", "lambda_electrostatics", "lambda_sterics")
WINDOWS = [(0.0, 1.0, 1.0), (0.3, 1.0, 1.0), *((1.0, charge, 1.0) for charge in (1.0, 0.7, 0.35, 0.0))]
WINDOWS += [(1.0, 0.0, sterics) for sterics in (0.4, 0.0)]
STANDARD = 1e24 / 6.02214076e23  # nm³


def ion_and_molecule(potential) -> openmm.System:
    """O and H of the region, free in space, and an ion that does not move."""
    topology, system, force = hydroxyl_and_ion(), openmm.System(), openmm.NonbondedForce()
    for index, mass in enumerate((2.0, 2.0, 0.0)):
        system.addParticle(mass)
        force.addParticle(CHARGES[index], SIGMA[index], EPSILON[index])
    force.addException(0, 1, 0.0, 1.0, 0.0)
    bond = openmm.CustomBondForce("4000*(r-0.1)^2")
    bond.addBond(0, 1)
    bond.setName("tie")
    for each in (force, bond):
        system.addForce(each)
    options = dict(charge=0, energy_offset="atoms", force_group=1, keep=["tie"])
    return create_mixed_system(system, topology, [0, 1], potential, **options)


def context_of(system: openmm.System, positions=PLACES) -> openmm.Context:
    integrator = openmm.LangevinMiddleIntegrator(300, 60.0, 0.002)
    integrator.setRandomNumberSeed(5)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(positions)
    return context


def test_the_binding_free_energy(make_potential) -> None:
    potential = make_potential(num_layers=0, num_channels=8)
    potential.scale *= 0.2
    mixed = ion_and_molecule(potential)
    exact = by_quadrature(mixed)
    restraint = BoreschRestraint(host=[2], guest=[0], positions=PLACES, temperature=300, distance_constant=1000.0)
    restraint.add_to(mixed)
    states = [dict(zip(NAMES, window, strict=True)) for window in WINDOWS]
    exchange = StateExchange(context_of(decoupled(mixed, [0, 1])), states, temperature=300, steps=20, seed=3)
    exchange.run(60, equilibration=6)
    energies, counts = exchange.reduced_energies, exchange.counts
    estimate = restraint.standard_free_energy - KT * free_energies(energies, counts)[-1]
    error = KT * errors_of_differences(energies, counts)[0, -1]
    assert exact < -10
    assert error < 0.8
    assert abs(estimate - exact) < 3 * error, (estimate, exact)


def by_quadrature(mixed: openmm.System) -> float:
    """-kT ln K/V°, K over the distance R of O from the ion, the bond length r and the angle between both."""
    context = context_of(mixed)
    length, angle, apart = np.linspace(0.03, 0.3, 160), np.linspace(-1, 1, 401), np.linspace(0.1, 0.9, 801)
    own = []
    for r in length:
        context.setPositions([[1e4, 0.0, 0.0], [1e4 + r, 0.0, 0.0], [0.0, 0.0, 0.0]])
        own.append(energy(context))
    weights = length**2 * np.exp(-(np.array(own) - min(own)) / KT)
    weights /= weights.sum()
    r, cosine, distance = length[:, None, None], angle[None, :, None], apart[None, None, :]
    to_hydrogen = np.sqrt(distance**2 + r**2 + 2 * distance * r * cosine)
    across = _pair(0, distance) + _pair(1, np.maximum(to_hydrogen, 1e-3))
    average = np.trapezoid(np.exp(-across / KT), angle, axis=1) / 2  # [r, R]
    volume = np.trapezoid(4 * np.pi * apart**2 * (weights @ average), apart)
    return -KT * float(np.log(volume / STANDARD))


def _pair(index: int, r: np.ndarray) -> np.ndarray:
    """kJ/mol of an atom and the ion."""
    sigma, epsilon = (SIGMA[index] + SIGMA[2]) / 2, np.sqrt(EPSILON[index] * EPSILON[2])
    return 4 * epsilon * ((sigma / r) ** 12 - (sigma / r) ** 6) + 138.935456 * CHARGES[index] * CHARGES[2] / r
