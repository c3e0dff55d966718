import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from torchmdx.dynamics.paths.reaction import ReactionPath
from torchmdx.report.path_plot import path_movie, plot_path


def test_energies_along_the_path(tmp_path):
    pytest.importorskip("matplotlib")
    images = []
    for x in np.linspace(-1, 1, 5):
        atoms = Atoms("HO", [[x, 0, 0], [0, 2, 0]])
        forces = np.array([[2 * x, 0, 0], [0, 0, 0]])
        atoms.calc = SinglePointCalculator(atoms, energy=-5 - x**2, forces=forces)
        images.append(atoms)
    path = ReactionPath(images, None, 3, 0.01, saddle=images[2], curvature=-2.0)
    plot_path(path, tmp_path / "p.png", "a to b")
    plot_path(path, tmp_path / "p.svg", "a to b")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "p.svg").read_text()
    assert "<svg" in text
    movie = path_movie(path, "a to b")
    assert movie.x.tolist() == pytest.approx([0, 0.5, 1, 1.5, 2])
    assert movie.captions[2] == "image 2, 1.0000 eV"
    assert movie.panels[0].lines[0].y.max() == pytest.approx(1.0, abs=1e-3)
