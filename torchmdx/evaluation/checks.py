"""Results of checks that potentials and engines have to pass, and how they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Case = TypeVar("Case")


@dataclass(frozen=True)
class Check:
    """One check: name, requirement (asks), error found, largest error allowed; why: the exception if it did not run."""

    name: str
    asks: str
    error: float
    allowed: float
    why: str = ""

    @property
    def passed(self) -> bool:
        return not self.why and self.error <= self.allowed


@dataclass(frozen=True)
class Conformance:
    """The result of all checks; as text, a table. subject: what was checked, "potential" or "engine"."""

    checks: tuple[Check, ...]
    subject: str = "potential"

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return tuple(check.name for check in self.checks if not check.passed)

    def __str__(self) -> str:
        lines = [f"{'check':<18}{'error':>10}{'allowed':>10}         requirement"]
        for check in self.checks:
            numbers = f"{'-':>10}" if check.why else f"{check.error:>10.1e}"
            verdict = "ok  " if check.passed else "FAIL"
            lines.append(f"{check.name:<18}{numbers}{check.allowed:>10.0e}   {verdict}  {check.asks}")
            if check.why:
                lines.append(f"{'':<18}{check.why}")
        return "\n".join(lines)

    def require(self) -> None:
        """Raises ValueError, naming the checks, if any failed."""
        if not self.passed:
            raise ValueError(f"the {self.subject} must pass every conformance check, failed {', '.join(self.failed)}")


def measured(
    subject: str, suite: Iterable[tuple[str, str, float, Callable[[Case], float]]], case: Callable[[], Case]
) -> Conformance:
    """The results of a suite: name, requirement, largest error allowed, and the function that measures the error.

    Args:
        case: Makes what is measured, once for each check. A check that raises has failed, with the exception as reason.
    """
    checks = []
    for name, asks, allowed, measure in suite:
        error, why = float("nan"), ""
        try:
            error = measure(case())
        except Exception as raised:  # errors of what is checked belong in the table
            why = f"{type(raised).__name__}: {str(raised).strip().splitlines()[0] if str(raised).strip() else ''}"
        checks.append(Check(name, asks, error, allowed, why))
    return Conformance(tuple(checks), subject)
