"""benchmarks/multiple_steps_samples: rates of samples and gains, from made-up series whose values are known."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.multiple_steps_samples import SETTINGS, SPACING, rows_of

RANDOM = np.random.default_rng(3)


def series(kept, *shape):
    """Autoregressive values of the time (1 + kept) / (1 - kept) / 2, in frames."""
    noise = RANDOM.normal(0, 1, shape)
    for k in range(1, len(noise)):
        noise[k] += kept * noise[k - 1]
    return noise[50:]


def test_gains_are_ratios_of_samples_of_a_processor_hour():
    runs, seconds = [], (8.0, 4.0, 6.0, 3.0)  # of 1 ps
    for frames in (5050, 4050):
        held = {}
        for setting, cost in zip(SETTINGS, seconds, strict=True):
            values = np.stack([series(kept, frames, 8) for kept in (0.2, 0.2, 0.8, 0.2, 0.5)], -1)
            held |= {setting.name: values, f"seconds {setting.name}": np.full(frames // 10, cost)}
        runs.append(held)
    rows = rows_of(runs)
    assert [(row["inner"], row["step_fs"]) for row in rows] == [(1, 1.0), (1, 2.0), (2, 1.0), (2, 2.0)]
    assert {row["torsion"] for row in rows} == {"cos ψ"}
    assert rows[0]["ns_day"] == pytest.approx(10.8)
    assert rows[0]["batch"] == 8
    assert rows[0]["replicas"] == 16
    assert rows[0]["torsion_time_ps"] == pytest.approx(4.5 * SPACING, rel=0.1)
    assert rows[0]["energy_samples_hour"] == pytest.approx(8 * 450 / (2 * 1.5 * SPACING), rel=0.05)
    assert rows[3]["torsion_gain_1_fs"] == pytest.approx(8 / 3, rel=0.1)
    assert rows[2]["torsion_gain_2_fs"] == pytest.approx(4 / 6, rel=0.1)
    assert 0 < rows[3]["energy_gain_1_fs_error"] < 0.2
