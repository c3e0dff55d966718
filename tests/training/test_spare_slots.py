"""Spare slots of neighbour lists for other batches of a shape."""

import numpy as np

from torchmdx.training.spare_slots import room


def test_room_depends_on_the_variation_between_systems():
    assert room(1000, None) == room(1000, np.full(4, 250)) == 60
    assert room(36000, np.full(100, 360)) == 180
    assert room(36000, np.resize([350, 370], 100)) == 500
    assert room(36000, np.resize([100, 620], 100)) == 2160
