"""Trainer: epochs of steps, validation, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchmdx.checkpoints.save_load import save
from torchmdx.datasets.splits import Split
from torchmdx.datasets.store import Store
from torchmdx.models.heads import MultiHead
from torchmdx.models.potential import Potential
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.training.adapters import merged
from torchmdx.training.batches import Batches, Ranks, Replay
from torchmdx.training.config import Config
from torchmdx.training.contradiction import contradiction, is_due
from torchmdx.training.distributed import Group
from torchmdx.training.epoch_means import EpochMeans
from torchmdx.training.heads import OLD, REPLAY, heads_of
from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.level_of_theory import doubt
from torchmdx.training.logs import Logs
from torchmdx.training.loss import term_weights
from torchmdx.training.optimizer import averaged
from torchmdx.training.pending_steps import PendingSteps
from torchmdx.training.progress import HELD_OUT, TrainingProgress, short_names
from torchmdx.training.restore import restore, write
from torchmdx.training.schedule import Schedule
from torchmdx.training.step import NORM, STOP, VALUES, LossHook, TrainStep
from torchmdx.training.validation import NEW, TEST, Held, choice, validate

Hook = Callable[["Trainer", dict[str, float]], Mapping[str, float] | None]
STATE, LAST, BEST = "state.safetensors", "last.safetensors", "best.safetensors"


class Trainer:
    """Runs training epochs, validation and checkpointing; only the first process writes files.

    Args:
        potential: On the device, in the dtype of the training; its weights are moved into one vector.
    """

    def __init__(
        self, config: Config, potential: Potential, store: Store, parts: Split, directory: Path, group: Group
    ) -> None:
        self.config, self.potential, self.store, self.parts = config, potential, store, parts
        self.directory, self.group, self.heads = directory, group, heads_of(config, store, parts)
        training = config.training
        replay = Replay(parts[REPLAY], config.finetune.replay_share) if REPLAY in parts else None
        self.train = self._batches(parts["train"], training.batch_size, training.seed, replay)
        held_out = {NEW: parts["validation"], OLD: parts.get(OLD, np.zeros(0, np.int64))}
        self.validation = {name: self._held(part, name) for name, part in held_out.items() if len(part)}
        self.schedule = Schedule(config.schedule, config.optimizer.learning_rate, training.epochs * len(self.train))
        self.epoch = self.done = self.global_step = self.waited = 0  # complete epochs, steps of the next one
        self.best, self.best_epoch = math.inf, 0
        # Errors on the held-out frames of the checkpoint to fine-tune, and of the best epoch.
        self.before: dict[str, float] = {}
        self.best_errors: dict[str, float] = {}
        self.means = EpochMeans()
        self.remembered: dict[str, float] = {}
        # Settings that were changed when the run was resumed, with epoch and step.
        self.changes: list[dict[str, Any]] = []
        self.stopped_early = False
        # Called after each epoch with the trainer and the values, to which they may add others.
        self.hooks: list[Hook] = []
        self.loss_hook: LossHook | None = None
        self.logs: Logs | None = None
        self.step = self._make_step({})

    def _make_step(self, capacities: dict[str, int]) -> TrainStep:
        return TrainStep(
            self.potential,
            self.config.loss,
            self.config.optimizer,
            bf16=self.config.training.precision == "bf16",
            tf32=self.config.training.precision == "tf32",
            reduce=self.group.sum if self.group.size > 1 else None,
            capacities=capacities,
            record=self.config.training.record,
            loss_hook=self.loss_hook,
        )

    def _batches(self, indices: np.ndarray, size: int, seed: int | None, replay: Replay | None = None) -> Batches:
        return Batches(
            self.store,
            indices,
            size,
            cutoff=self.potential.cutoff,
            dtype=self.potential.dtype,
            device=self.potential.device,
            seed=seed,
            ranks=Ranks(self.group.rank, self.group.size),
            prefetch=self.config.training.prefetch,
            config_type_weights=self.config.loss.config_type_weights,
            replay=replay,
            heads=self.heads,
        )

    def _held(self, indices: np.ndarray, name: str) -> Held:
        """Held-out frames, new ones by head."""
        size = self.config.training.validation_batch_size or self.config.training.batch_size
        if self.heads is None or name == OLD:
            return self._batches(indices, size, None)
        parts = self.heads.parts(indices)
        return {head: self._batches(part, size, None) for head, part in parts.items() if len(part)}

    # Resume

    def resume(self) -> None:
        """Restores the state that `_save` wrote in a run with the same settings.

        Raises:
            FileNotFoundError: For damaged files, different data or a different model.
            ValueError: For damaged files, different data or a different model.
        """
        restore(self, self.directory / STATE)

    def new_step(self, capacities: dict[str, int]) -> None:
        """A step for the weights of the potential as they are."""
        self.step = self._make_step(capacities)

    def _save(self) -> None:
        capacities = self.group.gather(self.step.capacities())
        if self.group.rank:
            return
        write(self, self.directory / STATE, capacities)
        with averaged(self.step.optimizer):
            self._write(LAST)

    def _write(self, name: str) -> None:
        save(merged(self.potential), self.directory / name)

    # Training

    def add_to_loss(self, hook: LossHook) -> None:
        """Adds hook(result, labelled), a scalar tensor, to the loss of every training step, but not to validations.

        result has predictions of the systems of labelled, padding included. On a GPU steps are captured as a graph,
        unless training.record is false: the hook must keep shapes, and read nothing on the host.
        """
        self.loss_hook = self.step.loss_hook = hook

    def run(self, progress: TrainingProgress | None, interrupts: Interrupts) -> bool:
        """Trains to the end; False if a signal stopped it."""
        for _ in self.epochs(progress, interrupts):
            pass
        return self.epoch == self.config.training.epochs or self.stopped_early

    def epochs(
        self, progress: TrainingProgress | None = None, interrupts: Interrupts | None = None
    ) -> Iterator[dict[str, float]]:
        """Trains epoch by epoch, and yields the values of epochs.csv after each; ends early after a signal.

        The state is saved then, and every output.save_every epochs before the values are yielded: a loop that is left
        can be resumed.
        """
        training, logs = self.config.training, self.logs
        if self.epoch == self.done == 0 and not (self.directory / STATE).exists():
            self._begin(logs)
            self._save()  # so that a run killed in its first epoch can be resumed
        while self.epoch < training.epochs and not self.stopped_early:
            if not self._epoch(logs, progress, interrupts):
                self._save()
                return
            self.epoch, self.done = self.epoch + 1, 0
            values = self._finish_epoch()
            for hook in self.hooks:
                values |= hook(self, values) or {}
            self._compare_labels(progress)
            if logs is not None:
                logs.epoch(self.epoch, self.global_step, values)
            if progress is not None:
                progress.epoch_done(self.epoch, len(self.train), short_names(values, HELD_OUT))
            last = self.epoch == training.epochs or self.stopped_early
            if last or self.epoch % self.config.output.save_every == 0:
                self._save()
            yield values

    def _begin(self, logs: Logs | None) -> None:
        """Validates a checkpoint to fine-tune, as epoch 0: a later epoch has to be better than it."""
        if self.config.finetune.checkpoint is None or NEW not in self.validation:
            return
        found = validate(self.step, self.validation, self.config, 0)
        self.best, self.best_errors = choice(found), found
        self.before = found | self._of_test_set()
        if not self.group.rank:
            self._write(BEST)
        if logs is not None:
            logs.epoch(0, 0, found)

    def _of_test_set(self) -> dict[str, float]:
        """Errors on the test set, which chooses nothing."""
        if not len(self.parts.get(TEST, ())):
            return {}
        return validate(self.step, {TEST: self._held(self.parts[TEST], TEST)}, self.config, 0)

    def _compare_labels(self, progress: TrainingProgress | None) -> None:
        """Says if the labels of energies and forces contradict each other, a few times in a run."""
        trained = {"energy", "forces"} <= set(self.step.terms)
        if progress is None or not trained or not is_due(self.epoch, self.config.training.epochs):
            return
        parts = {"": self.parts["train"]} if self.heads is None else self.heads.parts(self.parts["train"])
        for head, frames in parts.items():
            with averaged(self.step.optimizer):
                potential = self.potential.one(head) if isinstance(self.potential, MultiHead) else self.potential
                said = contradiction(potential, self.store, frames)
            if said is not None:
                progress.message(f"warning: {f'head {head}: ' if head else ''}{said}")

    def _epoch(self, logs: Logs | None, progress: TrainingProgress | None, interrupts: Interrupts | None) -> bool:
        """Trains the rest of the epoch; False if a signal stopped it."""
        on_gpu = self.potential.device.type == "cuda"
        pending = PendingSteps(self.step, self.config.output.log_every if on_gpu else 1, self._names)
        batches = self.train.epoch(self.epoch, self.done)
        try:
            for labelled in batches:
                progress_share = (self.epoch + self.done / len(self.train)) / self.config.training.epochs
                self.step.set_rates(
                    self.schedule.rate(self.global_step), term_weights(self.config.loss, progress_share)
                )
                self.step.stop.fill_(float(interrupts is not None and interrupts.received is not None))
                values = self.step(labelled)
                self.global_step, self.done = self.global_step + 1, self.done + 1
                found = pending.add(self.global_step, labelled, values)
                if self._note(found, logs, progress):
                    self._note(pending.flush(), logs, progress)
                    return False
            return not self._note(pending.flush(), logs, progress)
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _note(
        self, found: list[tuple[int, LabelledBatch, list[float]]], logs: Logs | None, progress: TrainingProgress | None
    ) -> bool:
        """Logs the values of steps; returns whether any process has received a signal."""
        stop = False
        for number, labelled, row in found:
            values = dict(zip(VALUES, row, strict=True))
            self.means.add(values, labelled.totals)
            if number == 1 and progress is not None and (warning := doubt(self.config, values)):
                progress.message(f"warning: {warning}")
            stop = stop or bool(row[STOP])
            if logs is not None and number % self.config.output.log_every == 0:
                unused = {f"{name}_loss" for name in ("charges", "dipole") if name not in self.step.terms}
                kept = {name: values[name] for name in VALUES[: NORM + 1] if name not in unused}
                logs.step(number, kept | {"lr": self.schedule.rate(number - 1)})
        if found and progress is not None:
            shown = {"loss": values["loss"]} | short_names({f"train_{k}": v for k, v in self.means.errors().items()})
            progress.update(self.epoch + 1, self.done, len(self.train), shown, self.train.num_atoms())
        return stop

    def _finish_epoch(self) -> dict[str, float]:
        """Validates if due; returns the values of epochs.csv."""
        values = {"lr": self.schedule.rate(max(self.global_step - 1, 0))}
        means = self.means.all(term_weights(self.config.loss, 1.0))
        values |= {f"train_{name}": value for name, value in means.items()}
        self.means = EpochMeans()
        every = self.config.training.validate_every
        if NEW not in self.validation:
            if not self.group.rank:
                with averaged(self.step.optimizer):
                    self._write(BEST)
        elif self.epoch % every == 0 or self.epoch == self.config.training.epochs:
            found = validate(self.step, self.validation, self.config, self.epoch)
            values |= found
            self._register(found)
        self.remembered = values
        return values

    def _register(self, found: dict[str, float]) -> None:
        loss = choice(found)
        self.schedule.validated(loss)
        if not loss < self.best:
            self.waited += 1
            self.stopped_early = self.waited >= (self.config.training.stop_after or math.inf)
            return
        self.best, self.best_epoch, self.waited, self.best_errors = loss, self.epoch, 0, found
        if not self.group.rank:
            with averaged(self.step.optimizer):
                self._write(BEST)

    def _names(self, labelled: LabelledBatch) -> str:
        shown = [f"{k} ({self.store.origin(int(k))[0]}:{self.store.origin(int(k))[1]})" for k in labelled.frames[:8]]
        return f"frames {', '.join(shown)}" + (" and more" if len(labelled.frames) > 8 else "")
