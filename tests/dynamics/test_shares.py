"""Shares of snapshots and restraints."""

import numpy as np
import pytest
from oscillators import springs

from torchmdx.dynamics.device_process import fields_of
from torchmdx.dynamics.integrators import Langevin
from torchmdx.dynamics.restraints import Distance, Position, Torsion
from torchmdx.dynamics.shares import cut, joined, share_of


@pytest.mark.parametrize("sizes", [[2, 3, 4], [1, 1, 1]])
def test_shares_of_a_snapshot_make_it_again(sizes):
    snapshot = springs(Langevin(), 1.0, sizes).snapshot()
    snapshot.frame["order"] = np.concatenate(
        [start + np.arange(n)[::-1] for start, n in zip(np.cumsum([0, *sizes]), sizes, strict=False)]
    )
    everything, total = fields_of(snapshot), sum(sizes)
    first = cut(everything, slice(0, sizes[0]), slice(0, 1), total)
    rest = cut(everything, slice(sizes[0], total), slice(1, 3), total)
    assert len(first["positions"]) == sizes[0]
    assert len(rest["energy"]) == 2
    np.testing.assert_array_equal(np.sort(rest["frame"]["order"]), np.arange(total - sizes[0]))
    again = joined([first, rest], [0, sizes[0]], snapshot.particles)
    for name, value in everything.items():
        if name == "frame":
            for part, expected in value.items():
                np.testing.assert_array_equal(again.frame[part], expected)
        else:
            np.testing.assert_array_equal(getattr(again, name), value)


def test_values_of_each_structure_are_shared():
    own = slice(1, 3)
    assert share_of(Distance((0, 1), 1.5, 2.0), own) == Distance((0, 1), 1.5, 2.0)
    found = share_of(Torsion((0, 1, 2, 3), [10.0, 20.0, 30.0], [1.0, 2.0, 3.0]), own)
    assert found.reference.tolist() == [20.0, 30.0]
    assert found.stiffness.tolist() == [2.0, 3.0]
    points = np.arange(18.0).reshape(3, 2, 3)
    assert share_of(Position((0, 1), 1.0, points), own).reference.tolist() == points[1:].tolist()
    assert share_of(Position((0, 1), 1.0, points[0]), own).reference.tolist() == points[0].tolist()
    assert share_of(Position((0, 1), 1.0), own).reference is None
