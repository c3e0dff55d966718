"""Comparisons and copies of Atoms against ASE's own."""

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import all_changes, compare_atoms
from ase.constraints import FixAtoms

from torchmdx.ase.atoms import changes_between, has_only_moved, results_of, snapshot
from torchmdx.step.results import StepResult

CHANGES = {
    "nothing": lambda a: None,
    "one position": lambda a: a.positions.__setitem__((1, 2), 0.3),
    "a position by less than the tolerance": lambda a: a.positions.__iadd__(4e-16),
    "a position by more than the tolerance": lambda a: a.positions.__iadd__(4e-15),
    "zero with a sign": lambda a: a.positions.__setitem__((0, 0), -0.0),
    "nan": lambda a: a.positions.__setitem__((0, 1), np.nan),
    "inf": lambda a: a.positions.__setitem__((0, 1), np.inf),
    "an element": lambda a: a.numbers.__setitem__(2, 7),
    "fewer atoms": lambda a: a.__delitem__(0),
    "no atoms": lambda a: a.__delitem__(slice(None)),
    "the cell": lambda a: a.cell.__setitem__((0, 1), 0.1),
    "the cell by less than the tolerance": lambda a: a.cell.__setitem__((0, 1), 5e-16),
    "pbc": lambda a: a.pbc.__setitem__(1, True),
    "initial charges": lambda a: a.set_initial_charges([0.5, 0, 0, -0.5]),
    "initial charges of zero": lambda a: a.set_initial_charges(np.zeros(4)),
    "magnetic moments": lambda a: a.set_initial_magnetic_moments([1, 0, 0, 0]),
    "momenta, which no result depends on": lambda a: a.set_momenta(np.ones((4, 3))),
    "several": lambda a: (a.rattle(0.1), a.set_cell(np.eye(3) * 7), a.numbers.__setitem__(0, 1)),
}


@pytest.fixture
def atoms() -> Atoms:
    positions = [[0.0, 0, 0], [0.1, 1.1, 0.2], [2.0, 0.3, 0.1], [-1.5, 0.7, 2.0]]
    return Atoms("OCHH", positions, cell=[5, 6, 7], pbc=[True, False, True], info={"charge": 1})


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("repeats", [1, 400], ids=["few", "many"])  # arrays are compared in two ways, by their size
def test_changes_are_those_that_ase_finds(atoms, change, repeats):
    before = atoms.copy()
    CHANGES[change](atoms)
    if repeats > 1:
        before, atoms = before.repeat((repeats, 1, 1)), atoms.repeat((repeats, 1, 1))
    for one, other in ((before, atoms), (atoms, before)):
        assert sorted(changes_between(one, other)) == sorted(compare_atoms(one, other)), change
        ignored = compare_atoms(one, other, excluded_properties={"cell", "numbers"})
        assert sorted(changes_between(one, other, ignored=("cell", "numbers"))) == sorted(ignored)
    exact = compare_atoms(before, atoms, tol=0.0, excluded_properties={"positions", "initial_magmoms"})
    assert has_only_moved(before, atoms) == (not exact)


def test_everything_has_changed_at_first(atoms):
    assert changes_between(None, atoms) == all_changes


@pytest.mark.parametrize("known", [False, True], ids=["first", "moved"])
def test_a_snapshot_is_a_copy(atoms, known):
    atoms.set_constraint(FixAtoms([1]))
    atoms.set_momenta(np.ones((4, 3)))
    before = snapshot(atoms) if known else None
    kept = atoms.positions.copy()
    atoms.positions += 0.25
    atoms.set_velocities(np.full((4, 3), 2.0))
    atoms.info["step"] = 7
    made = snapshot(atoms, before)
    wanted = atoms.copy()
    assert made == wanted
    assert made.info == wanted.info
    assert made.calc is None
    assert made.constraints[0].index.tolist() == [1]
    assert made.arrays.keys() == wanted.arrays.keys()
    for name, array in wanted.arrays.items():
        np.testing.assert_array_equal(made.arrays[name], array)
    atoms.positions += 1
    atoms.info["step"] = 8
    atoms.numbers[0] = 9
    del atoms.constraints
    assert made == wanted
    assert made.info["step"] == 7
    assert len(made.constraints) == 1
    if before is not None:
        np.testing.assert_array_equal(before.positions, kept)
        assert "step" not in before.info


def test_a_snapshot_has_the_type_of_the_atoms(atoms):
    class Mine(Atoms):
        pass

    mine = Mine(atoms)
    assert type(snapshot(mine, atoms.copy())) is Mine


def test_stress_is_a_result_of_cells_with_three_vectors(atoms):
    stress = np.arange(9.0).reshape(1, 3, 3)
    result = StepResult(np.array([-1.5]), np.zeros((4, 3)), np.zeros(4), stress + stress.transpose(0, 2, 1))
    found = results_of(result, atoms)
    assert (found["energy"], found["free_energy"]) == (-1.5, -1.5)
    assert found["stress"].tolist() == [0.0, 8.0, 16.0, 12.0, 8.0, 4.0]
    atoms.cell[1] = 0
    assert "stress" not in results_of(result, atoms)
