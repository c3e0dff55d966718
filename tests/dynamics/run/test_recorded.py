"""Frames and rows of a snapshot."""

import numpy as np
import pytest
from oscillators import springs

from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.run.recorded import atoms_of, frames_of, rows_of
from torchmdx.structures.units import BOLTZMANN


def test_each_structure_has_its_own():
    snapshot = springs(Langevin(), 2.0, [2, 3]).snapshot()
    assert atoms_of(snapshot.particles) == [slice(0, 2), slice(2, 5)]
    frames = frames_of(snapshot, np.zeros((2, 3), dtype=bool))
    rows = rows_of(snapshot, [False, False], exchange=True)
    for number, own in enumerate((slice(0, 2), slice(2, 5))):
        frame, row = frames[number], rows[number]
        np.testing.assert_array_equal(frame.positions, snapshot.positions[own])
        np.testing.assert_array_equal(frame.velocities, snapshot.velocities[own])
        assert frame.cell is None
        assert frame.potential == row.potential == snapshot.energy[number]
        kinetic = 0.5 * 3 * (own.stop - own.start) * BOLTZMANN * frame.temperature
        assert frame.kinetic == row.kinetic == pytest.approx(kinetic)
        assert row.thermostat == 300.0
        assert row.speed is None
        assert row.volume is None


def test_a_cell_has_a_volume_and_a_density():
    snapshot = springs(Langevin(), 2.0, [3]).snapshot()
    snapshot.cell[0] = 4.0 * np.eye(3)
    (frame,), (row,) = (
        frames_of(snapshot, np.ones((1, 3), dtype=bool)),
        rows_of(snapshot, [True], exchange=False),
    )
    np.testing.assert_array_equal(frame.cell, 4.0 * np.eye(3))
    assert row.volume == pytest.approx(64.0)
    assert row.density == pytest.approx(3 * 4.0 * 1.66053907 / 64, rel=1e-6)  # three atoms of 4 amu
    assert row.thermostat is None
