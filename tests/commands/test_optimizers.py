import ase.optimize
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.calculator import Calculator

from torchmdx.commands.optimizers import LBFGS, OPTIMIZERS


class Waves(Calculator):
    """E = Σ sin(x) + (y² + z²) / 2: concave where 0 < x < π, so that a quasi-Newton step can climb there."""

    implemented_properties = ["energy", "free_energy", "forces"]

    def calculate(self, atoms=None, properties=(), system_changes=()):
        super().calculate(atoms, properties, system_changes)
        x, y, z = self.atoms.positions.T
        energy = float(np.sum(np.sin(x) + (y**2 + z**2) / 2))
        self.results = {"energy": energy, "free_energy": energy, "forces": -np.column_stack([np.cos(x), y, z])}


def energies_of(kind: type) -> list[float]:
    """Energies of the steps from close to a maximum, at x = π/2, towards a minimum at x = 3π/2."""
    atoms = Atoms("H", [[1.8, 0.0, 0.0]])
    atoms.calc = Waves()
    energies = []
    with kind(atoms, logfile=None) as optimizer:
        for _ in optimizer.irun(fmax=1e-4, steps=200):
            energies.append(atoms.get_potential_energy())
    return energies


def test_lbfgs_goes_downhill_where_the_energy_is_concave():
    energies = energies_of(LBFGS)
    assert len(energies) < 200
    assert energies[-1] == pytest.approx(-1, abs=1e-6)
    assert max(np.diff(energies)) < 1e-6
    # With the whole history the second step leads to the maximum, where the gradient vanishes too.
    assert energies_of(ase.optimize.LBFGS)[-1] == pytest.approx(1, abs=1e-6)


def test_lbfgs_is_that_of_ase_where_the_energy_is_convex():
    def path(kind):
        atoms = Atoms("H", [[4.3, 0.5, -0.4]])
        atoms.calc = Waves()
        with kind(atoms, logfile=None) as optimizer:
            return [atoms.positions.copy() for _ in optimizer.irun(fmax=1e-5, steps=50)]

    own, others = path(LBFGS), path(ase.optimize.LBFGS)
    assert len(own) > 4
    np.testing.assert_array_equal(own, others)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_name_makes_an_optimizer_that_prints_its_steps(capsys, name):
    atoms = Atoms("H", [[4.3, 0.5, -0.4]])
    atoms.calc = Waves()
    with OPTIMIZERS[name](atoms, logfile="-") as optimizer:
        assert optimizer.run(fmax=0.01, steps=300)
    assert f"{type(optimizer).__name__}:" in capsys.readouterr().out
    np.testing.assert_allclose(atoms.positions[0], [1.5 * np.pi, 0, 0], atol=0.01)
