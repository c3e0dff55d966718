"""Stochastic cell rescaling: distributions of the volume, momentum, units, restart, and what is refused."""

import re

import numpy as np
import pytest
from gases import FREE, PRESSURE, THERMAL, gas

from torchmdx import Dynamics, System
from torchmdx.dynamics.barostat import CellError, CellRescaling
from torchmdx.dynamics.integrators import Bussi, Langevin
from torchmdx.dynamics.restraints import Position
from torchmdx.structures.units import BAR

COPIES, ATOMS = 240, 12
# The volume of an ideal gas relaxes within τ if β is its own compressibility, 1/P₀.
BOTH = [Langevin(friction=20.0), Bussi(relaxation=0.05)]
FAST = CellRescaling(pressure=PRESSURE, relaxation=0.1, compressibility=1 / PRESSURE)


def sampled(integrator, **options):
    """Volumes of independent boxes after equilibration, 6 times, more than two relaxation times apart."""
    loop = gas(integrator, FAST, 2.0, [ATOMS] * COPIES, **options)
    return np.concatenate([one.volume for one in loop.snapshots(iter(range(400, 1000, 100)))]), loop


@pytest.mark.nightly
@pytest.mark.parametrize("integrator", BOTH)
def test_volumes_of_an_ideal_gas_have_a_gamma_distribution(integrator):
    """p(V) ∝ V^N exp(-P₀ V / kT), also where the momentum is constant: mean and variance N + 1.

    Within 4.5 standard errors of 1,440 samples, of which those of a box are taken as two thirds independent, and 1.5 %
    for the error of the timestep, h / (2 τ) = 1 %.
    """
    found, _ = sampled(integrator)
    found, number = found / FREE, ATOMS + 1
    error = np.sqrt(1.5 / len(found))
    assert found.mean() == pytest.approx(number, abs=4.5 * error * np.sqrt(number) + 0.015 * number)
    kurtosis = 3 + 6 / number  # of a gamma distribution
    assert found.var() == pytest.approx(number, abs=number * (4.5 * error * np.sqrt(kurtosis - 1) + 0.03))


@pytest.mark.nightly
@pytest.mark.parametrize("integrator", BOTH)
def test_the_virial_of_the_potential_holds_the_volume(integrator):
    """A cell with a spring: the mean of p(V) ∝ V^N exp(-(P₀ V + B/2 (V - V₀)²/V₀) / kT), integrated numerically."""
    bulk, rest = 3 * PRESSURE * 6.241509e-7, 1000.0  # eV/Å³: 1 bar is 6.24e-7
    found, loop = sampled(integrator, bulk=bulk, rest=rest, volume=rest)
    volume = np.linspace(1.0, 3 * rest, 20001)
    energy = PRESSURE * BAR * volume + 0.5 * bulk * (volume - rest) ** 2 / rest
    weight = np.exp(ATOMS * np.log(volume / rest) - (energy - energy.min()) / THERMAL)
    mean = (weight * volume).sum() / weight.sum()
    deviation = np.sqrt((weight * (volume - mean) ** 2).sum() / weight.sum())
    assert abs(mean - ATOMS * FREE) > 100  # the spring matters
    assert found.mean() == pytest.approx(mean, abs=4.5 * deviation * np.sqrt(1.5 / len(found)) + 0.005 * mean)
    last = loop.snapshot()
    slope = bulk * (last.volume - rest) / rest
    # Three directions of the momentum, which is constant with Bussi, have the thermal energy.
    missing = 3 * THERMAL * isinstance(integrator, Bussi)
    expected = ((2 * last.kinetic_energy + missing) / (3 * last.volume) - slope) / 6.241509e-7
    np.testing.assert_allclose(last.pressure, expected, rtol=1e-6)


def test_cells_and_positions_are_scaled_together():
    loop = gas(Bussi(), FAST, 1.0, [5, 3])
    before, after = loop.snapshot(), next(loop.snapshots(iter([30])))
    system = after.particles.system
    scale = (after.volume / before.volume) ** (1 / 3)
    np.testing.assert_allclose(after.cell, scale[:, None, None] * before.cell, rtol=1e-12)
    assert (np.abs(after.volume / before.volume - 1) > 1e-3).all()
    # Without forces and with tiny steps, fractional coordinates move with the velocities alone.
    slow = gas(Langevin(), FAST, 1e-9, [5, 3])
    moved = next(slow.snapshots(iter([3])))
    inner = [np.einsum("ni,nij->nj", one.positions, np.linalg.inv(one.cell)[system]) for one in (before, moved)]
    np.testing.assert_allclose(inner[0], inner[1], atol=1e-9)


def test_the_centre_of_mass_stays_at_rest():
    found = next(gas(Bussi(), FAST, 1.0, [5, 3]).snapshots(iter([50])))
    for k in range(2):
        own = found.particles.system == k
        assert np.abs(found.particles.masses[own] @ found.velocities[own]).max() < 1e-12


@pytest.mark.nightly_for("integrator1")
@pytest.mark.parametrize("integrator", BOTH)
def test_a_few_atoms_have_their_exact_volume_and_pressure(integrator):
    """⟨V⟩ = (N + 1) kT / P₀ and ⟨P⟩ = P₀ of an ideal gas of 4 atoms, within 4.5 errors of 240 boxes and 1.5 %."""
    loop = gas(integrator, CellRescaling(PRESSURE, relaxation=0.2, compressibility=1 / PRESSURE), 2.0, [4] * COPIES)
    found = [(one.volume / FREE, one.pressure) for one in loop.snapshots(iter(range(300, 800, 20)))]
    for values, expected in zip(np.mean(found, axis=0), (5.0, PRESSURE), strict=True):
        error = 4.5 * values.std() / np.sqrt(COPIES)
        assert error < 0.1 * expected  # N instead of N + 1 would be 20 % less
        assert values.mean() == pytest.approx(expected, abs=error + 0.015 * expected)


@pytest.mark.parametrize("high", [False, True])
def test_boxes_expand_and_shrink_towards_the_pressure(high):
    """Atoms in a box of twice, or half, the volume that they have at this pressure."""
    loop = gas(Langevin(), FAST, 1.0, [400], volume=(0.5 if high else 2.0) * 400 * FREE)
    start, end = loop.snapshot(), next(loop.snapshots(iter([60])))
    assert (start.pressure > PRESSURE) == high
    assert (end.volume > start.volume) == high


def test_a_volume_that_jumps_is_an_error_that_keeps_the_step_before():
    loop = gas(Langevin(), CellRescaling(pressure=1e7, relaxation=1e-4, compressibility=1e-3), 1.0, [4, 4])
    kept = loop.snapshot()
    with pytest.raises(CellError, match="volume of structure 0, .* Å³, must change by less than a factor of two"):
        next(loop.snapshots(iter([5])))
    np.testing.assert_array_equal(loop.snapshot().cell, kept.cell)
    assert loop.num_steps == 0


def crystal(size=3.0, pbc=True):
    grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)
    return System.create(size * grid + 0.3, np.full(8, 6), cell=2 * size * np.eye(3), pbc=pbc)


def run_of(potential, barostat=None, **options):
    barostat = CellRescaling(pressure=2e4, relaxation=0.05, compressibility=1e-5) if barostat is None else barostat
    return Dynamics(potential, [crystal(), crystal(3.2)], timestep=0.5, seed=3, barostat=barostat, **options)


@pytest.mark.nightly
@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_the_neighbour_list_follows_the_cell(make_potential, skin):
    """Energies and virials of a run whose cells shrink are those of the last structures evaluated anew."""
    potential = make_potential()
    dynamics = run_of(potential, skin=skin)
    start, found = dynamics.snapshot(), dynamics.run(60)
    assert (found.volume < 0.97 * start.volume).all()
    numbers = np.full(8, 6)
    again = [System.create(found.positions[8 * k : 8 * k + 8], numbers, cell=found.cell[k], pbc=True) for k in range(2)]
    fresh = Dynamics(potential, again, barostat=dynamics.motion.barostat).snapshot()
    np.testing.assert_allclose(found.energy, fresh.energy, rtol=1e-9)
    np.testing.assert_allclose(found.forces, fresh.forces, atol=1e-8)
    np.testing.assert_allclose(found.virial, fresh.virial, atol=1e-8)


def test_a_restart_continues_to_the_bit(make_potential, tmp_path):
    potential = make_potential()
    first = run_of(potential)
    first.run(5)
    first.snapshot().save(tmp_path / "state.npz")
    expected, again = first.run(7), run_of(potential)
    again.restore(tmp_path / "state.npz")
    found = again.run(7)
    for name in ("positions", "velocities", "forces", "energy", "virial", "cell"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_the_virial_is_that_of_the_energy_under_strain(make_potential):
    potential = make_potential()
    virial = run_of(potential).snapshot().virial
    for k, size in enumerate((3.0, 3.2)):
        energies = [energy_of(potential, size, scale) for scale in (1 + 1e-5, 1 - 1e-5)]
        assert virial[k] == pytest.approx(-(energies[0] - energies[1]) / 2e-5, rel=1e-5)


def energy_of(potential, size, scale):
    """Of the crystal with positions and cell scaled."""
    one = crystal(size)
    scaled = System.create(scale * one.positions.numpy(), np.full(8, 6), cell=scale * one.cell.numpy(), pbc=True)
    return Dynamics(potential, scaled).snapshot().energy[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            dict(integrator="verlet"),
            "a barostat needs an integrator with constant temperature, got one with constant energy",
        ),
        (dict(frozen=[0, 1]), "a barostat moves all atoms, got 2 frozen ones"),
        (dict(restraints=[Position((0,), 1.0)]), "a barostat moves all positions, got restraints on positions"),
        (dict(exchange_every=5), "an exchange of temperatures needs constant volume, got a barostat"),
    ],
)
def test_what_cannot_be_at_constant_pressure(make_potential, options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        run_of(make_potential(), **options)


def test_cells_must_be_periodic(make_potential):
    with pytest.raises(ValueError, match=re.escape("got [True, True, False] for structure 1")):
        Dynamics(make_potential(), [crystal(), crystal(pbc=[True, True, False])], barostat=CellRescaling())
    with pytest.raises(TypeError, match="barostat must be a CellRescaling"):
        Dynamics(make_potential(), crystal(), barostat="mc")


@pytest.mark.parametrize("name", ["relaxation", "compressibility"])
def test_parameters_out_of_range(name):
    with pytest.raises(ValueError, match=f"{name} must be > 0 .* and finite, got -1.0"):
        CellRescaling(**{name: -1.0})
    with pytest.raises(ValueError, match="pressure must be a finite number of bar, got nan"):
        CellRescaling(pressure=np.nan)
