"""The loop on the host: an interruption anywhere leaves the state of a whole step."""

import numpy as np
import pytest
from oscillators import last, springs

from torchmdx.dynamics.integrators import Bussi


@pytest.mark.parametrize("place", ["before", "after"])
def test_an_interrupted_step_is_not_taken(place):
    expected = last(springs(Bussi(0.1), 1.0, [3, 2]), 9)
    loop = springs(Bussi(0.1), 1.0, [3, 2])
    last(loop, 4)
    evaluate = loop.step

    def interrupted(*given, **options):
        if place == "after":
            evaluate(*given, **options)
        loop.step = evaluate
        raise KeyboardInterrupt

    interrupted.num_evaluations = 0
    loop.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        last(loop, 5)
    assert loop.num_steps == 4
    found = last(loop, 5)
    np.testing.assert_array_equal(found.positions, expected.positions)
    np.testing.assert_array_equal(found.velocities, expected.velocities)


def test_snapshots_are_copies():
    loop = springs(Bussi(0.1), 1.0, [3])
    one, two = loop.snapshot(), loop.snapshot()
    for name in ("positions", "velocities", "forces", "energy"):
        getattr(one, name)[:] = 9
        assert not (getattr(two, name) == 9).any()
        assert not (getattr(loop.snapshot(), name) == 9).any()
