"""DividedPool: a step is kept while atoms stay the same; the calculator with devices."""

import copy
import pickle

import numpy as np
import pytest
from ase.build import molecule

import torchmdx
from torchmdx import System
from torchmdx.lammps.example import water
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.divided_pool import DividedPool, pool_for
from torchmdx.step.pool import StepPool


def test_a_step_is_kept_for_the_same_atoms(potential):
    pool, whole = DividedPool(potential, ["cpu", "cpu"], stress=True), StepPool(potential, stress=True)
    atoms, ethanol = water(27), molecule("CH3CH2OH")
    slab = atoms.copy()
    slab.pbc = (True, True, False)
    charged = atoms.copy()
    charged.info["charge"] = 1
    squeezed = atoms.copy()
    squeezed.set_cell(atoms.cell.array * 0.98, scale_atoms=True)
    assert pool.steps == []
    for structure, assignments in ((atoms, 1), (squeezed, 0), (ethanol, 1), (slab, 1), (atoms, 1), (charged, 1)):
        before = pool.steps[0].num_assignments if pool.steps else 0
        system = System.from_ase(structure)
        found, wanted = pool(system), whole(system)
        np.testing.assert_allclose(found.forces, wanted.forces, rtol=0, atol=1e-11)
        np.testing.assert_allclose(found.energies, wanted.energies, rtol=1e-12, atol=1e-11)
        np.testing.assert_allclose(found.stress, wanted.stress, rtol=0, atol=1e-12)
        assert pool.steps[0].num_assignments == before + assignments
        moved = structure.positions + 0.01
        np.testing.assert_allclose(pool(system, moved).forces, whole(system, moved).forces, rtol=0, atol=1e-11)
    assert len(pool.steps) == 1


def test_other_partial_charges_are_taken(make_potential):
    pool = DividedPool(make_potential(priors=[lambda: CoulombConfig(charges="given")]), ["cpu"])
    whole, atoms = StepPool(pool.potential), molecule("CH3CH2OH")
    for scale in (0.1, 0.2, 0.2):
        atoms.set_initial_charges(scale * np.linspace(-1, 1, 9))
        system = System.from_ase(atoms)
        np.testing.assert_allclose(pool(system).energy, whole(system).energy, rtol=0, atol=1e-10)
    assert pool.steps[0].num_assignments == 2


def test_pools_by_devices(potential):
    assert isinstance(pool_for(potential, None), StepPool)
    assert isinstance(pool_for(potential, ["cpu"]), DividedPool)


def test_the_calculator(potential):
    atoms = water(27)
    atoms.calc = torchmdx.Calculator(potential, dtype="float64", devices=["cpu", "cpu"])
    other = atoms.copy()
    other.calc = torchmdx.Calculator(potential, dtype="float64", device="cpu")
    assert atoms.calc.report() is None
    for calculator in (atoms.calc, copy.deepcopy(atoms.calc), pickle.loads(pickle.dumps(atoms.calc))):
        atoms.calc = calculator
        atoms.rattle(0.01, seed=1)
        other.positions = atoms.positions
        np.testing.assert_allclose(atoms.get_forces(), other.get_forces(), rtol=0, atol=1e-11)
        np.testing.assert_allclose(atoms.get_stress(), other.get_stress(), rtol=0, atol=1e-12)
        assert atoms.get_potential_energy() == pytest.approx(other.get_potential_energy(), rel=1e-12)
        np.testing.assert_allclose(atoms.get_potential_energies(), other.get_potential_energies(), rtol=1e-11)
    assert repr(atoms.calc) == "torchmdx.Calculator(float64 on cpu, cpu, cutoff 5.0 Å)".replace(
        "5.0", str(potential.cutoff)
    )
    assert atoms.calc.parameters["devices"] == ["cpu", "cpu"]
    with pytest.raises(ValueError, match="devices can't be changed by set"):
        atoms.calc.set(devices=["cpu"])
    with pytest.raises(ValueError, match=r"device or devices can be given, not both, got 'cpu' and \['cpu'\]"):
        torchmdx.Calculator(potential, dtype="float64", device="cpu", devices=["cpu"])
    with pytest.raises(ValueError, match="devices must be a list of one or more devices"):
        torchmdx.Calculator(potential, dtype="float64", devices=[])
