"""When a run ends: targets, budgets, and what the last line says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchmdx.learning.config import StopSection
from torchmdx.runtime.wording import counted, number


@dataclass(frozen=True)
class RoundRecord:
    """What a round has shown. Numbers that it does not have are None.

    Attributes:
        number: From 1 on; 0 is what happens before exploration.
        uncertainty: 95 % of the explored frames are below it.
        unit: Of the uncertainty.
        factor: By which it is judged to be too small: errors over uncertainties of the last fresh labels, at least 1.
        error: Root mean square error of forces on fresh labels, of the potential before they were trained on, eV/Å.
        labels: Of all rounds so far.
        hours: Of all stages so far.
        chosen: Frames that were chosen to label.
    """

    number: int
    uncertainty: float | None = None
    error: float | None = None
    labels: int = 0
    hours: float = 0.0
    chosen: int = 0
    factor: float = 1.0
    unit: str = "eV/Å"

    @property
    def judged(self) -> float | None:
        """The uncertainty times the factor: what is compared with the target."""
        return None if self.uncertainty is None else self.factor * self.uncertainty


@dataclass(frozen=True)
class Ending:
    """Why a run has ended. converged: whether every target was reached."""

    converged: bool
    reason: str


def after_exploration(stop: StopSection, records: Sequence[RoundRecord]) -> Ending | None:
    """Whether the run ends before the last frames are labelled: if its only target is one of uncertainty."""
    if stop.error is None and stop.uncertainty is not None and _reached(stop, records):
        return Ending(True, _targets(stop, records[-1]))
    return None


def after_round(stop: StopSection, records: Sequence[RoundRecord]) -> Ending | None:
    """Whether the run ends after the last round, targets first."""
    last = records[-1]
    has_target = stop.error is not None or stop.uncertainty is not None
    if has_target and last.number and _reached(stop, records):
        return Ending(True, _targets(stop, last))
    missing = f"; {_missing(stop, records)}" if last.number else ""
    if last.number and not last.chosen:
        return Ending(False, f"no frame was left to label in round {last.number}{missing}")
    for budget, used, text in (
        (stop.rounds, last.number, counted(stop.rounds, "round")),
        (stop.labels, last.labels, counted(stop.labels or 0, "label")),
        (stop.hours, last.hours, f"{stop.hours} h"),
    ):
        if budget is not None and used >= budget:
            return Ending(False, f"the budget of {text} is spent{missing}")
    return None


def labels_left(stop: StopSection, used: int) -> int | None:
    """Labels that the budget leaves; None without one."""
    return None if stop.labels is None else max(0, stop.labels - used)


def _reached(stop: StopSection, records: Sequence[RoundRecord]) -> bool:
    recent = [one for one in records if one.number][-stop.patience :]
    return len(recent) == stop.patience and all(_meets(stop, one) for one in recent)


def _meets(stop: StopSection, record: RoundRecord) -> bool:
    return all(
        value is not None and value <= target
        for value, target in ((record.judged, stop.uncertainty), (record.error, stop.error))
        if target is not None
    )


def _targets(stop: StopSection, last: RoundRecord) -> str:
    """The targets with what was reached."""
    parts = []
    if stop.uncertainty is not None and last.judged is not None:
        corrected = f", {number(last.factor)} times the model's own, by fresh labels" * (last.factor > 1)
        target = f"{stop.uncertainty:g} {last.unit}"
        parts.append(f"uncertainty {number(last.judged)} of at most {target} (95 % of the frames{corrected})")
    if stop.error is not None and last.error is not None:
        parts.append(f"force error {number(last.error)} of at most {stop.error:g} eV/Å (fresh labels)")
    return ", ".join(parts)


def _missing(stop: StopSection, records: Sequence[RoundRecord]) -> str:
    last = records[-1]
    if stop.uncertainty is None and stop.error is None:
        return "no target of uncertainty or error was set"
    if _meets(stop, last):
        return f"{_targets(stop, last)}, but in fewer than {stop.patience} rounds in a row"
    return _targets(stop, last) or "no target could be judged"


def last_line(ending: Ending, last: RoundRecord, potential: str) -> str:
    """What the command prints at its end."""
    word = "converged" if ending.converged else "not converged"
    rounds, labels = counted(last.number, "round"), counted(last.labels, "label")
    return f"{word} after {rounds} and {labels}: {ending.reason}; potential: {potential}"
