import importlib.util

import ase.build
import numpy as np
import pytest
from ase import Atoms
from ase.constraints import FixAtoms

from torchmdx.commands.fixed_symmetry import fix_symmetry, require_symmetry_support, space_group

spglib = pytest.importorskip("spglib")


@pytest.fixture
def rock_salt() -> Atoms:
    atoms = ase.build.bulk("CO", "rocksalt", a=4.2, cubic=True)
    atoms.rattle(0.001, seed=1)
    return atoms


def number_of(atoms: Atoms) -> int:
    cell = (atoms.cell.array, atoms.get_scaled_positions(), atoms.numbers)
    return spglib.get_symmetry_dataset(cell, symprec=1e-5).number


def test_the_structure_is_moved_to_exact_symmetry(rock_salt):
    assert number_of(rock_salt) == 1
    before = rock_salt.positions.copy()
    symmetry = fix_symmetry(rock_salt, 0.02)
    assert symmetry.group == "Fm-3m (225)"
    assert number_of(rock_salt) == 225
    assert 0 < np.abs(rock_salt.positions - before).max() < 0.01


def test_moves_of_atoms_and_cell_keep_the_symmetry(rock_salt):
    symmetry = fix_symmetry(rock_salt, 0.02)
    rng = np.random.default_rng(1)
    rock_salt.set_positions(rock_salt.positions + 0.1 * rng.standard_normal((8, 3)))
    rock_salt.set_cell(rock_salt.cell.array @ (np.eye(3) + 0.05 * rng.standard_normal((3, 3))), scale_atoms=True)
    assert number_of(rock_salt) == 225
    assert abs(rock_salt.cell.lengths()[0] - 4.2) > 1e-3
    symmetry.free(rock_salt)
    assert rock_salt.constraints == []
    rock_salt.set_positions(rock_salt.positions + 0.1 * rng.standard_normal((8, 3)))
    assert number_of(rock_salt) == 1


def test_the_precision_decides_which_group_is_found(rock_salt):
    assert space_group(rock_salt, 1e-5) == "P1 (1)"
    assert space_group(rock_salt, 0.02) == "Fm-3m (225)"


def test_a_structure_without_symmetry_is_warned_of(rock_salt):
    with pytest.warns(UserWarning, match="--fix-symmetry has no effect: within 1e-05 Å the structure has no symmetry"):
        fix_symmetry(rock_salt, 1e-5)


def test_what_cannot_keep_its_symmetry_is_refused(rock_salt, ethanol, bare_slab, monkeypatch):
    require_symmetry_support(rock_salt)
    for atoms, words in ((ethanol, "and a cell of rank 0"), (bare_slab, "and a cell of rank 2")):
        with pytest.raises(ValueError, match=f"needs a periodic structure with three lattice vectors.*{words}"):
            require_symmetry_support(atoms)
    rock_salt.set_constraint(FixAtoms([0]))
    with pytest.raises(ValueError, match="needs a structure without other constraints, got FixAtoms"):
        require_symmetry_support(rock_salt)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "spglib" else found(name))
    with pytest.raises(ImportError, match=r"needs spglib, which is not installed: pip install 'torchmdx\[symmetry\]'"):
        require_symmetry_support(rock_salt)
