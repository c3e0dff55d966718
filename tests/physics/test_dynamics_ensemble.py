"""`Dynamics` of 64 molecules samples the canonical ensemble, and the averages of OpenMM's run of one.

With a trained potential, whose forces are not harmonic. Errors are those between independent molecules, and between
blocks of the single run; limits are 4.5 of them.
"""

import numpy as np
import pytest
import torch
from ase.build import molecule
from interpreter import DEVICE
from scipy import stats

import torchmdx
from torchmdx import CapturedStep, Dynamics, System
from torchmdx.dynamics.integrators import Langevin
from torchmdx.structures.units import BOLTZMANN, FORCE_TO_ACCELERATION, KJ_PER_MOL

pytestmark = pytest.mark.nightly

TEMPERATURE, TIMESTEP, FRICTION = 500.0, 0.25, 20.0  # K, fs, 1/ps
COUNT, SPACING, EQUILIBRATION, NUM_STEPS = 64, 40, 1000, 3000  # equilibrated for five times 1 / FRICTION
OPENMM_STEPS, BLOCKS = 24_000, 12
DISPLACEMENT = 0.005  # Å, of finite differences


@pytest.fixture(scope="module")
def potential():
    return torchmdx.load(dtype=torch.float32, device=DEVICE)


@pytest.fixture(scope="module")
def states(potential):
    """Snapshots of 64 water molecules; positions [T,64,3,3], velocities, forces, energies [T,64]."""
    system = System.from_ase(molecule("H2O"))
    dynamics = Dynamics(
        potential, [system] * COUNT, integrator=Langevin(FRICTION), timestep=TIMESTEP, temperature=TEMPERATURE, seed=2
    )
    dynamics.run(EQUILIBRATION)
    return list(dynamics.snapshots(NUM_STEPS, every=SPACING))


def of_molecules(states, name):
    return np.array([getattr(state, name) for state in states]).reshape(len(states), COUNT, 3, 3)


def bonds(positions):
    """Mean of both O-H distances [...], of positions [...,3,3]."""
    return np.linalg.norm(positions[..., 1:, :] - positions[..., :1, :], axis=-1).mean(-1)


def test_kinetic_temperature(states):
    """BAOAB's velocities of a vibration of frequency ω are too cold by (ωh)²/4: at most 1 % for two of nine motions."""
    each = np.array([state.temperature for state in states]).mean(0)
    assert abs(each.mean() - TEMPERATURE) < 4.5 * each.std(ddof=1) / np.sqrt(COUNT) + 0.01 * 2 / 9 * TEMPERATURE


def test_velocities_are_of_maxwell_and_boltzmann(states):
    """Those of the oxygen atoms, which vibrations hardly move, at times at which they have forgotten the last ones."""
    velocities = of_molecules(states, "velocities")[::10, :, 0]
    mass = states[0].particles.masses[0]
    scale = np.sqrt(BOLTZMANN * TEMPERATURE * FORCE_TO_ACCELERATION / mass)
    assert stats.kstest(velocities.ravel() / scale, "norm").pvalue > 1e-4


def test_configurational_temperature(states, potential):
    """k T = ⟨|∇U|²⟩ / ⟨ΔU⟩, with the Laplacian from differences of forces; velocities do not enter."""
    chosen = states[::4]
    squares = (of_molecules(chosen, "forces") ** 2).sum((2, 3)).mean(0)
    step = CapturedStep(potential, [System.from_ase(molecule("H2O"))] * COUNT, mode="eager")
    laplacian = np.zeros(COUNT)
    for state in chosen:
        for atom in range(3):
            for k in range(3):
                slopes = []
                for sign in (1, -1):
                    moved = state.positions.copy().reshape(COUNT, 3, 3)
                    moved[:, atom, k] += sign * DISPLACEMENT
                    slopes.append(step(moved.reshape(-1, 3)).forces.reshape(COUNT, 3, 3)[:, atom, k].copy())
                laplacian += (slopes[1] - slopes[0]) / (2 * DISPLACEMENT * len(chosen))
    measured = squares.mean() / laplacian.mean()
    residuals = squares - measured * laplacian
    error = residuals.std(ddof=1) / np.sqrt(COUNT) / laplacian.mean()
    assert error < 0.05 * BOLTZMANN * TEMPERATURE
    assert measured == pytest.approx(BOLTZMANN * TEMPERATURE, abs=4.5 * error)


@pytest.fixture(scope="module")
def openmm_run(potential):
    """Energies eV [F] and positions Å [F,3,3] of one molecule in OpenMM, with its own Langevin integrator."""
    openmm = pytest.importorskip("openmm")
    from openmm import app, unit

    from torchmdx.openmm import add_potential

    atoms = molecule("H2O")
    topology = app.Topology()
    residue = topology.addResidue("HOH", topology.addChain())
    system = openmm.System()
    for symbol, mass in zip(atoms.get_chemical_symbols(), atoms.get_masses(), strict=True):
        topology.addAtom(symbol, app.Element.getBySymbol(symbol), residue)
        system.addParticle(mass)
    add_potential(system, topology, potential)
    integrator = openmm.LangevinMiddleIntegrator(TEMPERATURE, FRICTION / unit.picosecond, TIMESTEP * unit.femtosecond)
    integrator.setRandomNumberSeed(7)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatform("Reference"))
    context.setPositions(0.1 * atoms.positions)
    context.setVelocitiesToTemperature(TEMPERATURE, 8)
    integrator.step(EQUILIBRATION)
    energies, positions = [], []
    for _ in range(OPENMM_STEPS // SPACING):
        integrator.step(SPACING)
        state = context.getState(energy=True, positions=True)
        energies.append(KJ_PER_MOL * state.getPotentialEnergy().value_in_unit(unit.kilojoule_per_mole))
        positions.append(state.getPositions(asNumpy=True).value_in_unit(unit.angstrom))
    return np.array(energies), np.array(positions)


@pytest.mark.parametrize("name", ["energy", "bond", "stretching"])
def test_the_mean_of_replicas_is_that_of_a_single_run_in_openmm(states, openmm_run, name):
    """Mean energy, mean bond, and the mean square by which bonds deviate from 0.96 Å."""
    energies, positions = openmm_run
    ours = dict(
        energy=np.array([state.energy for state in states]),
        bond=bonds(of_molecules(states, "positions")),
        stretching=(bonds(of_molecules(states, "positions")) - 0.96) ** 2,
    )[name].mean(0)
    theirs = dict(energy=energies, bond=bonds(positions), stretching=(bonds(positions) - 0.96) ** 2)[name]
    blocks = theirs.reshape(BLOCKS, -1).mean(1)
    error = np.hypot(ours.std(ddof=1) / np.sqrt(COUNT), blocks.std(ddof=1) / np.sqrt(BLOCKS))
    assert abs(ours.mean() - theirs.mean()) < 4.5 * error
