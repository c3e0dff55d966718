"""Calculators that are copied, pickled, shared between threads, and changed by `set`."""

import copy
import pickle
import threading

import numpy as np
import pytest
from ase.build import molecule

import torchmdx
from torchmdx import Calculator, Ensemble, System, evaluate
from torchmdx.step.results import GraphRefused, SpreadError

WAYS = [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))]


@pytest.fixture
def calculator(potential) -> Calculator:
    return Calculator(potential, dtype="float64", device="cpu")


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
def test_a_copy_gives_the_numbers_of_the_original(calculator, potential, crystal, ethanol, way, used):
    crystal.calc = calculator
    if used:
        crystal.get_stress()
        calculator.get_forces(ethanol)
    other = way(crystal)
    assert other.calc is not calculator
    assert other.calc.pool.stress == used
    assert len(other.calc.pool) == 0
    other.rattle(0.02, seed=3)
    wanted = evaluate(potential, System.from_ase(other), stress=True)
    np.testing.assert_allclose(other.get_forces(), wanted.forces, atol=1e-13)
    np.testing.assert_allclose(other.get_stress(voigt=False), wanted.stress[0], atol=1e-13)
    if used:  # the original keeps its structure
        assert len(calculator.pool) == 2
        np.testing.assert_allclose(
            crystal.get_forces(), evaluate(potential, System.from_ase(crystal)).forces, atol=1e-13
        )


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
def test_a_copy_keeps_results_and_parameters(potential, cation, monkeypatch, way):
    calculator = Calculator(potential, dtype="float64", charge=-1)
    energy = calculator.get_potential_energy(cation)
    other = way(calculator)
    assert other.parameters == calculator.parameters
    monkeypatch.setattr(other, "calculate", None)  # nothing is computed for the same atoms
    assert other.get_potential_energy(cation) == energy


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
def test_a_copy_of_an_ensemble_keeps_its_limit(make_potential, ethanol, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = Ensemble([make_potential(seed=0), make_potential(seed=1)])
    other = way(Calculator(members, dtype="float64", max_force_spread=1e-6))
    with pytest.raises(SpreadError, match="must be at most 1e-06 eV/Å"):
        other.get_forces(ethanol)
    assert (tmp_path / "uncertain.xyz").exists()


def test_threads_that_share_a_calculator_get_their_own_results(calculator):
    structures = [molecule(name) for name in ("H2O", "CH4", "CH3OH", "NH3")]
    for atoms in structures:
        atoms.calc = calculator
    wanted = [atoms.get_forces() for atoms in structures]
    errors = []

    def work(atoms, forces):
        try:
            for _ in range(15):
                np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-12)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(structures, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_set_changes_the_charge(calculator, potential, cation):
    cation.calc = calculator
    before = cation.get_potential_energy()
    assert calculator.set(charge=-1) == {"charge": -1.0}
    assert calculator.results == {}
    wanted = float(evaluate(potential, System.from_ase(cation, -1)).energy[0])
    assert cation.get_potential_energy() == pytest.approx(wanted, abs=1e-12)
    assert (calculator.charge, calculator.parameters["charge"]) == (-1.0, -1.0)
    assert calculator.set(charge=-1) == {}
    assert calculator.results != {}
    calculator.set(charge=None)
    assert cation.get_potential_energy() == pytest.approx(before, abs=1e-12)


def test_set_changes_mode_and_limit(make_potential, ethanol, tmp_path):
    members = Ensemble([make_potential(seed=0), make_potential(seed=1)])
    calculator = Calculator(members, dtype="float64", device="cpu")
    calculator.get_forces(ethanol)
    file = str(tmp_path / "far.xyz")
    assert calculator.set(mode="eager", max_force_spread=1e-6, spread_file=file) == {
        "mode": "eager",
        "max_force_spread": 1e-6,
        "spread_file": file,
    }
    assert (calculator.mode, calculator.pool.mode) == ("eager", "eager")
    with pytest.raises(SpreadError, match=r"far\.xyz"):
        calculator.get_forces(ethanol)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (dict(chrage=1), TypeError, "one of charge, mode, .*, got 'chrage'; did you mean 'charge'"),
        (dict(xc="PBE"), TypeError, "one of charge, mode, .*, got 'xc'$"),
        (dict(dtype="float32"), ValueError, "dtype can't be changed by set, .* make a new torchmdx.Calculator"),
        (dict(charge="one"), TypeError, "charge must be a number of elementary charges, got 'one'"),
        (dict(mode="fast"), ValueError, "mode must be one of auto, graph, eager, got 'fast'"),
        (dict(mode="graph"), GraphRefused, "mode 'graph' needs a CUDA GPU"),
        (dict(max_force_spread=0.1), ValueError, "max_force_spread needs an ensemble"),
        (dict(spread_file="a.xyz"), ValueError, "spread_file needs max_uncertainty, got 'a.xyz' without it"),
    ],
)
def test_set_refuses_by_name_and_changes_nothing(calculator, ethanol, given, error, message):
    energy = calculator.get_potential_energy(ethanol)
    before = dict(calculator.parameters)
    with pytest.raises(error, match=message):
        calculator.set(**({"charge": 1} | given))
    assert dict(calculator.parameters) == before
    assert calculator.results["energy"] == energy


def test_attributes_are_checked_as_arguments_are(calculator):
    with pytest.raises(TypeError, match="charge must be a number of elementary charges, got 'one'"):
        calculator.charge = "one"
    with pytest.raises(ValueError, match="mode must be one of auto, graph, eager, got 'fast'"):
        calculator.mode = "fast"
    with pytest.raises(AttributeError):
        calculator.dtype = "float32"


def test_todict_lists_what_differs_from_the_defaults(potential):
    named = Calculator(potential, device="cpu").todict()
    assert named == {"device": "cpu", "potential": "in memory", "potential_sha256": named["potential_sha256"]}
    assert len(named["potential_sha256"]) == 16
    exact = Calculator(potential, device="cpu", charge=1, dtype="float64").todict()
    assert exact == named | {
        "potential_sha256": exact["potential_sha256"],  # of weights in float64
        "charge": 1.0,
        "dtype": "float64",
    }


@pytest.mark.parametrize("way", WAYS, ids=["deepcopy", "pickle"])
def test_potentials_copy_and_pickle_after_use(potential, ethanol, way):
    single = torchmdx.Ensemble([potential, potential])
    wanted = evaluate(single, System.from_ase(ethanol)).energy
    assert float(evaluate(way(single), System.from_ase(ethanol)).energy[0]) == float(wanted[0])
