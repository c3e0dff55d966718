"""UndividedStructure: on a single device a divided step is a plain step, with the errors of a divided one."""

import numpy as np
import pytest
import torch

from torchmdx import Batch, CapturedStep, DividedStep, System
from torchmdx.lammps.example import water
from torchmdx.models.priors.coulomb import CoulombConfig
from torchmdx.step.results import NonFiniteError
from torchmdx.step.undivided_structure import UndividedStructure
from torchmdx.structures.domain import Domain

RESULTS = ("energy", "forces", "energies", "stress")


def structure(potential, pbc=True, **options) -> UndividedStructure:
    options = {**dict(mode="auto", precision=None, audit_every=0, stress=True, energies=True), **options}
    return UndividedStructure(batch(pbc), potential, potential.device, options)


def batch(pbc=True) -> Batch:
    atoms = water(27)
    atoms.pbc = pbc
    return Batch.of(System.from_ase(atoms))


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu", "cpu"]])
@pytest.mark.parametrize("pbc", [True, False, (True, True, False)])
def test_results_are_those_of_a_plain_step_to_the_bit(potential, devices, pbc):
    """Also with forces that start at zero in a cell that changes, and with all that may be asked for."""
    atoms = water(27)
    atoms.pbc = pbc
    options = dict(stress=True, energies=True, audit_every=2)
    step = DividedStep(potential, System.from_ase(atoms), devices=devices, **options)
    plain = CapturedStep(potential, System.from_ase(atoms), **options)
    assert step.report().steps == (None,)
    for seed, cell in enumerate((None, atoms.cell.array, atoms.cell.array * 1.01, None)):
        atoms.rattle(0.02, seed=seed)
        found, wanted = step(atoms.positions, cell), plain(atoms.positions, cell)
        for name in RESULTS:
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    report = step.report()
    assert (report.grid, report.owned, report.ghosts, report.devices) == ((1, 1, 1), (81,), (0,), ("cpu",))
    assert report.assignments == step.num_assignments == 1
    assert step.num_evaluations == 4
    assert report.steps[0].engine == plain.report().engine
    assert report.steps[0].why == plain.why
    assert report.steps[0].evaluations == 4
    assert step.memory_bytes() == plain.memory_bytes()
    assert step.num_recoveries == plain.num_recoveries


def test_only_what_is_asked_for_is_computed(potential):
    taken = structure(potential, stress=False, energies=False)
    result = taken(taken.batch.positions, None, 1)
    assert result.stress is None
    assert result.energies is None
    assert not isinstance(taken.step.batch, Domain)
    assert taken.step.batch is not taken.batch


def test_atoms_that_wander_need_no_other_step(potential):
    """Farther than the skin of a division, out of the cell, into another arrangement."""
    atoms = water(27)
    step = DividedStep(potential, System.from_ase(atoms), devices=["cpu", "cpu"], skin=0.5)
    step(atoms.positions)
    made = step._taken.step
    atoms.positions += np.random.default_rng(0).normal(0, 0.3, (81, 3)) + 40.0
    found = step(atoms.positions)
    wanted = CapturedStep(potential, System.from_ase(atoms))(atoms.positions)
    np.testing.assert_allclose(found.forces, wanted.forces, rtol=0, atol=1e-10 * np.abs(wanted.forces).max())
    assert step._taken.step is made
    assert step.num_assignments == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize("name", ["__init__", "_take_in", "_run", "_give_out"])
def test_after_an_interruption_results_are_right(potential, monkeypatch, name, error):
    """The interrupted call has written another cell by then: the next one has the last cell again."""
    taken, original = structure(potential), getattr(CapturedStep, name)
    positions, cell = taken.batch.positions.numpy(), taken.batch.cell[0].numpy()
    wanted = structure(potential)(positions, None, 1)
    if name != "__init__":
        taken(positions, cell, 1)

    def interrupted(*given, **options):
        original(*given, **options)
        raise error

    monkeypatch.setattr(CapturedStep, name, interrupted)
    with pytest.raises(error):
        taken(positions + 1.0, cell * 1.1, 2)
    monkeypatch.setattr(CapturedStep, name, original)
    found = taken(positions, None, 2)
    for values in RESULTS:
        np.testing.assert_array_equal(getattr(found, values), getattr(wanted, values))


def test_refused_positions_are_named_by_the_evaluation_and_keep_the_cell(potential):
    taken = structure(potential)
    positions, cell = taken.batch.positions.numpy(), taken.cell.clone()
    wrong = positions.copy()
    wrong[[5, 7], 1] = np.nan, np.inf
    for given in (wrong, torch.from_numpy(wrong)):
        with pytest.raises(
            NonFiniteError, match="evaluation 6: positions of 2 atoms are not finite, the first is atom 5"
        ):
            taken(given, cell[0] * 1.1, 6)
    with pytest.raises(ValueError, match="lattice vector"):
        taken(positions, np.zeros((3, 3)), 6)
    torch.testing.assert_close(taken.cell, cell, rtol=0, atol=0)
    found, wanted = taken(positions, None, 6), structure(potential)(positions, None, 1)
    np.testing.assert_array_equal(found.stress, wanted.stress)


def test_energies_that_are_not_finite_are_the_steps_to_report(make_potential):
    potential = make_potential()
    potential.shift.fill_(np.nan)
    with pytest.raises(NonFiniteError, match="positions, energy or forces of 81 atoms are not finite"):
        structure(potential)(batch().positions, None, 1)


def test_charges_are_passed_on(make_potential):
    model = make_potential(priors=[lambda: CoulombConfig(charges="given")])
    atoms = water(8)
    atoms.pbc = False
    atoms.set_initial_charges(np.where(atoms.numbers == 8, -0.8, 0.4))
    step = DividedStep(model, System.from_ase(atoms), devices=["cpu"])
    wanted = CapturedStep(model, System.from_ase(atoms))(atoms.positions)
    np.testing.assert_array_equal(step(atoms.positions).forces, wanted.forces)


@pytest.mark.gpu
@pytest.mark.parametrize("given", ["cpu", "cuda:0", pytest.param("cuda:1", marks=pytest.mark.two_gpus)])
def test_results_are_where_positions_are(make_potential, given):
    model = make_potential(torch.float32).to("cuda:0")
    system = System.from_ase(water(27))
    step = DividedStep(model, system, devices=["cuda:0", "cuda:0"], mode="graph", stress=True)
    wanted = CapturedStep(model, system, mode="graph", stress=True)(system.positions)
    found = step(system.positions.to(given))
    assert step.report().steps[0].mode == "graph"
    for name in ("energy", "forces", "stress"):
        values = getattr(found, name)
        assert torch.as_tensor(values).device == torch.device(given)
        np.testing.assert_allclose(torch.as_tensor(values).cpu(), getattr(wanted, name), rtol=0, atol=1e-5)
