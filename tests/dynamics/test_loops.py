"""Which loop a dynamics gets, and where it stops; that of a GPU is tested in test_device_loop.py."""

import pytest
import torch

from torchmdx import System
from torchmdx.dynamics.loops import default_steps_per_replay, step_of_fast, stops
from torchmdx.step.captured_step import CapturedStep
from torchmdx.structures.system import Batch


def test_graphs_of_many_atoms_have_fewer_steps():
    assert [default_steps_per_replay(count) for count in (1, 10_000, 25_000, 10**6)] == [20, 20, 8, 1]


def test_stops_are_the_multiples_of_all_intervals_and_the_end():
    assert list(stops(0, 10, [4])) == [4, 8, 10]
    assert list(stops(5, 12, [4, 6])) == [6, 8, 12]
    assert list(stops(7, 8, [100])) == [8]
    assert list(stops(3, 3, [2])) == [3]  # the state there, without a step


def test_the_step_of_a_fast_potential(make_potential, ethanol):
    """It takes the precision of the full one where it has the same dtype, else its own."""
    batch = Batch.of(System.from_ase(ethanol))
    full = CapturedStep(make_potential(), batch, mode="eager", skin=0.5)
    double = step_of_fast(make_potential(seed=1), full, batch)
    single = step_of_fast(make_potential(torch.float32), full, batch)
    assert (double.precision, double.skin) == ("float64", 0.5)
    assert single.precision == "float32"
    unknowing = make_potential(max_z=7)
    with pytest.raises(ValueError, match="fast potential: .* knows atomic numbers up to 7, got 8"):
        step_of_fast(unknowing, full, batch)
