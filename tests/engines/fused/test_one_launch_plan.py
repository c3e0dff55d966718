"""How atoms are divided among the clusters of one launch."""

import pytest

pytest.importorskip("triton")

from torchmdx.engines.fused import one_launch_plan as plans
from torchmdx.engines.fused.one_launch_plan import Plan


def test_plans_fit_into_shared_memory_or_there_is_none():
    for count in range(1, 181):
        plan = Plan.choose(count, 15)
        assert plan.clusters <= 15
        assert plan.clusters * plan.per >= count
        assert 4 * plan.floats <= plans.MOST_SHARED_BYTES
    assert Plan.choose(22, 15) == Plan(2, 11, 8, 2, True)
    assert Plan.choose(1000, 15) is None
