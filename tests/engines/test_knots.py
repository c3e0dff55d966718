import pytest
import torch
from torch.func import jvp

from torchmdx.engines.knots import FOR_FLOAT32, FOR_FLOAT64, MOST_INTERVALS, Stretch, least_error, traffic


@pytest.mark.parametrize(("uniform", "decay"), [(0.0, 5.0), (0.1, 7.0), (1.0, 5.0)])
def test_the_stretch_runs_from_the_cutoff_to_the_nucleus_and_back(uniform, decay):
    stretch = Stretch(100, 5.0, uniform, decay)
    r = torch.linspace(0, 5, 50, dtype=torch.float64)
    x = stretch(r)
    assert float(x[0]) == pytest.approx(100)
    assert float(x[-1]) == pytest.approx(0, abs=1e-12)
    torch.testing.assert_close(stretch.inverse(x), r, atol=1e-9, rtol=0)
    torch.testing.assert_close(jvp(stretch, (r,), (torch.ones_like(r),))[1], stretch.slope(r))
    assert stretch.beyond(2.0) == pytest.approx(float(stretch(r.new_tensor(2.0))))


def test_of_tables_within_the_bound_the_one_with_few_intervals_at_long_distances_costs_least():
    steep, even = Stretch(128, 5.0, 0.1, 7.0), Stretch(64, 5.0, 1.0)
    assert steep.beyond(2.5) < even.beyond(2.5)
    assert traffic(steep, 0.9, 5) == traffic(steep, 0.01, 5) < traffic(even, 0.01, 5)
    assert traffic(steep, 1e5, 5) > traffic(even, 0.01, 5)  # ten times as many intervals
    assert least_error(steep, 0.9, 5) > least_error(even, 0.01, 5)


def test_more_intervals_keep_the_spacing():
    for spacing in (FOR_FLOAT32, FOR_FLOAT64):
        for first in spacing.first(4.0):
            finer = spacing.finer(first, 1e5, 5)
            assert finer.num_intervals > 10 * first.num_intervals
            assert (finer.cutoff, finer.uniform, finer.decay) == (4.0, first.uniform, first.decay)
            assert spacing.finer(first, 1e30, 5).num_intervals == MOST_INTERVALS
