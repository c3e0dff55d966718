"""Multiple time steps in ASE: those of Dynamics, long single steps, fixed atoms, temperatures, disagreements."""

import copy

import numpy as np
import pytest
from ase import Atoms, units
from ase.calculators.calculator import Calculator as AseCalculator
from ase.constraints import FixAtoms, FixBondLength
from ase.md.verlet import VelocityVerlet

from torchmdx import Calculator, Dynamics, System
from torchmdx.ase import MultipleTimeSteps
from torchmdx.dynamics import DisagreementError

TINY = dict(num_layers=0, num_channels=8, num_radial=4)


@pytest.fixture
def potentials(make_potential):
    full = make_potential(**TINY)
    fast = copy.deepcopy(full)
    fast.scale.mul_(0.9)
    return full, fast


def calculator(potential):
    return Calculator(potential, dtype="float64", device="cpu")


class Springs(AseCalculator):
    implemented_properties = ("energy", "forces")

    def __init__(self, stiffness):
        super().__init__()
        self.stiffness = stiffness

    def calculate(self, *given):
        super().calculate(*given)
        positions = self.atoms.positions
        self.results = {"energy": 0.5 * self.stiffness * (positions**2).sum(), "forces": -self.stiffness * positions}


def test_constant_energy_is_that_of_dynamics(potentials, ethanol):
    full, fast = potentials
    ethanol.set_constraint(FixAtoms([2]))
    options = dict(integrator="verlet", timestep=0.25, fast=fast, inner=3, seed=5)
    dynamics = Dynamics(full, System.from_ase(ethanol), frozen=[2], **options)
    start = dynamics.snapshot()
    ethanol.set_masses(dynamics.motion.particles.masses)
    ethanol.set_velocities(start.velocities / units.fs)
    ethanol.calc = calculator(full)
    run = MultipleTimeSteps(ethanol, 0.25 * units.fs, calculator(fast), 3)
    run.run(4)
    found = dynamics.run(12)
    assert run.get_time() / units.fs == pytest.approx(found.time)
    np.testing.assert_allclose(ethanol.positions, found.positions, atol=1e-7)
    np.testing.assert_allclose(ethanol.get_velocities() * units.fs, found.velocities, atol=1e-7)


def test_without_a_fast_force_they_are_long_single_steps():
    one, two = (Atoms("C2", [[0.1, 0, 0], [0, 0.2, 0.3]], calculator=Springs(2.0)) for _ in range(2))
    MultipleTimeSteps(one, 0.5 * units.fs, Springs(0.0), 4).run(10)
    VelocityVerlet(two, 2 * units.fs).run(10)
    np.testing.assert_allclose(one.positions, two.positions, rtol=1e-10)


def test_temperatures_and_positions_are_those_of_the_ensemble():
    atoms = Atoms("C400", np.zeros((400, 3)), calculator=Springs(2.0))
    options = dict(temperature_K=300, friction=0.05 / units.fs, rng=np.random.default_rng(1))
    run = MultipleTimeSteps(atoms, 1.0 * units.fs, Springs(1.9), 2, **options)
    run.run(100)
    squares, kinetic = [], []
    for _ in range(60):
        run.run(5)
        squares.append((atoms.positions**2).mean())
        kinetic.append(atoms.get_temperature())
    assert np.mean(squares) == pytest.approx(units.kB * 300 / 2.0, rel=0.03)
    assert np.mean(kinetic) == pytest.approx(300, rel=0.03)


def test_the_outer_step_follows_from_the_hydrogens(ethanol):
    ethanol.calc = Springs(1.0)
    assert MultipleTimeSteps(ethanol, 0.5 * units.fs, Springs(1.0)).inner == 4
    with pytest.warns(UserWarning, match=r"an outer step of 3 x 1 fs is too long for hydrogens of 1\.008 amu"):
        MultipleTimeSteps(ethanol, units.fs, Springs(1.0), 3)
    ethanol.set_masses(np.where(ethanol.numbers == 1, 3.0, ethanol.get_masses()))
    assert MultipleTimeSteps(ethanol, units.fs, Springs(1.0)).inner == 4
    ethanol.set_constraint(FixAtoms(np.flatnonzero(ethanol.numbers == 1)))
    assert MultipleTimeSteps(ethanol, 2 * units.fs, Springs(1.0)).inner == 2


def test_a_disagreement_keeps_the_state_before():
    atoms = Atoms("C2", [[0.1, 0, 0], [0, 0.2, 0.3]], calculator=Springs(2.0))
    atoms.set_velocities([[0, 0, 0], [0, 0, 0.2]])
    run = MultipleTimeSteps(atoms, 0.5 * units.fs, Springs(1.9), 4, max_force_difference=0.05)
    before = []
    run.attach(lambda: before.append((atoms.positions.copy(), atoms.get_momenta())))
    with pytest.raises(
        DisagreementError, match=r"must differ by at most 0\.05 eV/Å, got 0\.05\d+ eV/Å at atom 1"
    ) as found:
        run.run(100)
    assert found.value.step == run.nsteps + 1 > 1
    assert 0.1 * np.linalg.norm(atoms.positions[1]) <= 0.05
    for value, expected in zip((atoms.positions, atoms.get_momenta()), before[-1], strict=True):
        np.testing.assert_array_equal(value, expected)
    atoms.positions[0] = [9.0, 0, 0]
    with pytest.raises(DisagreementError, match="at atom 0"):
        MultipleTimeSteps(atoms, 0.5 * units.fs, Springs(1.0), 4).run(1)
    assert atoms.positions[0, 0] == 9.0


def test_what_it_cannot_do_is_refused(ethanol):
    ethanol.calc = Springs(1.0)
    for options, words in (
        (dict(inner=0), "inner must be"),
        (dict(timestep=0.0), "timestep must be > 0"),
        (dict(max_force_difference=-1.0), "max_force_difference must be > 0 and finite, got -1"),
    ):
        with pytest.raises(ValueError, match=words):
            MultipleTimeSteps(ethanol, fast=Springs(1.0), **{"timestep": units.fs, "inner": 2, **options})
    ethanol.set_constraint(FixBondLength(0, 1))
    with pytest.raises(ValueError, match=r"keep constraints that fix atoms \(FixAtoms\), got FixBondLength"):
        MultipleTimeSteps(ethanol, units.fs, Springs(1.0), 2)
