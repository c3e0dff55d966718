"""Results of checks: numbers, exceptions, the table."""

import math

import pytest

from torchmdx.evaluation.checks import Check, Conformance, measured


def broken(case):
    raise RuntimeError("first line\nsecond line")


def test_each_check_has_a_case_of_its_own_and_errors_become_results():
    made = []

    def case():
        made.append(len(made))
        return made[-1]

    suite = [("good", "small", 1e-3, lambda case: 1e-4 * case), ("broken", "runs", 1.0, broken)]
    found = measured(
        "engine", [*suite, ("large", "small", 0.5, float), ("nan", "a number", 1.0, lambda _: math.nan)], case
    )
    assert made == [0, 1, 2, 3]
    assert [check.passed for check in found.checks] == [True, False, False, False]
    assert found.checks[1].why == "RuntimeError: first line"
    assert found.failed == ("broken", "large", "nan")
    assert "FAIL  runs\n" in str(found)
    with pytest.raises(ValueError, match="the engine must pass every conformance check, failed broken, large, nan"):
        found.require()


def test_a_result_without_failures_passes():
    Conformance((Check("one", "something", 0.0, 0.0),)).require()
