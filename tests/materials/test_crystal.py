import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT

from torchmdx.materials import elastic, equation_of_state, phonons, vacancies
from torchmdx.materials.crystal import changed, relaxed, repeats_of


@pytest.mark.parametrize("compute", [elastic, equation_of_state, phonons, vacancies])
def test_what_is_no_crystal_is_refused(compute):
    water = molecule("H2O")
    water.calc = EMT()
    with pytest.raises(ValueError, match="need atoms periodic in all directions, got 3 atoms with pbc"):
        compute(water)
    with pytest.raises(ValueError, match="need atoms with a calculator, got none"):
        compute(bulk("Cu"))
    charged = bulk("Cu")
    charged.info["charge"], charged.calc = 1, EMT()
    with pytest.raises(ValueError, match="need a neutral cell, got charge \\+1"):
        compute(charged)


@pytest.mark.parametrize("compute", [phonons, vacancies])
def test_supercells_are_three_counts(compute, copper):
    for given in ((3, 3), (0, 1, 1), (1.5, 1, 1)):
        with pytest.raises(ValueError, match="supercell must be three numbers >= 1, got"):
            compute(copper, supercell=given)


def test_a_supercell_has_the_least_distance_between_faces():
    assert repeats_of(bulk("Cu", cubic=True)) == (3, 3, 3)
    assert repeats_of(Atoms("H", cell=[3, 10, 20], pbc=True)) == (4, 1, 1)


def test_atoms_follow_a_changed_cell(copper):
    at = changed(copper, 1.1 * copper.cell.array)
    assert at.calc is copper.calc
    assert at.get_scaled_positions() == pytest.approx(copper.get_scaled_positions())


def test_what_does_not_relax_is_named(monkeypatch):
    monkeypatch.setattr("torchmdx.materials.crystal.RELAX_STEPS", 1)
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1)
    atoms.calc = EMT()
    with pytest.raises(ValueError, match="Cu4 must relax to 1e-06 eV/Å, got .* after 2 steps"):
        relaxed(atoms, 1e-6)
