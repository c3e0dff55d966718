"""When a run ends, and what its last line says."""

import pytest

from torchmdx.learning.config import StopSection
from torchmdx.learning.stop import Ending, RoundRecord, after_exploration, after_round, labels_left, last_line


def rounds(*values, labels=8):
    """Records of round 0 and of rounds with (uncertainty, error)."""
    found = [RoundRecord(0, labels=labels)]
    for number, (uncertainty, error) in enumerate(values, 1):
        found.append(RoundRecord(number, uncertainty, error, labels * (number + 1), 0.1 * number, labels))
    return found


def test_a_target_of_uncertainty_is_reached_before_labels_and_one_of_error_after():
    only = StopSection(uncertainty=0.1)
    assert after_exploration(only, rounds((0.11, None))) is None
    found = after_exploration(only, rounds((0.5, 0.2), (0.09, None)))
    assert found.converged
    assert found.reason == "uncertainty 0.0900 of at most 0.1 eV/Å (95 % of the frames)"
    both = StopSection(uncertainty=0.1, error=0.05)
    assert after_exploration(both, rounds((0.09, None))) is None
    assert after_round(both, rounds((0.09, 0.06))) is None
    found = after_round(both, rounds((0.09, 0.04)))
    assert found.converged
    assert "force error 0.0400 of at most 0.05 eV/Å (fresh labels)" in found.reason


def test_patience_needs_rounds_in_a_row():
    stop = StopSection(error=0.1, patience=2)
    assert after_round(stop, rounds((1, 0.05))) is None
    assert after_round(stop, rounds((1, 0.05), (1, 0.2), (1, 0.05))) is None
    assert after_round(stop, rounds((1, 0.2), (1, 0.05), (1, 0.05))).converged
    last = after_round(StopSection(error=0.1, patience=2, rounds=1), rounds((1, 0.05)))
    assert not last.converged
    assert "in fewer than 2 rounds in a row" in last.reason


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"rounds": 2}, "the budget of 2 rounds is spent"),
        ({"labels": 20}, "the budget of 20 labels is spent"),
        ({"hours": 0.2}, "the budget of 0.2 h is spent"),
    ],
)
def test_budgets_end_a_run_without_convergence(settings, text):
    assert after_round(StopSection(**settings), rounds((1, 1))) is None
    found = after_round(StopSection(**settings), rounds((1, 1), (1, 1)))
    assert not found.converged
    assert found.reason == f"{text}; no target of uncertainty or error was set"


def test_an_uncertainty_that_fresh_labels_show_to_be_too_small_is_judged_by_them():
    stop = StopSection(uncertainty=0.1)
    small = RoundRecord(2, 0.05, None, 24, 0.1, 0, factor=3.0)
    assert small.judged == pytest.approx(0.15)
    assert after_exploration(stop, [*rounds((1, 1)), small]) is None
    good = RoundRecord(2, 0.03, None, 24, 0.1, 0, factor=3.0)
    found = after_exploration(stop, [*rounds((1, 1)), good])
    assert "uncertainty 0.0900" in found.reason
    assert "3.00 times the model's own, by fresh labels" in found.reason


def test_a_round_that_leaves_nothing_to_label_ends_the_run():
    record = RoundRecord(1, 0.5, None, 8, 0.1, chosen=0)
    found = after_round(StopSection(uncertainty=0.1), [RoundRecord(0), record])
    assert not found.converged
    assert found.reason.startswith("no frame was left to label in round 1; uncertainty 0.500 of at most 0.1 eV/Å")


def test_the_budget_of_labels_limits_a_round():
    assert labels_left(StopSection(), 8) is None
    assert labels_left(StopSection(labels=20), 8) == 12
    assert labels_left(StopSection(labels=20), 30) == 0


def test_the_last_line_says_whether_it_converged():
    last = RoundRecord(3, labels=1200)
    assert last_line(Ending(True, "so"), last, "p") == "converged after 3 rounds and 1,200 labels: so; potential: p"
    assert last_line(Ending(False, "so"), last, "p").startswith("not converged after 3 rounds")
