import warnings

import ase.build
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms, FixBondLength, FixCartesian
from ase.filters import FrechetCellFilter
from ase.optimize import FIRE

import torchmdx
from torchmdx import Calculator
from torchmdx.dynamics.relaxation.fire import FireSettings
from torchmdx.dynamics.relaxation.run import relax_each
from torchmdx.models.priors.zbl import ZBLConfig
from torchmdx.structures.units import GPA

CPU = dict(dtype="float64", device="cpu")


@pytest.fixture(scope="module")
def repulsive(make_potential) -> torchmdx.Potential:
    """Only repels, so that crystals under pressure have a minimum; of which elements, matters."""
    potential = make_potential(priors=[ZBLConfig])
    potential.scale.fill_(0)
    return potential


def crystals() -> list[Atoms]:
    """Carbon, nitrogen and oxygen in cells of 1 to 12 atoms, distorted."""
    found = []
    for k, (symbols, name, a, repeat) in enumerate(
        [
            ("C", "fcc", 3.0, 1),
            ("CO", "zincblende", 4.2, 1),
            ("N", "bcc", 2.4, 2),
            ("C", "hcp", 2.2, 1),
            ("O", "sc", 2.3, 1),
        ]
    ):
        atoms = ase.build.bulk(symbols, name, a=a) * (repeat, 1, 1)
        if k % 2:
            atoms = atoms * (1, 3, 2)
        atoms.rattle(0.05, seed=k)
        found.append(atoms)
    return found


def molecules() -> list[Atoms]:
    found = []
    for k, name in enumerate(("CH3CH2OH", "H2O", "NH3", "CH4", "C2H6", "H2CO")):
        atoms = ase.build.molecule(name)
        atoms.rattle(0.03, seed=k)
        found.append(atoms)
    return found


def by_ase(atoms: Atoms, potential, fmax: float, pressure: float | None = None) -> tuple[Atoms, int]:
    alone = atoms.copy()
    alone.calc = Calculator(potential, **CPU)
    target = alone if pressure is None else FrechetCellFilter(alone, scalar_pressure=pressure * GPA)
    optimizer = FIRE(target, logfile=None)
    assert optimizer.run(fmax=fmax, steps=1000)
    return alone, optimizer.nsteps


def test_molecules_of_mixed_sizes_reach_the_minima_of_single_relaxations(potential):
    found = torchmdx.relax(molecules(), potential, fmax=0.1, batch_atoms=16, optimizer="fire", **CPU)
    assert [one.index for one in found] == list(range(6))
    for one, atoms in zip(found, molecules(), strict=True):
        alone, _ = by_ase(atoms, potential, 0.1)
        assert one.converged
        assert one.fmax < 0.1
        assert np.array_equal(one.atoms.numbers, atoms.numbers)
        recomputed = one.atoms.copy()
        recomputed.calc = Calculator(potential, **CPU)
        assert one.atoms.get_potential_energy() == pytest.approx(recomputed.get_potential_energy(), abs=1e-9)
        np.testing.assert_allclose(one.atoms.get_forces(), recomputed.get_forces(), atol=1e-8)
        assert np.linalg.norm(recomputed.get_forces(), axis=1).max() == pytest.approx(one.fmax, abs=1e-8)
        assert one.atoms.get_potential_energy() == pytest.approx(alone.get_potential_energy(), abs=0.02)


@pytest.mark.nightly
def test_cells_under_pressure_reach_the_minima_of_single_relaxations(repulsive):
    pressure = 60.0
    found = torchmdx.relax(crystals(), repulsive, fmax=2e-3, cell=True, pressure=pressure, batch_atoms=16, **CPU)
    for one, atoms in zip(found, crystals(), strict=True):
        alone, _ = by_ase(atoms, repulsive, 2e-3, pressure)
        assert one.converged, one.reason
        enthalpies = [x.get_potential_energy() + pressure * GPA * x.get_volume() for x in (one.atoms, alone)]
        assert enthalpies[0] == pytest.approx(enthalpies[1], abs=2e-4 * len(atoms))
        assert one.atoms.get_volume() == pytest.approx(alone.get_volume(), rel=2e-3)
        recomputed = one.atoms.copy()
        recomputed.calc = Calculator(repulsive, **CPU)
        np.testing.assert_allclose(one.atoms.get_stress(), recomputed.get_stress(), atol=1e-9)
        np.testing.assert_allclose(recomputed.get_stress()[:3], -pressure * GPA, atol=5e-3)


@pytest.mark.nightly_for("12", "1000")
@pytest.mark.parametrize("batch_atoms", [1, 12, 1000])
def test_results_do_not_depend_on_the_batch(repulsive, batch_atoms):
    settings = dict(fmax=0.05, cell=True, pressure=60.0, **CPU)
    some = crystals()[:3]
    together = torchmdx.relax(some, repulsive, batch_atoms=batch_atoms, **settings)
    for atoms, one in zip(some, together, strict=True):
        (alone,) = torchmdx.relax([atoms], repulsive, **settings)
        assert one.num_steps == alone.num_steps
        np.testing.assert_allclose(one.atoms.positions, alone.atoms.positions, atol=1e-7)
        np.testing.assert_allclose(one.atoms.cell.array, alone.atoms.cell.array, atol=1e-7)


def test_failures_do_not_affect_the_others(potential):
    good = molecules()
    bad = [
        Atoms("H2", [[0, 0, 0], [0, 0, 0]]),
        Atoms("U", [[0, 0, 0]]),
        Atoms("C", [[0, 0, np.nan]]),
        Atoms("C", [[0, 0, 0]], pbc=True),
        Atoms(),
        ase.build.molecule("CH4"),
    ]
    bad[5].set_constraint(FixBondLength(0, 1))
    reasons = [
        "not finite",
        "atomic numbers up to 35, got 92",
        "nan",
        "lattice|cell",
        "at least one atom",
        "FixBondLength",
    ]
    mixed = [good[0], *bad[:3], *good[1:4], *bad[3:], *good[4:]]
    found = torchmdx.relax(mixed, potential, fmax=0.1, **CPU)
    expected = torchmdx.relax(good, potential, fmax=0.1, **CPU)
    failures = [one for one in found if not one.converged]
    assert [one.index for one in failures] == [1, 2, 3, 7, 8, 9]
    for one, reason in zip(failures, reasons, strict=True):
        assert one.reason is not None
        assert any(part in one.reason for part in reason.split("|")), one.reason
    for one, alone in zip([one for one in found if one.converged], expected, strict=True):
        assert one.num_steps == alone.num_steps
        np.testing.assert_allclose(one.atoms.positions, alone.atoms.positions, atol=1e-7)


def test_structures_out_of_steps_keep_what_they_reached(potential):
    (found,) = torchmdx.relax(molecules()[:1], potential, fmax=1e-3, steps=4, **CPU)
    assert not found.converged
    assert found.num_steps == 4
    assert "not converged to 0.001 eV/Å in 4 steps: largest force" in found.reason
    start = molecules()[0]
    start.calc = Calculator(potential, **CPU)
    assert found.atoms.get_potential_energy() < start.get_potential_energy()


@pytest.mark.parametrize("optimizer", ["lbfgs", "fire"])
def test_fixed_atoms_and_coordinates_stay(potential, optimizer):
    fixed, partly = molecules()[0], molecules()[0]
    fixed.set_constraint(FixAtoms([0, 3]))
    partly.set_constraint(FixCartesian([1], mask=(False, True, True)))
    found = torchmdx.relax([fixed, partly, molecules()[0]], potential, fmax=0.1, optimizer=optimizer, **CPU)
    moved = [np.abs(one.atoms.positions - molecules()[0].positions) for one in found]
    assert (moved[0][[0, 3]] == 0).all()
    assert moved[1][1, 0] > 1e-4
    assert (moved[1][1, 1:] == 0).all()
    assert (moved[2] > 1e-6).all()
    assert found[0].atoms.constraints
    if optimizer == "lbfgs":  # random potentials have many minima
        return
    alone, _ = by_ase(fixed, potential, 0.1)
    assert found[0].atoms.get_potential_energy() == pytest.approx(alone.get_potential_energy(), abs=0.02)


def test_fixed_atoms_follow_a_moving_cell(repulsive):
    atoms = crystals()[1]
    atoms.set_constraint(FixAtoms([0, 1]))
    before = atoms.get_scaled_positions()
    (found,) = torchmdx.relax([atoms], repulsive, fmax=0.02, cell=True, pressure=60, **CPU)
    assert abs(found.atoms.get_volume() / atoms.get_volume() - 1) > 0.02
    moved = np.abs(found.atoms.get_scaled_positions() - before)
    assert (moved[:2] < 1e-9).all()
    assert (moved[2:].max(axis=1) > 1e-4).all()


def test_charges_change_the_result_and_info_survives(make_potential):
    potential = make_potential()
    atoms = molecules()[:2]
    charged = [one.copy() for one in atoms]
    for k, one in enumerate(charged):
        one.info |= {"charge": 1, "name": f"number {k}"}
    neutral = torchmdx.relax(atoms, potential, fmax=0.2, **CPU)
    ions = torchmdx.relax(charged, potential, fmax=0.2, **CPU)
    for one, other in zip(ions, neutral, strict=True):
        assert abs(one.atoms.get_potential_energy() - other.atoms.get_potential_energy()) > 1e-5
        assert one.atoms.info["name"] == f"number {one.index}"


def test_molecules_and_crystals_together(repulsive):
    mixed = [molecules()[1], crystals()[0], molecules()[2]]
    found = torchmdx.relax(mixed, repulsive, fmax=0.5, **CPU)
    assert [one.converged for one in found] == [True] * 3
    assert [len(one.atoms) for one in found] == [3, 1, 4]


def test_a_cell_that_cannot_move_is_a_failure(repulsive):
    slab = crystals()[0]
    slab.pbc = (True, True, False)
    found = torchmdx.relax([molecules()[1], slab], repulsive, fmax=0.1, cell=True, pressure=1.0, **CPU)
    assert "a moving cell needs a periodic structure" in found[0].reason
    assert "a pressure needs a structure periodic in all directions" in found[1].reason


def test_stop_ends_between_two_steps(potential):
    seen = []

    def stop() -> bool:
        return len(seen) >= 2

    settings = FireSettings(fmax=0.1)
    for one in relax_each(molecules(), potential, settings, batch_atoms=10, stop=stop, **CPU):
        seen.append(one)
    assert 2 <= len(seen) < 6


def test_bad_arguments(potential):
    with pytest.raises(ValueError, match=r"dtype must be one of .*, got 'float16'"):
        torchmdx.relax([], potential, dtype="float16")
    with pytest.raises(ValueError, match="batch_atoms must be >= 1, got 0"):
        torchmdx.relax([], potential, batch_atoms=0)
    with pytest.raises(ValueError, match="fmax must be > 0 eV/Å, got -1"):
        torchmdx.relax([], potential, fmax=-1)
    assert torchmdx.relax([], potential, **CPU) == []


def test_doubts_of_the_potential_are_told_once_with_the_number_of_structures():
    radical, water = ase.build.molecule("CH3"), ase.build.molecule("H2O")
    ice = Atoms(water, cell=[4, 4, 4], pbc=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torchmdx.relax([radical, water, radical, ice], steps=1, device="cpu")
    found = sorted(str(warning.message) for warning in caught if "organic-1" in str(warning.message))
    assert len(found) == 2
    assert found[0].startswith("1 structure of 4: organic-1 was trained on molecules in vacuum")
    assert found[1].startswith("2 structures of 4: organic-1 was trained on closed shells, got 9 electrons")


def test_one_structure_need_not_be_in_a_list(potential):
    (alone,), (listed,) = (
        torchmdx.relax(given, potential, fmax=0.5, **CPU) for given in (molecules()[1], molecules()[1:2])
    )
    np.testing.assert_array_equal(alone.atoms.positions, listed.atoms.positions)


def test_relaxed_crystals_carry_stress_and_free_energy(repulsive):
    (found,) = torchmdx.relax(crystals()[0], repulsive, fmax=0.5, **CPU)
    again = found.atoms.copy()
    again.calc = Calculator(repulsive, **CPU)
    np.testing.assert_allclose(found.atoms.get_stress(), again.get_stress(), atol=1e-8)
    assert found.atoms.get_potential_energy(force_consistent=True) == found.atoms.get_potential_energy()
    np.testing.assert_array_equal(found.atoms.cell.array, crystals()[0].cell.array)
    (molecule,) = torchmdx.relax(molecules()[1], repulsive, fmax=0.5, **CPU)
    assert "stress" not in molecule.atoms.calc.results
