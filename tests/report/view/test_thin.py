import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from torchmdx.report.view.bonds import molecules
from torchmdx.report.view.thin import MOST_FRAMES, MOST_POSITIONS, atoms_to_show, evenly, frames_to_show

NOWHERE = np.zeros(3, dtype=bool)


def box_of(*names):
    """Molecules 10 Å apart."""
    atoms = Atoms()
    for place, name in enumerate(names):
        other = molecule(name)
        other.translate([10.0 * place, 0, 0])
        atoms += other
    return atoms


def shown(atoms, most):
    kept, note = atoms_to_show(atoms.numbers, molecules(atoms.numbers, atoms.positions, None, NOWHERE), most)
    return atoms[kept], note


def test_evenly_spaced_indices_have_both_ends():
    assert evenly(5, 9).tolist() == [0, 1, 2, 3, 4]
    found = evenly(1000, 11)
    assert (found[0], found[-1], len(found)) == (0, 999, 11)
    assert np.ptp(np.diff(found)) <= 1


@pytest.mark.parametrize("atoms", [1, 22, 3000, 500_000])
def test_frames_are_limited_by_number_and_by_positions(atoms):
    found = len(frames_to_show(10**6, atoms))
    assert 2 <= found <= MOST_FRAMES
    assert found * min(atoms, 6000) <= MOST_POSITIONS
    steps = np.diff(frames_to_show(10**6, atoms))
    assert (steps[:-1] == steps[0]).all()
    assert 0 < steps[-1] <= steps[0]
    assert len(frames_to_show(10**6, atoms, mixed=True)) <= max(found, 2)
    assert frames_to_show(2, atoms).tolist() == [0, 1]


def test_few_atoms_are_all_shown():
    atoms = box_of("H2O", "CH4")
    kept, note = shown(atoms, 8)
    assert kept == atoms
    assert note is None


def test_water_is_left_out_first_then_hydrogen():
    atoms = box_of("CH3CH2OH", *["H2O"] * 10, "CH4")
    kept, note = shown(atoms, 20)
    assert kept.get_chemical_formula() == "C3H10O"
    assert note == "14 of 44 atoms are drawn: water is left out."
    kept, note = shown(atoms, 10)
    assert kept.get_chemical_formula() == "C3O"
    assert note == "4 of 44 atoms are drawn: water and hydrogen are left out."


def test_whole_molecules_of_a_liquid_are_drawn():
    kept, note = shown(box_of(*["H2O"] * 30), 12)
    assert kept.get_chemical_formula() == "H8O4"
    assert note == "12 of 90 atoms are drawn: 4 of 30 molecules."


def test_one_large_molecule_loses_atoms():
    atoms = Atoms("C100", np.arange(100)[:, None] * [1.4, 0, 0])
    kept, note = shown(atoms, 25)
    assert len(kept) == 25
    assert kept.positions[[0, -1], 0] == pytest.approx([0, 99 * 1.4])
    assert "25 of 100 atoms" in note
