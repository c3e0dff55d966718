import pytest
from double_well import GAP, curvature, double_well, ends, energy

from torchmdx import Calculator
from torchmdx.dynamics.paths.saddle import refined


def test_a_dimer_climbs_to_the_saddle_and_says_if_it_does_not():
    start, _ = ends(False)
    start.positions[1] = [GAP / 2 - 0.2, 0.02, 0.01]
    calculator = Calculator(double_well(), dtype="float64", device="cpu")
    mode = [[0, 0, 0], [1, 0.1, 0], [0, 0, 0]]
    found, along = refined(start, mode, calculator, 1e-3, 200)
    assert found.positions[1] == pytest.approx([GAP / 2, 0, 0], abs=1e-3)
    assert found.get_potential_energy() == pytest.approx(energy(GAP / 2), abs=1e-5)
    assert along == pytest.approx(curvature(), rel=0.02)
    with pytest.raises(ValueError, match="the transition state did not converge to 1e-09 eV/Å in 1 steps"):
        refined(start, mode, calculator, 1e-9, 1)
