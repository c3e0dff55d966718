import itertools

import numpy as np
import pytest

from torchmdx.training.config import ScheduleSection
from torchmdx.training.schedule import Schedule


def test_cosine_with_warm_up():
    rates = [Schedule(ScheduleSection(warmup_steps=4, final_factor=0.1), 2.0, 104).rate(step) for step in range(105)]
    np.testing.assert_allclose(rates[:5], [0.4, 0.8, 1.2, 1.6, 2.0])
    assert rates[54] == pytest.approx(1.1)
    assert rates[104] == pytest.approx(0.2)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert Schedule(ScheduleSection(name="constant", warmup_steps=0), 2.0, 10).rate(7) == 2.0


def test_plateau_waits_then_reduces_the_rate_and_saves_its_state():
    section = ScheduleSection(name="plateau", warmup_steps=0, plateau_patience=2, plateau_factor=0.5, final_factor=0.2)
    schedule = Schedule(section, 1.0, 100)
    rates = []
    for loss in (5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.5, 3.5, 3.5):
        schedule.validated(loss)
        other = Schedule(section, 1.0, 100)
        other.load_state(schedule.state())
        rates.append(other.rate(50))
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2]
