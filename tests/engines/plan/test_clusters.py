"""How atoms are divided among the clusters of one launch."""

import pytest

pytest.importorskip("triton")

from torchmdx.engines.plan import clusters as plans
from torchmdx.engines.plan.clusters import AtomClusters


def test_plans_fit_into_shared_memory_or_there_is_none():
    for count in range(1, 181):
        plan = AtomClusters.choose(count, 15)
        assert plan.clusters <= 15
        assert plan.clusters * plan.per >= count
        assert 4 * plan.floats <= plans.MOST_SHARED_BYTES
    assert AtomClusters.choose(22, 15) == AtomClusters(2, 11, 8, 2, True)
    assert AtomClusters.choose(1000, 15) is None
