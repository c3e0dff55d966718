import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.calculators.calculator import PropertyNotImplementedError
from ase.filters import ExpCellFilter, FrechetCellFilter
from ase.md.langevin import Langevin
from ase.md.verlet import VelocityVerlet
from ase.optimize import BFGS
from ase.phonons import Phonons
from ase.vibrations import Vibrations

import torchmdx
from torchmdx import Calculator, System, evaluate


@pytest.fixture
def calculator(potential) -> Calculator:
    return Calculator(potential, dtype="float64", device="cpu")


@pytest.fixture
def counted(calculator, monkeypatch):
    """The calculator, and a list that grows by one at each evaluation."""
    evaluations = []
    plain = calculator.calculate

    def calculate(*arguments, **more):
        evaluations.append(1)
        plain(*arguments, **more)

    monkeypatch.setattr(calculator, "calculate", calculate)
    return calculator, evaluations


def test_every_property_is_that_of_the_potential(potential, calculator, crystal):
    crystal.calc = calculator
    wanted = evaluate(potential, System.from_ase(crystal), stress=True)
    assert crystal.get_potential_energy() == pytest.approx(float(wanted.energy[0]), abs=1e-13)
    assert crystal.get_potential_energy(force_consistent=True) == crystal.get_potential_energy()
    np.testing.assert_allclose(crystal.get_potential_energies(), wanted.energies, atol=1e-13)
    np.testing.assert_allclose(crystal.get_forces(), wanted.forces, atol=1e-13)
    stress = wanted.stress[0]
    voigt = [stress[0, 0], stress[1, 1], stress[2, 2], stress[1, 2], stress[0, 2], stress[0, 1]]
    np.testing.assert_allclose(crystal.get_stress(), voigt, atol=1e-13)


def test_energies_sum_to_the_energy(calculator, structure):
    structure.calc = calculator
    assert structure.get_potential_energies().sum() == pytest.approx(structure.get_potential_energy(), rel=1e-13)


def test_results_are_plain_float64(potential, crystal):
    crystal.calc = Calculator(potential, dtype="float32")
    crystal.get_stress()
    results = crystal.calc.results
    assert type(results["energy"]) is float
    assert {results[name].dtype for name in ("energies", "forces", "stress")} == {np.dtype("float64")}
    assert {name: results[name].shape for name in ("energies", "forces", "stress")} == {
        "energies": (3,),
        "forces": (3, 3),
        "stress": (6,),
    }


def test_nothing_is_computed_twice(counted, crystal):
    crystal.calc, evaluations = counted
    for ask in (crystal.get_potential_energy, crystal.get_forces, crystal.get_potential_energies) * 2:
        ask()
    assert len(evaluations) == 1
    crystal.rattle(0.01)
    crystal.get_forces()
    assert len(evaluations) == 2


def test_stress_comes_with_the_forces_once_it_was_asked_for(counted, crystal):
    crystal.calc, evaluations = counted
    crystal.get_stress()
    crystal.rattle(0.01)
    crystal.get_forces()
    crystal.get_stress()
    assert len(evaluations) == 2


def test_a_changed_charge_is_noticed(calculator, cation):
    cation.calc = calculator
    energies = {}
    for charge in (1, 0, -2, 1):
        cation.info["charge"] = charge
        energy = cation.get_potential_energy()
        assert energies.setdefault(charge, energy) == energy
    del cation.info["charge"]
    assert cation.get_potential_energy() == energies[0]
    assert len(set(energies.values())) == 3


def test_positions_that_move_between_other_changes(potential, calculator, cation):
    """Whatever changes first, later moves of the atoms see it."""
    rng = np.random.default_rng(0)
    atoms = cation.copy()
    atoms.calc = calculator
    changes = [
        lambda: None,
        lambda: atoms.numbers.put(0, 6),
        lambda: atoms.info.update(charge=0),
        lambda: atoms.set_cell([9.0, 9.0, 9.0]),
        lambda: atoms.set_pbc([True, True, False]),
        lambda: atoms.set_cell([8.0, 9.0, 9.0]),
        lambda: atoms.set_pbc(False),
        lambda: atoms.info.update(charge=1),
    ]
    for change in changes:
        change()
        for _ in range(2):
            atoms.positions += rng.normal(scale=0.02, size=atoms.positions.shape)
            fresh = atoms.copy()
            fresh.calc = torchmdx.Calculator(potential, dtype=calculator.parameters["dtype"], device="cpu")
            assert atoms.get_potential_energy() == pytest.approx(fresh.get_potential_energy(), abs=1e-9)
            np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(), atol=1e-8)
    atoms.positions[1] = np.nan
    with pytest.raises(ValueError, match="positions must be finite, got nan of atom 1"):
        atoms.get_forces()


def test_the_charge_argument_wins_over_the_structure(potential, cation):
    cation.calc = Calculator(potential, dtype="float64", charge=-1)
    wanted = float(evaluate(potential, System.from_ase(cation, -1)).energy[0])
    assert cation.get_potential_energy() == wanted
    cation.info["charge"] = 3
    assert cation.get_potential_energy() == wanted
    cation.calc.charge = 2
    doubly = float(evaluate(potential, System.from_ase(cation, 2)).energy[0])
    assert cation.get_potential_energy() == pytest.approx(doubly, abs=1e-12)


def test_several_molecules_share_one_calculator(potential, calculator, ethanol, cation, crystal, wire):
    structures = [ethanol, cation, crystal, wire]
    for atoms in structures * 2:
        atoms.calc = calculator
        wanted = evaluate(potential, System.from_ase(atoms))
        assert atoms.get_potential_energy() == pytest.approx(float(wanted.energy[0]), abs=1e-12)
        np.testing.assert_allclose(atoms.get_forces(), wanted.forces, atol=1e-13)
        if atoms is crystal:
            atoms.get_stress()


def test_a_molecule_has_no_stress(calculator, ethanol, bare_slab):
    for atoms, rank in ((ethanol, 0), (bare_slab, 2)):
        atoms.calc = calculator
        with pytest.raises(PropertyNotImplementedError, match=f"three lattice vectors, got one of rank {rank}"):
            atoms.get_stress()
        assert np.isfinite(atoms.get_forces()).all()


@pytest.mark.parametrize("distance", [1e4, 1e7, 1e13], ids=["micrometre", "millimetre", "kilometre"])
def test_a_molecule_far_away_is_as_accurate_as_at_the_origin(potential, ethanol, distance):
    errors = []
    for shift in (0, distance):
        ethanol.positions += shift
        # What is compared is the same: float64 itself rounds coordinates a kilometre away to 2e-3 Å.
        exact, single = (Calculator(potential, dtype=dtype) for dtype in ("float64", "float32"))
        difference = single.get_forces(ethanol) - exact.get_forces(ethanol)
        errors.append(np.abs(difference).max())
        assert abs(single.get_potential_energy(ethanol) - exact.get_potential_energy(ethanol)) < 2e-6
    assert 0 < errors[0] < 2e-6
    assert errors[1] < 2e-6


def test_a_crystal_far_away_is_as_accurate_as_at_the_origin(potential, crystal):
    near = Calculator(potential, dtype="float64").get_forces(crystal)
    crystal.positions += 1e6
    far = Calculator(potential, dtype="float32").get_forces(crystal)
    np.testing.assert_allclose(far, near, atol=1e-5)


@pytest.mark.nightly
def test_bfgs_finds_a_minimum(calculator, ethanol):
    ethanol.calc = calculator
    before = ethanol.get_potential_energy()
    with BFGS(ethanol, logfile=None) as optimizer:
        assert optimizer.run(fmax=0.02, steps=300)
    assert ethanol.get_potential_energy() < before - 0.01
    assert np.linalg.norm(ethanol.get_forces(), axis=1).max() < 0.02


@pytest.mark.nightly_for("ExpCellFilter")
@pytest.mark.filterwarnings("ignore:Use FrechetCellFilter:DeprecationWarning")
@pytest.mark.parametrize("cell_filter", [FrechetCellFilter, ExpCellFilter])
def test_cells_relax(calculator, crystal, cell_filter):
    crystal.calc = calculator
    before, cell = crystal.get_potential_energy(), crystal.cell.array.copy()
    with BFGS(cell_filter(crystal), logfile=None) as optimizer:
        assert optimizer.run(fmax=0.02, steps=300)
    assert crystal.get_potential_energy() < before - 0.01
    assert np.abs(crystal.cell.array - cell).max() > 0.01
    assert np.abs(crystal.get_stress()).max() * crystal.get_volume() < 0.03 * len(crystal)


def test_verlet_and_langevin_run(calculator, ethanol):
    ethanol.calc = calculator
    ethanol.set_momenta(np.random.default_rng(0).normal(size=(9, 3)))
    before = ethanol.get_total_energy()
    with VelocityVerlet(ethanol, 0.25 * units.fs) as dynamics:
        dynamics.run(20)
    assert ethanol.get_total_energy() == pytest.approx(before, abs=1e-3)
    thermostat = dict(temperature_K=300, friction=0.1 / units.fs, fixcm=False, rng=np.random.default_rng(1))
    with Langevin(ethanol, 0.5 * units.fs, **thermostat) as dynamics:
        dynamics.run(20)
    assert np.isfinite(ethanol.get_forces()).all()
    assert abs(ethanol.get_total_energy() - before) > 1e-3


def hessian(potential, atoms):
    """Second derivatives of the energy by double backward."""
    system = System.from_ase(atoms)
    system.positions.requires_grad_()
    forces = evaluate(potential, system, create_graph=True).forces.flatten()
    rows = [torch.autograd.grad(-force, system.positions, retain_graph=True)[0].flatten() for force in forces]
    return torch.stack(rows).numpy()


def test_vibrations_by_finite_displacements(potential, calculator, cation, tmp_path):
    cation.calc = calculator
    vibrations = Vibrations(cation, name=str(tmp_path / "vibrations"), delta=0.002)
    vibrations.run()
    got = vibrations.get_vibrations().get_hessian_2d()
    wanted = hessian(potential, cation)
    np.testing.assert_allclose(got, (wanted + wanted.T) / 2, atol=1e-3 * np.abs(wanted).max())


def test_phonons_by_finite_displacements(calculator, crystal, tmp_path):
    phonons = Phonons(crystal, calculator, supercell=(3, 3, 3), name=str(tmp_path / "phonons"), delta=0.002)
    phonons.run()
    phonons.read(acoustic=False)
    # Moving the whole crystal costs nothing: force constants add up to zero over all atoms of all cells.
    constants = phonons.get_force_constant()
    sums = constants.sum(axis=0).reshape(3, 3, 3, 3).sum(axis=2)
    assert np.abs(constants).max() > 0.1
    assert np.abs(sums).max() < 1e-4 * np.abs(constants).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_is_of_the_network(potential, dtype):
    calculator = Calculator(potential, dtype=dtype, device="cpu")
    assert calculator.potential.dtype == getattr(torch, dtype)
    assert calculator.potential.device == torch.device("cpu")
    assert repr(calculator) == f"torchmdx.Calculator({dtype} on cpu, cutoff 4.0 Å)"
    assert potential.dtype == torch.float64


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_gives_the_numbers_of_the_cpu(potential, structure, dtype):
    cpu, gpu = (Calculator(potential, dtype=dtype, device=device) for device in ("cpu", "cuda"))
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    assert gpu.get_potential_energy(structure) == pytest.approx(cpu.get_potential_energy(structure), abs=tolerance)
    np.testing.assert_allclose(gpu.get_forces(structure), cpu.get_forces(structure), atol=tolerance)


def test_float32_is_the_default_and_close(potential, calculator, ethanol):
    single = Calculator(potential)
    assert single.potential.dtype == torch.float32
    assert 0 < abs(single.get_potential_energy(ethanol) - calculator.get_potential_energy(ethanol)) < 1e-5


def test_the_callers_potential_stays_as_it_is(make_potential, ethanol):
    potential = make_potential().train().requires_grad_(True)
    Calculator(potential, dtype="float32").get_forces(ethanol)
    assert potential.training
    assert potential.dtype == torch.float64
    assert all(parameter.requires_grad and parameter.grad is None for parameter in potential.parameters())


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["str", "Path"])
@pytest.mark.parametrize("name", ["tensornet.safetensors", "tensornet.ckpt"])
def test_a_calculator_takes_either_checkpoint(data, ethanol, kind, name):
    path = data / name
    calculator = Calculator(kind(path), dtype="float64")
    wanted = evaluate(torchmdx.load(path, dtype=torch.float64), System.from_ase(ethanol)).energy
    assert calculator.get_potential_energy(ethanol) == pytest.approx(float(wanted[0]), abs=1e-12)


def test_no_atoms_have_no_energy(calculator):
    assert calculator.get_potential_energy(Atoms()) == 0.0
    assert calculator.get_forces(Atoms()).shape == (0, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            dict(dtype="float16"),
            ValueError,
            "dtype must be one of float32, float64, got 'float16'",
        ),
        (
            dict(dtype=torch.float16),
            ValueError,
            "dtype must be one of float32, float64, got 'torch.float16'",
        ),
        (dict(device="gpu"), ValueError, "device must be cpu or cuda, got 'gpu'"),
        (dict(device="meta"), ValueError, "device must be cpu or cuda, got 'meta'"),
        (dict(device="cuda:99"), ValueError, "device 'cuda:99' is not available: torch sees"),
        (dict(charge="one"), TypeError, "charge must be a number of elementary charges, got 'one'"),
        (dict(charge=np.nan), ValueError, "charge must be finite, got nan"),
    ],
)
def test_bad_options_are_refused_at_once(potential, arguments, error, message):
    with pytest.raises(error, match=message):
        Calculator(potential, **arguments)


def test_something_else_than_a_potential_is_refused():
    with pytest.raises(TypeError, match="potential must be a Potential or a path, got int"):
        Calculator(3)
    with pytest.raises(FileNotFoundError, match="no checkpoint at 'nowhere.safetensors'"):
        Calculator("nowhere.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda a: a.positions.__setitem__((1, 2), np.nan), ValueError, "positions must be finite, got nan of atom 1"),
        (lambda a: a.positions.__setitem__(1, a.positions[0]), ValueError, "got atoms 0 and 1 at the same position"),
        (lambda a: a.numbers.__setitem__(2, 0), ValueError, "got 0 for atom 2"),
        (lambda a: a.numbers.__setitem__(2, 53), ValueError, "atomic numbers up to 35, got 53 for atom 2"),
        (lambda a: a.info.update(charge="plus"), TypeError, "charge must be a number .*, got 'plus'"),
        (lambda a: setattr(a, "pbc", True), ValueError, "a periodic direction needs a lattice vector"),
        (lambda a: a.set_cell(np.ones((3, 3))) or setattr(a, "pbc", True), ValueError, "linearly independent"),
    ],
    ids=["nan", "same-place", "element-0", "element-53", "charge", "no-cell", "flat-cell"],
)
def test_a_bad_structure_is_refused_with_the_reason(calculator, ethanol, change, error, message):
    ethanol.calc = calculator
    before = ethanol.get_potential_energy()
    good = ethanol.copy()
    change(ethanol)
    with pytest.raises(error, match=message):
        ethanol.get_forces()
    good.calc = calculator
    assert good.get_potential_energy() == before


def test_a_refused_stress_leaves_nothing_of_the_structure_before(potential, calculator, crystal):
    """The cell has changed when stress is refused, and only positions change after that."""
    crystal.calc = calculator
    crystal.get_stress()
    crystal.cell[2] = 0
    crystal.pbc = (True, True, False)
    with pytest.raises(PropertyNotImplementedError, match="got one of rank 2"):
        crystal.get_stress()
    crystal.rattle(0.02)
    wanted = evaluate(potential, System.from_ase(crystal)).forces
    np.testing.assert_allclose(crystal.get_forces(), wanted, atol=1e-12)


def test_another_structure_that_is_said_to_have_moved_is_evaluated(potential, calculator, ethanol):
    """Calculators that wrap this one may pass on changes since a calculation of their own."""
    other = ethanol.copy()
    other.numbers[:2] = 7
    calculator.calculate(ethanol, ["forces"])
    calculator.calculate(other, ["forces"], ["positions"])
    wanted = evaluate(potential, System.from_ase(other)).forces
    np.testing.assert_allclose(calculator.results["forces"], wanted, atol=1e-12)


def test_results_that_may_not_be_calculated_are_none(calculator, ethanol):
    ethanol.calc = calculator
    assert calculator.get_property("forces", ethanol, allow_calculation=False) is None
    forces = ethanol.get_forces()
    np.testing.assert_array_equal(calculator.get_property("forces", ethanol, allow_calculation=False), forces)
    ethanol.rattle(0.1)
    assert calculator.get_property("forces", ethanol, allow_calculation=False) is None
    assert calculator.results == {}
    with pytest.raises(PropertyNotImplementedError, match="^magmoms property not implemented$"):
        ethanol.get_magnetic_moments()


def test_results_of_the_last_calculation_without_atoms(calculator, ethanol):
    with pytest.raises(ValueError, match="atoms must be given before the first calculation, got None"):
        calculator.get_property("energy")
    energy = calculator.get_potential_energy(ethanol)
    assert calculator.get_property("energy") == energy
    calculator.results.clear()
    assert calculator.get_property("energy") == pytest.approx(energy, abs=1e-12)


def test_forces_that_are_changed_by_the_caller_are_copies(calculator, ethanol):
    ethanol.calc = calculator
    forces = ethanol.get_forces()
    kept = forces.copy()
    forces += 1
    ethanol.positions[0] += 0.1
    ethanol.get_forces()
    ethanol.positions[0] -= 0.1
    np.testing.assert_allclose(ethanol.get_forces(), kept, atol=1e-12)


def test_what_the_calculator_remembers_does_not_follow_the_atoms(calculator, ethanol):
    ethanol.calc = calculator
    ethanol.get_forces()
    remembered, positions = calculator.atoms, ethanol.positions.copy()
    ethanol.rattle(0.1)
    ethanol.get_forces()
    np.testing.assert_array_equal(remembered.positions, positions)
    np.testing.assert_array_equal(calculator.atoms.positions, ethanol.positions)
    assert calculator.atoms is not remembered


def test_a_charge_that_is_changed_in_place_is_noticed(potential, ethanol):
    ethanol.info["charge"] = np.array(0.0)
    ethanol.calc = Calculator(potential, dtype="float64")
    ethanol.get_potential_energy()
    ethanol.info["charge"] += 1.0
    wanted = float(evaluate(potential, System.from_ase(ethanol, 1.0)).energy)
    assert ethanol.get_potential_energy() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        lambda atoms: atoms.numbers.__setitem__(2, 7),
        lambda atoms: atoms.cell.array.__setitem__((0, 0), 8.0),
        lambda atoms: atoms.positions.__setitem__((0, 0), 0.2),
        lambda atoms: atoms.info.update(charge=1),
        lambda atoms: setattr(atoms, "pbc", False),
    ],
    ids=["numbers", "cell", "positions", "charge", "pbc"],
)
@pytest.mark.parametrize("how", ["calculate", "get_property", "given"])
def test_changes_of_the_calculators_own_atoms_are_noticed(potential, ethanol, change, how):
    ethanol.set_cell([7, 7, 7])
    ethanol.pbc = True
    calculator = Calculator(potential, dtype="float64")
    before = calculator.get_potential_energy(ethanol)
    change(calculator.atoms)
    wanted = float(evaluate(potential, System.from_ase(calculator.atoms)).energy)
    assert abs(wanted - before) > 1e-5
    if how == "calculate":
        calculator.calculate()
        found = calculator.results["energy"]
    else:
        found = calculator.get_property("energy", calculator.atoms if how == "given" else None)
    assert found == pytest.approx(wanted, abs=1e-9)
    assert calculator.get_potential_energy(ethanol) == pytest.approx(before, abs=1e-9)
