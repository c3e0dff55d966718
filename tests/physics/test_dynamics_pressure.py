"""The density of a fluid at constant pressure is that of OpenMM's barostat, with the same pair potential."""

import numpy as np
import pytest
import torch

import torchmdx
from torchmdx import Dynamics, System
from torchmdx.dynamics.barostat import CellRescaling
from torchmdx.dynamics.integrators import Langevin

NUM_ATOMS, COPIES, MASS = 32, 16, 40.0
HEIGHT, DIAMETER = 0.25, 4.0  # eV, Å: E = HEIGHT (1 - r / DIAMETER)³ of each pair
TEMPERATURE, PRESSURE, FRICTION, TIMESTEP = 300.0, 1500.0, 5.0, 4.0  # K, bar, 1/ps, fs
BEGIN = 48.0  # Å³ for each atom
BLOCKS = 8


class SoftSpheres(torch.nn.Module):
    def forward(self, vectors, edge_index, atomic_numbers):
        overlap = torch.clamp(1 - torch.linalg.vector_norm(vectors, dim=-1) / DIAMETER, min=0.0)
        energies = 0.5 * HEIGHT * overlap**3
        return torch.zeros_like(atomic_numbers, dtype=vectors.dtype).index_add(0, edge_index[1], energies)


def lattice(size):
    """Positions of a simple cubic lattice, with an edge left out of it."""
    count = round(NUM_ATOMS ** (1 / 3) + 0.5)
    places = np.array(list(np.ndindex(count, count, count)))[:NUM_ATOMS]
    return size / count * (places + 0.5)


def volumes_of_openmm(num_frames, apart):
    """Å³ for each atom."""
    openmm = pytest.importorskip("openmm")
    unit = openmm.unit
    size = (NUM_ATOMS * BEGIN) ** (1 / 3)
    system = openmm.System()
    force = openmm.CustomNonbondedForce(f"{HEIGHT * 96.48533212} * (1 - r / {DIAMETER / 10})^3")
    force.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffPeriodic)
    force.setCutoffDistance(DIAMETER / 10)
    for _ in range(NUM_ATOMS):
        system.addParticle(MASS)
        force.addParticle([])
    system.addForce(force)
    system.addForce(openmm.MonteCarloBarostat(PRESSURE * unit.bar, TEMPERATURE, 10))
    system.setDefaultPeriodicBoxVectors(*(size / 10 * np.eye(3)))
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, FRICTION, TIMESTEP / 1000)
    integrator.setRandomNumberSeed(3)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPositions(lattice(size) / 10)
    context.setVelocitiesToTemperature(TEMPERATURE, 4)
    integrator.step(3000)
    found = []
    for _ in range(num_frames):
        integrator.step(apart)
        found.append(context.getState().getPeriodicBoxVolume().value_in_unit(unit.angstrom**3))
    return np.array(found) / NUM_ATOMS


def volumes_of_dynamics(num_frames, apart):
    """Å³ for each atom, [frames, copies]."""
    potential = torchmdx.wrap(SoftSpheres(), cutoff=DIAMETER, elements=[18]).to(torch.float64)
    size = (NUM_ATOMS * BEGIN) ** (1 / 3)
    box = System.create(lattice(size), [18] * NUM_ATOMS, cell=size * np.eye(3), pbc=True)
    dynamics = Dynamics(
        potential,
        [box] * COPIES,
        integrator=Langevin(friction=FRICTION),
        timestep=TIMESTEP,
        temperature=TEMPERATURE,
        masses=np.full(NUM_ATOMS * COPIES, MASS),
        barostat=CellRescaling(pressure=PRESSURE, relaxation=0.2, compressibility=0.5 / PRESSURE),
        skin=0.5,
        seed=1,
    )
    dynamics.run(1000)
    frames = list(dynamics.snapshots(num_frames * apart, every=apart))
    pressures, temperatures = (np.array([getattr(one, name) for one in frames]) for name in ("pressure", "temperature"))
    # The mean of the instantaneous pressure is that of the barostat, and of the temperature that of the thermostat.
    for found, expected in ((pressures, PRESSURE), (temperatures, TEMPERATURE)):
        mean, error = mean_and_error(found)
        assert mean == pytest.approx(expected, abs=4.5 * error + 0.01 * expected)
    return np.array([one.volume for one in frames]) / NUM_ATOMS


def mean_and_error(values):
    """Of blocks of frames."""
    means = [part.mean() for part in np.array_split(values, BLOCKS)]
    return np.mean(means), np.std(means, ddof=1) / BLOCKS**0.5


@pytest.mark.nightly
def test_the_density_of_a_fluid_is_that_of_openmm():
    """Within 4.5 standard errors of blocks, which are below 1.5 %, and 0.5 % for the errors of both timesteps."""
    theirs, their_error = mean_and_error(volumes_of_openmm(4000, 20))
    ours, our_error = mean_and_error(volumes_of_dynamics(100, 20))
    print(f"Å³ for each atom: {ours:.2f} +- {our_error:.2f}, OpenMM {theirs:.2f} +- {their_error:.2f}")
    ideal = TEMPERATURE * 8.617333e-5 / (PRESSURE * 6.241509e-7)
    assert theirs > 1.3 * ideal  # repulsion matters
    assert max(our_error / ours, their_error / theirs) < 0.015
    assert ours == pytest.approx(theirs, abs=4.5 * np.hypot(our_error, their_error) + 0.005 * theirs)
