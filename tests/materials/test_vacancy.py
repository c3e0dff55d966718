import pytest
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.optimize import BFGS

from torchmdx.materials import vacancies
from torchmdx.materials.crystal import changed, relaxed
from torchmdx.structures.total_charge import charge_of


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


def test_what_no_vacancy_has(copper):
    with pytest.raises(ValueError, match="the supercell must have at least 2, got 1"):
        vacancies(copper, supercell=(1, 1, 1))
    for given in ({"Cu": 0.0, "Zn": 1.0}, {"Cu": float("nan")}):
        with pytest.raises(ValueError, match=r"must be finite and of elements in the crystal \(Cu\), got"):
            vacancies(copper, chemical_potentials=given)


class Neutral(EMT):
    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        assert charge_of(atoms)[0] == 0
        super().calculate(atoms, properties, system_changes)


def test_a_vacancy_of_an_ion_is_neutral():
    pytest.importorskip("spglib")
    atoms = bulk("AuCu", "cesiumchloride", a=3.1)
    atoms.set_initial_charges([1, -1])
    atoms.calc = Neutral()
    assert len(vacancies(atoms, supercell=(1, 1, 2), chemical_potentials={"Au": 0, "Cu": 0}, fmax=1.0)) == 2


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
