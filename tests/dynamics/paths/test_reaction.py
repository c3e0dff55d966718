import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.commands.neb import _report
from torchmdx.dynamics.paths.reaction import ReactionPath


def test_barriers_and_a_curve_whose_slopes_are_the_forces():
    images = []
    for x in np.linspace(-1, 1, 5):
        atoms = Atoms("H", [[x, 0, 0]])
        atoms.calc = SinglePointCalculator(atoms, energy=1 - x**2 + 0.1 * x, forces=np.array([[2 * x - 0.1, 0, 0]]))
        images.append(atoms)
    path = ReactionPath(images, None, 3, 0.01)
    assert path.converged
    assert path.lengths.tolist() == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert (path.highest, path.forward, path.backward) == (2, pytest.approx(1.1), pytest.approx(0.9))
    where, curve = path.curve(21)
    x = where - 1
    assert curve == pytest.approx(1 - x**2 + 0.1 * x)
    saddle = ReactionPath(images, None, 3, 0.01, saddle=images[3], curvature=-1.0)
    assert saddle.forward == pytest.approx(0.8 + 0.1)


def test_intermediate_minima_are_named(capsys):
    images = []
    for k, energy in enumerate((0.0, 0.3, 0.1, 0.4, 0.3995, 0.4, 0.2)):  # 0.5 meV is no minimum
        atoms = Atoms("H", [[k, 0, 0]])
        atoms.calc = SinglePointCalculator(atoms, energy=energy)
        images.append(atoms)
    path = ReactionPath(images, None, 3, 0.01)
    assert path.intermediates == [2]
    _report(path)
    assert "intermediate minima near images 2: relax them as further ends" in capsys.readouterr().out
