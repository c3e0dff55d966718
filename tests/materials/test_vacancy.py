import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.optimize import BFGS

from torchmdx.materials import vacancies
from torchmdx.materials.crystal import changed, relaxed


def test_the_energy_is_that_of_a_supercell_without_an_atom(copper):
    (found,) = vacancies(copper, supercell=(3, 3, 3))
    whole = copper.repeat((3, 3, 3))
    whole.calc = EMT()
    energy = whole.get_potential_energy()
    del whole[5]
    assert found.unrelaxed == pytest.approx(whole.get_potential_energy() - 26 / 27 * energy)
    BFGS(whole, logfile=None).run(fmax=0.005)
    assert found.energy == pytest.approx(whole.get_potential_energy() - 26 / 27 * energy, abs=1e-3)
    assert (found.site, found.symbol, found.num_atoms) == (0, "Cu", 26)


def test_a_compound_has_a_vacancy_of_each_site():
    pytest.importorskip("spglib")
    atoms = bulk("Au", cubic=True, a=3.8)
    atoms.symbols[1:] = "Cu"
    atoms.calc = EMT()
    relaxed(atoms, 0.005, cell=True)
    with pytest.raises(ValueError, match="need a chemical potential of each element, eV, got none for Cu"):
        vacancies(atoms, chemical_potentials={"Au": 0.0})
    found = vacancies(atoms, supercell=(2, 2, 2), chemical_potentials={"Au": 0.0, "Cu": 1.0}, fmax=0.05)
    assert [(one.site, one.symbol) for one in found] == [(0, "Au"), (1, "Cu")]
    shifted = vacancies(changed(atoms), supercell=(2, 2, 2), chemical_potentials={"Au": 0.0, "Cu": 3.0}, fmax=0.05)
    assert shifted[1].energy == pytest.approx(found[1].energy + 2.0, abs=1e-6)
