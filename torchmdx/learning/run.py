"""A whole run of `torchmdx learn`: rounds of stages until a target is reached or a budget is spent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchmdx.learning import page
from torchmdx.learning.config import LearnConfig
from torchmdx.learning.exploring import explore
from torchmdx.learning.run_folder import CHOSEN, PAGE, POTENTIAL, RunFolder, StoppedBySignal
from torchmdx.learning.select import RANDOM
from torchmdx.learning.selecting import select
from torchmdx.learning.stages import label_frames, require_possible, start, train_potential
from torchmdx.learning.stop import Ending, RoundRecord, after_exploration, after_round, labels_left, last_line
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock

HOUR = 3600.0  # s
Results = dict[str, Any]


def learn(config: LearnConfig, interrupts: Interrupts | None = None, say: Callable[[str], None] = print) -> int:
    """Runs rounds until the run ends; returns the exit status, 128 + its number for a signal.

    After an interruption, also a kill, the same call continues with the same results.

    Raises:
        BlockingIOError: If another process works in output.directory.
        FileExistsError: If the directory holds a run with other settings.
        ValueError: For settings that cannot be used.
    """
    if interrupts is None:
        with Interrupts() as interrupts:
            return learn(config, interrupts, say)
    require_possible(config)
    folder = Path(config.output.directory)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with OutputLock(folder):
        run = RunFolder(config, interrupts, say)
        if run.open():
            say(f"continuing in {folder}")
        try:
            return _Rounds(run).run()
        except StoppedBySignal:
            say(f"stopped; the same command continues in {folder}")
            return interrupts.status


class _Rounds:
    """The rounds of a run. results: of each stage, by round and name."""

    def __init__(self, run: RunFolder) -> None:
        self.folder, self.stop = run, run.config.stop
        self.results: list[dict[str, Results]] = []
        self.records: list[RoundRecord] = []

    def run(self) -> int:
        ending = self._first()
        while ending is None:
            number = len(self.results)
            self.folder.say(f"round {number}")
            ending = self._round(number)
            self._page(ending)
        self._page(ending)
        last = self.folder.potential(len(self.results))
        if isinstance(last, Path):
            last = self.folder.folder / POTENTIAL
        self.folder.say(last_line(ending, self.records[-1], str(last)))
        return 0

    def _first(self) -> Ending | None:
        """What happens before exploration."""
        self.results.append({})
        started = self._do("start", start(self.folder))
        if started["frames"]:
            self._do("label", label_frames(self.folder, 0, self.folder.place(0, "start") / CHOSEN, []))
        if started["frames"] or self.folder.config.start.data:
            self._do("train", train_potential(self.folder, 0))
        self._record()
        return after_round(self.stop, self.records)

    def _round(self, number: int) -> Ending | None:
        self.results.append({})
        self._do("explore", explore(self.folder, number))
        self._record()
        if (ending := after_exploration(self.stop, self.records)) is not None:
            return ending
        left = labels_left(self.stop, self.records[-1].labels)
        chosen = self._do("select", select(self.folder, number, left))["chosen"]
        if chosen:
            controls = [place for place, one in enumerate(chosen) if one["why"] == RANDOM]
            self._do("label", label_frames(self.folder, number, self.folder.place(number, "select") / CHOSEN, controls))
            self._do("train", train_potential(self.folder, number))
        self.records.pop()
        self._record()
        return after_round(self.stop, self.records)

    def _do(self, stage: str, result: Results) -> Results:
        self.results[-1][stage] = result
        self.folder.check()
        return result

    def _record(self) -> None:
        """The record of the last round, from the results of its stages so far."""
        last = self.results[-1]
        errors = (last.get("label") or {}).get("errors")
        fresh = None if errors is None else errors["random"] or errors["all"]
        every = [result for stages in self.results for result in stages.values()]
        self.records.append(
            RoundRecord(
                len(self.results) - 1,
                last.get("explore", {}).get("uncertainty"),
                None if fresh is None else fresh["force_rmse"],
                sum(stages["label"]["labels"] for stages in self.results if "label" in stages),
                sum(result["seconds"] for result in every) / HOUR,
                len(last.get("select", {}).get("chosen", [])),
                self._factor(),
                self.folder.config.uncertainty.unit,
            )
        )

    def _page(self, ending: Ending | None) -> None:
        if self.folder.config.output.page:
            page.write(self.folder, self.folder.folder / PAGE, self.results, self.records, ending)

    def _factor(self) -> float:
        """By how much the labels of the last rounds before this one say that uncertainties are too small."""
        for stages in reversed(self.results[:-1]):
            errors = (stages.get("label") or {}).get("errors")
            if errors is not None and (ratio := (errors["random"] or errors["all"])["ratio"]) is not None:
                return max(1.0, float(ratio))
        return 1.0
