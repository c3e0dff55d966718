"""Crystals in the orientation of OpenMM."""

import numpy as np
import pytest
from ase import Atoms

pytest.importorskip("openmm", reason="needs OpenMM: pip install 'torchmdx[openmm]'")

from openmm import Vec3, app, unit

from torchmdx import Calculator
from torchmdx.commands.md_openmm.orientation import orientation_of


@pytest.mark.parametrize("handedness", [1, -1])
@pytest.mark.parametrize("seed", range(3))
def test_an_oriented_crystal_is_the_same_crystal(potential, chiral, handedness, seed):
    """In the orientation of OpenMM, right-handed, not deformed or mirrored: the energies are the same."""
    cell = np.random.default_rng(seed).normal(0, 3, (3, 3)) + np.diag([5.0, -6.0, 7.0])
    cell *= np.sign(np.linalg.det(cell)) * handedness
    chiral.set_cell(cell)
    chiral.pbc = True
    oriented_cell, turn = orientation_of(cell)
    positions = turn.turned(chiral.positions)
    (ax, ay, az), (bx, by, bz), (cx, cy, cz) = oriented_cell
    assert (ay, az, bz) == (0, 0, 0)
    assert min(ax, by, cz) > 0
    assert max(abs(bx) / ax, abs(cx) / ax, abs(cy) / by) <= 0.5 + 1e-9
    app.Topology().setPeriodicBoxVectors([Vec3(*row) for row in oriented_cell / 10] * unit.nanometer)
    calculator = Calculator(potential, dtype="float64", device="cpu")
    other = Atoms(chiral.numbers, positions, cell=oriented_cell, pbc=True)
    assert calculator.get_potential_energy(other) == pytest.approx(calculator.get_potential_energy(chiral), abs=1e-9)

    # A mirror image has the same energy under O(3); the handedness of the four bonds tells.
    def handed(atoms):
        return np.linalg.det(atoms.positions[1:4] - atoms.positions[0])

    assert handed(other) == pytest.approx(handed(chiral), rel=1e-9)

    # And back, also after the cell has changed.
    np.testing.assert_allclose(turn.back(positions), chiral.positions, atol=1e-12)
    np.testing.assert_allclose(turn.cell_back(oriented_cell), cell, atol=1e-12)
    np.testing.assert_allclose(turn.cell_back(1.1 * oriented_cell), 1.1 * cell, atol=1e-12)
