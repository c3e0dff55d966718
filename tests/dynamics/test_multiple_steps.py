"""Multiple time steps: their limits, exact restarts, what stops them, and averages known in closed form."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from ase.build import bulk
from oscillators import FREQUENCY, STIFFNESS, TEMPERATURE, THERMAL, last, springs

import torchmdx
from torchmdx import Dynamics, System
from torchmdx.dynamics import Bussi, CellRescaling, DisagreementError, Distance, Langevin, VelocityVerlet
from torchmdx.dynamics.barostat import barostat_noise
from torchmdx.dynamics.snapshot import load_snapshot
from torchmdx.step.results import NonFiniteError, SpreadError
from torchmdx.structures.units import BAR, BOLTZMANN, FORCE_TO_ACCELERATION

FIELDS = ("positions", "velocities", "forces", "energy", "restraint_energy", "virial", "cell")
TINY = dict(num_layers=0, num_channels=8, num_radial=4)


def scaled(potential, factor):
    """The potential with its forces multiplied, which is exact without priors."""
    found = copy.deepcopy(potential)
    found.scale.mul_(factor)
    return found


@pytest.fixture(scope="module")
def tiny(make_potential):
    return make_potential(**TINY)


@pytest.fixture
def system(ethanol):
    return System.from_ase(ethanol)


@pytest.fixture
def crystal():
    atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
    atoms.rattle(0.05, seed=3)
    return System.from_ase(atoms)


def make(potential, structures, **options):
    return Dynamics(potential, structures, **{"timestep": 0.25, "seed": 11, **options})


def assert_close(one, two, **tolerance):
    assert one.step == two.step
    for name in FIELDS:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), **tolerance)


def assert_same(one, two):
    assert one.step == two.step
    for name in (*FIELDS, "fast_forces"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize(
    ("integrator", "factor", "inner"),
    [("verlet", 1.0, 4), ("langevin", 1.0, 4), (Bussi(0.01), 1.0, 4), ("verlet", 0.9, 1), ("langevin", 0.9, 1)],
)
def test_equal_potentials_or_one_inner_step_are_single_steps(tiny, system, integrator, factor, inner):
    options = dict(integrator=integrator, frozen=[2], hydrogen_mass=2.0, restraints=[Distance((0, 1), 1.6, 5.0)])
    expected = make(tiny, [system] * 2, **options).run(12)
    found = make(tiny, [system] * 2, fast=scaled(tiny, factor), inner=inner, **options).run(12)
    assert_close(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-9)
    assert found.time == expected.time == 3.0


@pytest.mark.parametrize(("factor", "inner"), [(1.0, 4), (0.9, 1)])
def test_so_they_are_at_constant_pressure(tiny, crystal, factor, inner):
    options = dict(barostat=CellRescaling(1.0, 0.1), integrator=Langevin(5.0))
    found = make(tiny, crystal, fast=scaled(tiny, factor), inner=inner, **options)
    start = found.snapshot()
    reached = found.run(8)
    assert abs(reached.volume / start.volume - 1) > 1e-6
    if inner == 1:  # else the volume changes every fourth step only
        assert_close(reached, make(tiny, crystal, **options).run(8), rtol=1e-8, atol=1e-8)
    else:
        np.testing.assert_allclose(reached.forces, reached.fast_forces, atol=1e-10)
        np.testing.assert_allclose(reached.pressure, start.pressure, rtol=0.5)


def test_the_volume_relaxes_as_fast_as_with_single_steps(tiny, crystal):
    """The first block against the equation of `CellRescaling`, whose h is the outer step."""
    barostat = CellRescaling(1e4, 0.1, 1e-5)
    dynamics = make(tiny, crystal, fast=scaled(tiny, 0.9), inner=4, barostat=barostat)
    start, volume = dynamics.snapshot(), dynamics.snapshot().volume[0]
    mobility = 1e-5 * 4 * 0.25 / (2 * 100)  # Å³ per bar and fs, of 1 fs
    thermal = BOLTZMANN * 300 / BAR
    noise = barostat_noise(dynamics.motion.seeds, 1)[0]
    missing = 1e4 - start.pressure[0] - thermal / (2 * volume)
    ratio = 1 - mobility * missing + np.sqrt(thermal * mobility / volume) * noise
    np.testing.assert_allclose(dynamics.run(4).volume[0] / volume, ratio**2, rtol=1e-10)


def test_forces_that_are_not_used_heat_nothing(tiny, crystal):
    """Where the potentials disagree, kinetic energies and volumes are those of steps with the full one."""
    useless = scaled(tiny, -1e4)
    options = dict(barostat=CellRescaling(1.0, 0.1), integrator=Langevin(5.0))
    single = make(tiny, crystal, **options)
    found = make(tiny, crystal, fast=useless, inner=2, small_steps=True, **options)
    np.testing.assert_allclose(found.snapshot().temperature, single.snapshot().temperature, rtol=1e-12)
    found.run(4)
    assert found.num_small_blocks == 2
    with pytest.raises(DisagreementError):
        make(tiny, crystal, fast=useless, inner=2, **options)


def test_a_snapshot_of_another_cell_gives_it_to_both_potentials(tiny, crystal):
    scaled_cell = System.create(
        1.02 * crystal.positions, crystal.atomic_numbers, cell=1.02 * crystal.cell, pbc=crystal.pbc
    )
    options = dict(fast=scaled(tiny, 1.0), inner=2)
    expected, found = make(tiny, scaled_cell, **options), make(tiny, crystal, **options)
    found.restore(expected.run(2))
    assert_close(found.run(4), expected.run(4), rtol=1e-12, atol=1e-12)
    single = make(tiny, scaled_cell)
    found.restore(single.run(2))  # without forces of the fast potential
    np.testing.assert_allclose(found.snapshot().fast_forces, found.snapshot().forces, atol=1e-12)


def test_without_fast_forces_they_are_long_single_steps(tiny, system):
    """An oracle of the kicks of the difference: n steps without a force are one step n times as long."""
    expected = make(tiny, system, integrator="verlet", timestep=0.5).run(6)
    nothing = scaled(tiny, 0.0)
    found = make(tiny, system, integrator="verlet", timestep=0.125, fast=nothing, inner=4, max_force_difference=1e3)
    found = found.run(24)
    assert found.time == expected.time
    for name in ("positions", "velocities", "forces", "energy"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-10)


def test_steps_are_reversible_and_of_second_order(tiny, system):
    options = dict(integrator="verlet", fast=scaled(tiny, 0.8))
    start = make(tiny, system, integrator="verlet").snapshot()
    for inner in (1, 4):
        there = make(tiny, system, inner=inner, **options)
        reached = there.run(16)
        there.set_velocities(-reached.velocities)
        np.testing.assert_allclose(there.run(16).positions, start.positions, atol=1e-10)
    exact = make(tiny, system, integrator="verlet", timestep=1 / 64).run(128).positions
    errors = []
    for inner in (4, 8, 16):  # 2 fs with outer steps of 1/8, 1/4 and 1/2 fs
        found = make(tiny, system, timestep=1 / 32, inner=inner, **options).run(64).positions
        errors.append(np.abs(found - exact).max())
    ratios = np.array(errors[1:]) / np.array(errors[:-1])
    np.testing.assert_allclose(ratios, 4, atol=1)


@pytest.mark.parametrize("pressure", [False, True])
def test_a_continuation_and_a_repetition_are_the_same_to_the_bit(tiny, system, crystal, pressure, tmp_path):
    structure = crystal if pressure else [system, system]
    options = dict(fast=scaled(tiny, 0.9), inner=3, barostat=CellRescaling(1.0, 0.05) if pressure else None)
    whole, pieces = make(tiny, structure, **options).run(24), make(tiny, structure, **options)
    pieces.run(9).save(tmp_path / "kept.npz")
    assert_same(pieces.run(15), whole)
    again = make(tiny, structure, **options)
    again.restore(tmp_path / "kept.npz")
    assert_same(again.snapshot(), load_snapshot(tmp_path / "kept.npz", again.motion.particles))
    assert_same(again.run(15), whole)


def test_replicas_exchange_as_single_steps_do(tiny, system):
    options = dict(temperature=[300.0, 330.0, 360.0], exchange_every=4)
    single = make(tiny, [system] * 3, **options)
    found = make(tiny, [system] * 3, fast=scaled(tiny, 1.0), inner=2, **options)
    expected, reached = single.run(24), found.run(24)
    assert single.exchange.accepted.sum() > 0
    np.testing.assert_array_equal(reached.temperatures, expected.temperatures)
    assert_close(reached, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.nightly
def test_processes_move_shares_of_the_replicas(tiny, system, monkeypatch, quick_workers):
    monkeypatch.setattr("torchmdx.dynamics.process_loop.FIRST_PIECE", 7)  # no multiple of 3
    options = dict(fast=scaled(tiny, 0.9), inner=3, max_force_difference=50.0)
    expected = make(tiny, [system] * 3, **options).run(24)
    shared = make(tiny, [system] * 3, devices=2, **options)
    try:
        assert_close(shared.run(24), expected, rtol=1e-8, atol=1e-8)
        assert shared.num_small_blocks == 0
    finally:
        shared.close()


def test_a_disagreement_stops_at_the_state_before_or_takes_small_steps(tiny, system, caplog):
    options = dict(fast=scaled(tiny, 0.9), inner=3, integrator="langevin", temperature=600)
    free = make(tiny, [system] * 2, **options)
    states = [free.snapshot(), *free.snapshots(60, every=3)]
    differences = [np.linalg.norm(state.forces - state.fast_forces, axis=1) for state in states]
    largest = np.maximum.accumulate([difference.max() for difference in differences])
    place = int(np.diff(largest).argmax()) + 1  # the first that exceeds what was before by so much
    limit = (largest[place - 1] + largest[place]) / 2
    atom = int(differences[place].argmax())
    stopped = make(tiny, [system] * 2, **options, max_force_difference=limit)
    where = f"atom {atom % system.num_atoms} of structure {atom // system.num_atoms}"
    for _ in range(2):
        with pytest.raises(DisagreementError, match=f"^step {3 * place}: .* at most .* eV/Å at {where}") as caught:
            stopped.run(60)
        assert_same(stopped.snapshot(), states[place - 1])
    assert caught.value.atom == atom
    assert caught.value.difference > caught.value.most == limit

    small = make(tiny, [system] * 2, **options, max_force_difference=limit, small_steps=True)
    assert_same(small.run(3 * place - 3), states[place - 1])
    assert small.num_small_blocks == 0
    reached = small.run(3)
    assert small.num_small_blocks == 1
    assert f"steps {3 * place - 2} to {3 * place} use the full potential alone" in caplog.text
    single = make(tiny, [system] * 2, integrator="langevin", temperature=600)
    single.restore(states[place - 1])
    assert_close(reached, single.run(3), rtol=1e-12, atol=1e-12)


def test_the_default_limit_is_an_impulse_of_thermal_energy(tiny, system):
    dynamics = make(tiny, system, fast=scaled(tiny, 1.0), inner=4, timestep=0.5, temperature=400, frozen=[0])
    motion = dynamics.motion
    limits = motion.multiple_steps.limits(motion)
    kicks = limits * 4 * 0.5 * FORCE_TO_ACCELERATION / motion.particles.masses  # Å/fs, by n timesteps
    energies = 0.5 * motion.particles.masses * kicks**2 / FORCE_TO_ACCELERATION
    np.testing.assert_allclose(energies[1:], 1.5 * BOLTZMANN * 400)
    assert limits[0] == np.inf
    with pytest.raises(DisagreementError, match=r"^step 0: "):
        make(tiny, system, fast=scaled(tiny, 50.0), inner=4)


def test_a_fast_potential_that_is_not_finite_keeps_the_state(tiny, system):
    single = copy.deepcopy(tiny).float()
    dynamics = make(single, system, fast=single, inner=2)
    kept = dynamics.run(4)
    velocities = kept.velocities.copy()
    velocities[2] = 1e200  # overflows in float32
    dynamics.set_velocities(velocities)
    for _ in range(2):
        with pytest.raises(NonFiniteError, match="fast potential: evaluation 5: .* the first is atom 2"):
            dynamics.run(4)
    dynamics.set_velocities(kept.velocities)
    assert_same(dynamics.snapshot(), kept)


def test_a_spread_stops_at_an_outer_step(make_potential, system):
    ensemble = torchmdx.Ensemble([make_potential(seed=seed, **TINY) for seed in (1, 2)])
    fast = make_potential(seed=1, **TINY)
    options = dict(fast=fast, inner=2, max_force_difference=1e3, temperature=2000)
    spreads = [found.largest_force_spread[0] for found in make(ensemble, system, **options).snapshots(40, every=2)]
    start = make(ensemble, system, **options).snapshot().largest_force_spread[0]
    limit = max(spreads[0], start) * 1.0001
    first = next(number for number, spread in enumerate(spreads) if spread > limit)
    stopped = make(ensemble, system, **options, max_force_spread=limit)
    with pytest.raises(SpreadError, match=f"^step {2 * first + 2}: "):
        stopped.run(40)
    assert stopped.num_steps == 2 * first


def test_arguments_are_checked(tiny, make_potential, system):
    fast = scaled(tiny, 1.0)
    with pytest.raises(ValueError, match="inner needs a fast potential, got inner=2 without one"):
        make(tiny, system, inner=2)
    with pytest.raises(TypeError, match="fast must be a Potential, got str"):
        make(tiny, system, fast="fast.safetensors", inner=2)
    known = scaled(tiny, 1.0)
    known.card = replace(known.card, elements=(1, 6))
    with pytest.raises(ValueError, match=r"fast potential: .* does not know O \(atom "):
        make(tiny, system, fast=known, inner=2)
    for inner in (0, 2.0, True):
        with pytest.raises(ValueError, match="inner must be a whole number of steps >= 1 with a fast potential, got"):
            make(tiny, system, fast=fast, inner=inner)
    with pytest.raises(ValueError, match="max_force_difference must be > 0 eV/Å and finite, got 0"):
        make(tiny, system, fast=fast, inner=2, max_force_difference=0)
    with pytest.raises(ValueError, match="exchange_every must be a multiple of inner=2 steps, got 5"):
        make(tiny, [system] * 2, fast=fast, inner=2, exchange_every=5)
    dynamics = make(tiny, system, fast=fast, inner=2)
    with pytest.raises(ValueError, match="num_steps must be a multiple of inner=2 steps, got 3"):
        dynamics.run(3)
    with pytest.raises(ValueError, match="every must be a multiple of inner=2 steps, got 3"):
        dynamics.snapshots(6, every=[2, 3])
    single = make(tiny, system)
    with pytest.raises(ValueError, match="the step of a snapshot must be a multiple of inner=2 steps, got 1"):
        dynamics.restore(single.run(1))
    dynamics.restore(single.run(1))  # of a run without a fast potential
    assert dynamics.run(2).step == 4


def test_the_outer_step_follows_from_the_hydrogens(tiny, system):
    fast = scaled(tiny, 0.97)
    for hydrogen_mass, timestep, inner in ((None, 0.5, 4), (None, 1.0, 2), (3.0, 1.0, 4), (3.0, 2.0, 2)):
        dynamics = make(tiny, system, fast=fast, timestep=timestep, hydrogen_mass=hydrogen_mass)
        assert dynamics.motion.inner == inner
    with pytest.warns(UserWarning, match="an outer step of 3 x 1 fs is too long for hydrogens of 1.008 amu"):
        make(tiny, system, fast=fast, timestep=1.0, inner=3)
    make(tiny, system, fast=fast, timestep=1.0, inner=3, hydrogen_mass=3.0)


@pytest.mark.nightly_for("0.9-4")
@pytest.mark.parametrize(("factor", "inner"), [(0.9, 4), (1.2, 2)])
def test_a_harmonic_distribution_is_that_of_the_linear_map(factor, inner):
    """Positions and kinetic energies against the stationary covariance of the scheme, which is computed apart."""
    friction, timestep = 20.0, 0.45 / FREQUENCY
    loop = springs(Langevin(friction), timestep, [1500], fast=factor * STIFFNESS, inner=inner)
    last(loop, 60 * inner)
    squares, temperatures = [], []
    for found in loop.snapshots(iter(range(loop.num_steps, loop.num_steps + 300 * inner, 6 * inner))):
        squares.append((found.positions**2).mean() * STIFFNESS / THERMAL)
        temperatures.append(found.temperature[0] / TEMPERATURE)
    expected = stationary(factor, inner, timestep, np.exp(-friction * timestep / 1000))
    for values, right in zip((squares, temperatures), expected, strict=True):
        assert abs(np.mean(values) - right) < 0.012
    assert abs(expected[0] - 1) > 0.02  # so that the test sees the scheme, not the ensemble


@pytest.mark.parametrize(("part", "stable"), [(0.25, True), (0.5, False)])
def test_kicks_at_half_a_period_resonate(part, stable):
    """The energy stays with outer steps of a quarter of the period, and grows without end with those of a half."""
    timestep = part * 2 * np.pi / FREQUENCY / 8
    loop = springs(VelocityVerlet(), timestep, [50], fast=0.8 * STIFFNESS, inner=8)
    energies = [found.energy[0] + found.kinetic_energy[0] for found in loop.snapshots(iter(range(8, 408, 8)))]
    assert (max(energies) < 2 * min(energies)) == stable
    assert stable or energies[-1] > 100 * energies[0]


def stationary(factor, inner, timestep, kept):
    """k <x²> / k T, and m <v²> / k T after a further half kick, of BAOAB-RESPA by its linear map."""
    angle = FREQUENCY * timestep  # x in units of its deviation, v in those of its own
    slow = np.array([[1.0, 0], [-(1 - factor) * inner * angle / 2, 1]])
    kick, drift = np.array([[1.0, 0], [-factor * angle / 2, 1]]), np.array([[1, angle / 2], [0, 1.0]])
    after = kick @ drift
    once = after @ np.diag([1, kept]) @ drift @ kick
    whole, noise = slow, np.zeros((2, 2))
    for _ in range(inner):
        whole = once @ whole
        noise = once @ noise @ once.T + (1 - kept**2) * np.outer(after[:, 1], after[:, 1])
    whole, noise = slow @ whole, slow @ noise @ slow.T
    covariance = np.eye(2)
    for _ in range(3000):
        covariance = whole @ covariance @ whole.T + noise
    last_kick = kick @ slow
    return covariance[0, 0], (last_kick @ covariance @ last_kick.T)[1, 1]
