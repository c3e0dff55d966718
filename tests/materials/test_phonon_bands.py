import numpy as np
import pytest
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.phonons import Phonons as AsePhonons

from torchmdx.materials import phonons
from torchmdx.materials.crystal import changed, relaxed

pytest.importorskip("phonopy")


def test_frequencies_are_those_of_ase(copper, tmp_path):
    found = phonons(copper, supercell=(2, 2, 2), points=40)
    own = AsePhonons(changed(copper), copper.calc, supercell=(2, 2, 2), delta=0.01, name=str(tmp_path / "phonons"))
    own.run()
    own.read(acoustic=True)
    path = copper.cell.bandpath("GXL", npoints=3)  # points that fit in the supercell
    terahertz = own.get_band_structure(path).energies[0] / units._hplanck * units._e * 1e-12
    places = {name: place for place, name in reversed(found.ticks)}
    for name, wanted in zip("GXL", terahertz, strict=True):
        at = found.path.index(places[name])
        assert sorted(found.frequencies[at]) == pytest.approx(sorted(wanted), abs=0.01)
    assert found.stable
    assert found.num_displacements == 1
    assert [label for _, label in found.ticks][:2] == ["G", "X"]
    assert np.trapezoid(found.density, found.density_frequencies) == pytest.approx(3, rel=0.05)
    at = found.temperatures.index(1000.0)
    assert found.heat_capacity[at] == pytest.approx(3 * 8.314, rel=0.02)  # Dulong and Petit
    assert found.free_energy[0] == found.zero_point_energy
    entropy = -(found.free_energy[at] - found.free_energy[at - 1]) / 10 * 96485.33
    assert entropy == pytest.approx(found.entropy[at], rel=0.02)


def test_an_unstable_crystal_says_so():
    atoms = bulk("Cu", "bcc", a=2.9)
    atoms.calc = EMT()
    relaxed(atoms, 0.001, cell=True)  # by symmetry it stays
    assert not phonons(atoms, supercell=(2, 2, 2), points=20).stable


@pytest.mark.nightly
def test_a_left_handed_cell_has_the_same_frequencies():
    atoms = bulk("AuCu", "cesiumchloride", a=3.1) * (1, 1, 2)
    atoms.positions[0] += 0.1
    found = []
    for order in ([0, 1, 2], [1, 0, 2]):
        atoms.cell[:] = atoms.cell.array[order]
        atoms.calc = EMT()
        found.append(phonons(atoms, supercell=(1, 1, 1), points=5))
    assert found[1].highest == pytest.approx(found[0].highest, abs=1e-3)


class Charged(EMT):
    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        assert np.array_equal(atoms.get_initial_charges(), np.where(atoms.numbers == 79, 1, -1))
        assert atoms.info["spin"] == 0
        super().calculate(atoms, properties, system_changes)


def test_displaced_atoms_keep_what_potentials_take_as_given():
    atoms = bulk("AuCu", "cesiumchloride", a=3.1)
    atoms.set_initial_charges([1, -1])
    atoms.info["spin"] = 0
    atoms.calc = Charged()
    assert phonons(atoms, supercell=(1, 1, 2), points=5).num_displacements > 1


def test_bad_settings(copper):
    with pytest.raises(ValueError, match="displacement must be > 0 and < 1 Å, got 0"):
        phonons(copper, displacement=0)
