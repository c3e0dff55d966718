import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator

from torchmdx.materials import equation_of_state
from torchmdx.materials.crystal import changed
from torchmdx.structures.units import GPA

V0, B0, DERIVATIVE = 12.0, 150.0, 4.5


class BirchMurnaghan(Calculator):
    """A crystal with a known equation of state."""

    implemented_properties = ["energy", "forces"]

    def calculate(self, atoms=None, properties=("energy",), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        strain = ((V0 / atoms.get_volume()) ** (2 / 3) - 1) / 2
        energy = 9 * V0 * B0 * GPA / 2 * strain**2 * (1 + (DERIVATIVE - 4) * strain) - 3.0
        self.results = {"energy": energy, "forces": np.zeros((len(atoms), 3))}


def test_the_known_equation_is_found():
    atoms = Atoms("Cu", cell=np.eye(3) * (1.01 * V0) ** (1 / 3), pbc=True, calculator=BirchMurnaghan())
    found = equation_of_state(atoms)
    assert (found.volume, found.energy) == (pytest.approx(V0), pytest.approx(-3.0))
    assert (found.bulk_modulus, found.derivative) == (pytest.approx(B0), pytest.approx(DERIVATIVE))
    assert found.residual < 1e-7
    assert len(found.volumes) == len(found.energies) == 9
    assert found.volumes[-1] == pytest.approx(1.06 * atoms.get_volume())
    with pytest.raises(ValueError, match="the minimum must lie between .*relax the cell first"):
        equation_of_state(changed(atoms, 1.1 * atoms.cell.array))


def test_the_bulk_modulus_is_the_derivative_of_the_pressure(copper):
    found = equation_of_state(copper, span=0.03)
    assert found.volume == pytest.approx(copper.get_volume(), rel=1e-4)
    pressures = [-changed(copper, copper.cell.array * (1 + s)).get_stress()[:3].mean() for s in (1e-4, -1e-4)]
    modulus = (pressures[1] - pressures[0]) / 6e-4 / GPA
    assert found.bulk_modulus == pytest.approx(modulus, rel=2e-3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [(dict(points=4), "points must be >= 5, got 4"), (dict(span=0.5), "span must be > 0 and < 0.5, got 0.5")],
)
def test_bad_settings(copper, settings, said):
    with pytest.raises(ValueError, match=said):
        equation_of_state(copper, **settings)
