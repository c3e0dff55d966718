import numpy as np
from double_well import double_well, ends

from torchmdx.dynamics.paths.band import Band, Evaluated


def test_all_images_are_one_evaluation():
    first, last = ends(False)
    images = [first, *(first.copy() for _ in range(3)), last]
    for k, image in enumerate(images[1:-1], start=1):
        image.positions[1] += k / 4 * (last.positions[1] - first.positions[1])
    potential = double_well()
    Evaluated([first, last], potential, None, mode="auto", precision="float64")([first, last])
    evaluated = Evaluated(images[1:-1], potential, None, mode="auto", precision="float64")
    band = Band(images, evaluated, 0.1)
    before = evaluated.step.num_evaluations
    forces = band.get_forces()
    assert band.largest_force() == np.linalg.norm(forces, axis=1).max()
    assert evaluated.step.num_evaluations == before + 1
    assert np.array_equal(forces.reshape(3, 3, 3)[:, [0, 2]], np.zeros((3, 2, 3)))  # fixed
