"""What a distillation says of its trials."""

import math

from torchmdx.training.distillation import page
from torchmdx.training.distillation.outer_steps import Speed, Trial

SPEED = Speed(whole=2e-3, fast=0.25e-3)
FOUND = [
    Trial(None, 1.0, 1, 1.0, 1.5, 1e-6),
    Trial(None, 1.0, 2, 1.0, 2.0, 3e-6),
    Trial(None, 1.0, 3, 1.0, 9.0, 5e-4),
    Trial(3.0, 2.0, 1, 1.0, 4.0, 1e-6),
    Trial(3.0, 1.0, 4, 0.1, math.inf, math.inf, "energy lost after 96 fs"),
]


def test_a_line_says_steps_masses_and_what_happened():
    assert page.described(FOUND[1]) == "1 fs x 2: energy ±2.00 meV, drift 3.0e-06 ± 0e+00 eV/atom/ps (1 ps)"
    assert page.described(FOUND[4]) == "1 fs x 4, hydrogens of 3 amu: energy lost after 96 fs (0.1 ps)"


def test_the_speed_is_that_of_the_largest_stable_outer_step():
    # 2 fs in 2.5 ms: 86,400 s / 2.5 ms of 2 fs, and 1.6 times 1 fs in 2 ms.
    assert page.closing_steps(FOUND, SPEED) == (
        "largest stable outer step 2 fs with masses of the elements (69.1 ns/day, 1.60 times single steps of 1 fs); "
        "no stable outer step with hydrogens of 3 amu"
    )
    assert "2 fs or more with masses" in page.closing_steps(FOUND[:2], SPEED)
    numbers = {"force_rmse": 0.0432, "force_rmse_relative": 0.031}
    assert page.closing(numbers, FOUND, SPEED).startswith(
        "forces of unseen frames 43.2 meV/Å RMSE (3.1 %), cost 0.12 of the potential's; largest"
    )


def test_the_table_has_a_row_for_each_trial():
    table = page.table(FOUND, SPEED)
    assert [row[3] for row in table.rows] == ["1", "2", "3", "2", "4"]
    assert [row[-2] for row in table.rows] == ["yes", "yes", "no", "yes", "no"]
    assert [row[-1] for row in table.rows[:2]] == ["43.2", "69.1"]
