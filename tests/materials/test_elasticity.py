import numpy as np
import pytest

from torchmdx.materials import elastic
from torchmdx.materials.crystal import changed
from torchmdx.materials.elasticity import averages
from torchmdx.structures.units import GPA


def second_derivative(atoms, strain: np.ndarray) -> float:
    """Of the energy per volume along a strain [3,3], GPa, by differences."""
    step = 1e-3
    low, middle, high = (
        changed(atoms, atoms.cell.array @ (np.eye(3) + k * step * strain)).get_potential_energy() for k in (-1, 0, 1)
    )
    return (low - 2 * middle + high) / step**2 / atoms.get_volume() / GPA


def test_constants_are_second_derivatives_of_the_energy(copper):
    found = elastic(copper)
    c = np.array(found.stiffness)
    stretch = np.diag([1.0, 0, 0])
    shear = np.array([[0, 0, 0], [0, 0, 0.5], [0, 0.5, 0]])
    assert c[0, 0] == pytest.approx(second_derivative(copper, stretch), rel=5e-3)
    assert c[3, 3] == pytest.approx(second_derivative(copper, shear), rel=5e-3)
    assert 2 * (c[0, 0] + c[0, 1]) == pytest.approx(second_derivative(copper, np.diag([1.0, 1.0, 0])), rel=5e-3)
    assert found.bulk == pytest.approx((c[0, 0] + 2 * c[0, 1]) / 3, rel=1e-4)
    assert found.stable
    assert found.asymmetry < 0.1
    assert c[3, 3] == pytest.approx(c[5, 5])
    assert c[0, 3] == pytest.approx(0, abs=0.01)


def test_averages_of_a_cubic_crystal():
    c11, c12, c44 = 168.0, 121.0, 75.0
    c = np.zeros((6, 6))
    c[:3, :3] = c12 + (c11 - c12) * np.eye(3)
    c[3:, 3:] = c44 * np.eye(3)
    found = averages(c)
    assert (found.bulk_voigt, found.bulk_reuss) == (pytest.approx((c11 + 2 * c12) / 3),) * 2
    assert found.shear_voigt == pytest.approx((c11 - c12 + 3 * c44) / 5)
    assert found.shear_reuss == pytest.approx(5 * (c11 - c12) * c44 / (4 * c44 + 3 * (c11 - c12)))
    assert found.poisson == pytest.approx(found.young / (2 * found.shear) - 1)
    assert found.stable
    c[3, 3] = -1.0
    assert not averages(c).stable
    c[3, 3] = 1e-9  # a slab in a cell with vacuum
    with pytest.raises(ValueError, match="a crystal must resist every strain.*is there vacuum in the cell?"):
        averages(c)


def test_bad_settings(copper):
    with pytest.raises(ValueError, match="strain must be > 0 and < 0.1, got 0.1"):
        elastic(copper, strain=0.1)
