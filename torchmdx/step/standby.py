"""First results by the exact model before kernels of a GPU are compiled, the first time that a machine needs them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import numpy as np

from torchmdx.engines.choose import plan_for
from torchmdx.models.ensemble import Ensemble
from torchmdx.models.potential import Potential
from torchmdx.runtime.device_guard import prepare_linear_algebra
from torchmdx.runtime.notes import name_of, note, noted
from torchmdx.step.exact import exact_results
from torchmdx.step.report import StepReport
from torchmdx.step.results import StepResult
from torchmdx.structures.system import Batch, System

log = logging.getLogger(__name__)

# Of larger structures the exact model takes more than a second.
MOST_ATOMS = 3000
WHY = "first results on this machine, by the exact model in float64: kernels are being compiled"
# "1" turns it on. Until the second evaluation a thread records graphs, during which CUDA does not synchronize a device.
VARIABLE = "TORCHMDX_STANDBY"

NOTES = "kernels"  # of those that were compiled; if Triton's folder was emptied, they are waited for

Key = TypeVar("Key")
Made = TypeVar("Made")


def may_stand_by(potential: Potential | Ensemble, mode: str, engine: str | None) -> bool:
    """Whether the exact model may take the place of kernels: on a GPU, in mode "auto", without an engine asked for.

    Ensembles and potentials that know their uncertainty wait.
    """
    usual = mode == "auto" and engine is None and isinstance(potential, Potential) and potential.uncertainty is None
    return usual and potential.device.type == "cuda" and os.environ.get(VARIABLE) == "1"


def kernels_for(potential: Potential, batch: Batch, *, stress: bool, precision: str) -> str | None:
    """The name of the kernels that evaluate a batch; None if there are none."""
    found = plan_for(potential, batch, stress=stress, precision=precision)
    if found.kernels is None:
        return None
    chosen = {name: value for name, value in vars(found.kernels).items() if name != "stages"}
    facts = (potential.config, potential.prior_configs, found.machine.name, stress, bool(batch.pbc.any()))
    return name_of(facts, sorted(chosen.items()))


class Standby(Generic[Key, Made]):
    """The exact model for the first evaluation of structures, whose steps are then made in a thread.

    Later evaluations wait for the thread, so that which of them the exact model makes does not depend on time.

    Attributes:
        report: Of the last evaluation; None if that was none of these.
    """

    def __init__(self, potential: Potential, *, stress: bool) -> None:
        self.potential, self.stress = potential, stress
        self.report: StepReport | None = None
        self._known: set[str] = set()
        self._making: tuple[Key, Future[Made]] | None = None

    def made(self) -> tuple[Key, Made] | None:
        """(key, what the thread has made for it) after waiting for it, once; None if there is nothing.

        Errors are left to who makes it again.
        """
        if self._making is None:
            return None
        key, future = self._making
        error = future.exception()  # an interruption while waiting leaves the thread to the next call
        self._making = None
        if error is not None:
            log.info("a step could not be made in advance: %s", error)
            return None
        return key, future.result()

    def is_needed(self, kernels: Callable[[], str | None], atoms: int) -> str | None:
        """The name of kernels that are not compiled yet, for a structure that the exact model serves; else None."""
        if atoms > MOST_ATOMS or atoms == 0:
            return None
        name = kernels()
        return None if name is None or name in self._known or noted(NOTES, name) else name

    def begin(self, key: Key, name: str, make: Callable[[], Made]) -> None:
        """Starts a thread that makes the step of a key. Python waits for it when it ends."""
        log.info(WHY)
        future: Future[Made] = Future()
        self._known.add(name)  # also if it fails: the exact model is asked only once

        def work() -> None:
            try:
                made = make()
            except BaseException as error:
                future.set_exception(error)
            else:
                note(NOTES, name, True)
                future.set_result(made)

        try:
            threading.Thread(target=work, name="torchmdx-compile").start()
        except RuntimeError as error:  # no more threads: kernels are compiled when they are needed
            log.info("kernels are not compiled in a thread: %s", error)
            return
        self._making = key, future

    def forget(self) -> None:
        """Drops what a thread makes, and the report; kernels that were asked for are not asked for again."""
        self._making = self.report = None

    def evaluate(self, system: System) -> StepResult | None:
        """Results of the exact model; None if it has none: the step then says why."""
        prepare_linear_algebra(self.potential.device)
        try:
            batch = Batch.of(system).to(self.potential.device)
            exact = exact_results(self.potential, batch, stress=self.stress)
            found = {name: value.cpu().numpy() for name, value in exact.items()}
        except Exception as error:  # too little memory, atoms at one place
            log.info("the exact model could not stand by: %s", error)
            return None
        if not all(np.isfinite(found[name]).all() for name in ("energy", "forces")):
            return None
        self.report = _report(batch)
        return StepResult(**found)


def _report(batch: Batch) -> StepReport:
    nothing: dict[str, Any] = {
        **dict.fromkeys(("members", "nodes", "capture_s", "replay_ms", "eager_ms", "error", "compared", "threads")),
        **dict.fromkeys(("edges", "capacity", "evaluations", "searches", "recoveries", "memory_bytes"), 0),
        **dict.fromkeys(("head_room", "table_error"), 0.0),
    }
    return StepReport(
        mode="eager", why=WHY, engine="exact", engine_why=WHY, atoms=batch.num_atoms, systems=batch.num_systems,
        not_compared=None, **nothing,
    )  # fmt: skip
