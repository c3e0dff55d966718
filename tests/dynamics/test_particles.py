"""Masses, frozen atoms, degrees of freedom and initial velocities."""

import numpy as np
import pytest
from ase.build import molecule
from ase.data import atomic_masses
from oscillators import atoms_alone
from scipy import stats

from torchmdx import Batch, System
from torchmdx.dynamics.particles import Particles, checked_frozen, checked_masses, with_heavy_hydrogens, with_masses
from torchmdx.structures.units import AMU_SI, BOLTZMANN_SI


def batch_of(*names) -> Batch:
    return Batch.from_systems([System.from_ase(molecule(name)) for name in names])


def particles_of(sizes, frozen=(), *, momentum_kept=True):
    batch = atoms_alone(sizes)
    mask = checked_frozen(batch, list(frozen))
    return Particles.of(batch, checked_masses(batch, None), mask, momentum_kept=momentum_kept)


@pytest.mark.parametrize(
    ("sizes", "frozen", "kept", "expected"),
    [
        ([4, 1, 2], [], True, [9, 3, 3]),
        ([4, 1, 2], [], False, [12, 3, 6]),
        ([4, 3], [0, 6], True, [9, 6]),
        ([4, 3], [6], True, [9, 6]),
    ],
)
def test_degrees_of_freedom(sizes, frozen, kept, expected):
    assert particles_of(sizes, frozen, momentum_kept=kept).degrees_of_freedom().tolist() == expected


def test_masses_are_those_of_the_elements():
    batch = batch_of("H2O", "CH4")
    np.testing.assert_array_equal(checked_masses(batch, None), atomic_masses[[8, 1, 1, 6, 1, 1, 1, 1]])
    np.testing.assert_array_equal(checked_masses(batch, np.arange(1, 9)), np.arange(1, 9))
    with pytest.raises(ValueError, match="masses must be > 0 amu and finite, got 0.0 for atom 0"):
        checked_masses(batch, np.arange(8))


def test_frozen_atoms_from_indices_and_masks():
    batch = atoms_alone([3])
    mask = np.array([True, False, True])
    np.testing.assert_array_equal(checked_frozen(batch, [0, 2]), mask)
    np.testing.assert_array_equal(checked_frozen(batch, mask), mask)
    with pytest.raises(ValueError, match=r"a mask of frozen atoms must have shape \[3\], got \[2\]"):
        checked_frozen(batch, mask[:2])
    with pytest.raises(ValueError, match="frozen must be indices of atoms or a mask, got float64"):
        checked_frozen(batch, [0.5])


def test_velocities_are_of_maxwell_and_boltzmann():
    """Against the distribution in SI units; the numbers are normal within a Kolmogorov-Smirnov test at 1e-4."""
    found = particles_of([3000], momentum_kept=False).draw_velocities(np.array([450.0]), np.array([3]))
    scale = np.sqrt(BOLTZMANN_SI * 450.0 / (atomic_masses[6] * AMU_SI)) * 1e-5  # m/s in Å/fs
    assert stats.kstest(found.ravel() / scale, "norm").pvalue > 1e-4


def test_velocities_have_no_momentum_where_it_stays():
    particles = particles_of([50, 40, 1], [89])
    found = particles.draw_velocities(np.full(3, 300.0), np.arange(3))
    momentum = np.array([(particles.masses[own, None] * found[own]).sum(0) for own in (slice(0, 50), slice(50, 90))])
    np.testing.assert_allclose(momentum[0], 0, atol=1e-13)
    assert (np.abs(momentum[1]) > 1e-4).all()  # an atom is frozen: the momentum is not constant
    assert (found[89] == 0).all()
    assert (found[90] != 0).all()
    kinetic = particles.kinetic_energy(found)
    assert kinetic[0] == pytest.approx(0.5 * 12.011 * AMU_SI * (found[:50] ** 2).sum() * 1e10 / 1.602176634e-19)
    # 147 and 117 degrees of freedom: 5 standard deviations.
    np.testing.assert_allclose(particles.temperature(kinetic)[:2], 300, rtol=5 * np.sqrt(2 / 117))


def test_drift_is_no_part_of_the_kinetic_energy_where_the_momentum_stays():
    particles = particles_of([4, 1, 2], [5])  # the second has no other motion, an atom of the third is frozen
    velocities, drift = np.random.default_rng(0).normal(size=(7, 3)), np.array([3.0, -2.0, 5.0])
    velocities[:4] -= velocities[:4].mean(0)
    energy = particles.kinetic_energy(velocities)
    found = particles.kinetic_energy(velocities + drift)
    assert found[0] == pytest.approx(energy[0])
    mass = 12.011 * AMU_SI * 1e10 / 1.602176634e-19
    assert found[1:] == pytest.approx([0.5 * mass * ((velocities + drift)[own] ** 2).sum() for own in ([4], [5, 6])])
    np.testing.assert_allclose(particles.drift(velocities + drift), [drift, 0 * drift, 0 * drift], atol=1e-14)
    assert particles.tied(np.array([True, False, False])).kinetic_energy(velocities + drift)[0] == pytest.approx(
        0.5 * mass * ((velocities + drift)[:4] ** 2).sum()
    )
    half = particles.rescaled(velocities + drift, np.full(3, 0.5))
    np.testing.assert_allclose(half[:4], 0.5 * velocities[:4] + drift)
    np.testing.assert_allclose(half[4:], 0.5 * (velocities + drift)[4:])
    thermal = 3 * BOLTZMANN_SI / 1.602176634e-19 * np.array([200.0, 0, 0])
    np.testing.assert_allclose(particles.kinetic_virial(energy, np.full(3, 200.0)), 2 * energy + thermal)


def test_hydrogen_masses_come_from_the_bonded_atoms():
    batch = batch_of("CH3CH2OH", "H2", "H2O")
    masses = checked_masses(batch, None)
    found, _ = with_heavy_hydrogens(batch, masses, 2.5)
    numbers = batch.atomic_numbers.numpy()
    assert found.sum() == pytest.approx(masses.sum())
    assert (found[:9][numbers[:9] == 1] == 2.5).all()
    gained = 2.5 - atomic_masses[1]
    # CH2, O, CH3 in ASE's order of ethanol's heavy atoms
    assert sorted(np.round((masses - found)[:9][numbers[:9] != 1] / gained).astype(int)) == [1, 2, 3]
    np.testing.assert_array_equal(found[9:11], masses[9:11])  # H2 has no heavy atom
    assert found[11] == pytest.approx(atomic_masses[8] - 2 * gained)


def test_bonds_across_the_faces_of_a_cell_count():
    cell = 6.0 * np.eye(3)
    system = System.create([[0.1, 3, 3], [5.2, 3, 3], [0.7, 3.6, 3]], [8, 1, 1], cell, True)
    found, _ = with_heavy_hydrogens(Batch.of(system), np.array([15.999, 1.008, 1.008]), 2.0)
    np.testing.assert_allclose(found, [15.999 - 2 * 0.992, 2, 2])


def test_hydrogens_that_are_too_heavy_are_refused():
    with pytest.raises(ValueError, match="keep at least the hydrogen mass of 4.0 amu, got .* for atom 0"):
        with_heavy_hydrogens(batch_of("CH4"), checked_masses(batch_of("CH4"), None), 4.0)
    with pytest.raises(ValueError, match="hydrogen_mass must be > 0 amu and finite, got 0.0"):
        with_heavy_hydrogens(batch_of("CH4"), checked_masses(batch_of("CH4"), None), 0.0)


def test_velocities_at_other_masses():
    atoms = molecule("C6H6")
    before, velocities = atoms.get_masses(), 0.01 + 0.02 * np.random.default_rng(1).normal(size=(12, 3))
    after = before + np.where(atoms.numbers == 1, 2.0, -2.0)
    free, fixed = np.zeros(12, dtype=bool), np.arange(12) == 0
    found = with_masses(velocities, before, after, free)
    assert after @ (found**2).sum(1) == pytest.approx(before @ (velocities**2).sum(1))
    np.testing.assert_allclose(after @ found, before @ velocities, rtol=1e-12)
    found = with_masses(velocities, before, after, fixed)
    np.testing.assert_allclose(after * (found**2).sum(1), before * (velocities**2).sum(1))
    assert with_masses(velocities, before, before, free) is velocities


def test_velocities_of_each_structure_keep_its_temperature():
    """Structure by structure: the one with a frozen atom keeps each kinetic energy, the other its drift."""
    batch = batch_of("CH3OH", "CH4")
    before, frozen = checked_masses(batch, None), checked_frozen(batch, [8])
    velocities = 0.02 * np.random.default_rng(2).normal(size=(11, 3)) * ~frozen[:, None]
    after, found = with_heavy_hydrogens(batch, before, 3.0, velocities, frozen)
    np.testing.assert_array_equal(after, with_heavy_hydrogens(batch, before, 3.0)[0])
    for own in (slice(0, 6), slice(6, 11)):
        kinetic = before[own] @ (velocities[own] ** 2).sum(1)
        assert after[own] @ (found[own] ** 2).sum(1) == pytest.approx(kinetic, rel=1e-12)
    np.testing.assert_allclose(after[:6] @ found[:6], before[:6] @ velocities[:6], atol=1e-15)
    np.testing.assert_allclose(found[6:], velocities[6:] * np.sqrt(before[6:] / after[6:])[:, None])
