"""A complete training run: directory, data, potential, loop, report; with one or several processes and seeds."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from torchmdx.checkpoints.run_folder import TOGETHER
from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.splits import Split, read_split
from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.training.begin import SPLIT, begin, record_changes, with_data
from torchmdx.training.calibrate import calibrate, resampled
from torchmdx.training.config import Config
from torchmdx.training.distributed import Group, join, launch, launched, leave
from torchmdx.training.finish import finish
from torchmdx.training.heads import base_of, chosen_heads
from torchmdx.training.logs import Logs, require_loggers
from torchmdx.training.loop import STATE, Trainer
from torchmdx.training.open_data import open_data, open_store, say, warn_of_changes
from torchmdx.training.prepare import freeze, make_potential, require_terms
from torchmdx.training.progress import TrainingProgress
from torchmdx.training.replay import with_replay
from torchmdx.training.resuming import places, require_directory, resumed

DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def train(
    config: Config, resume: bool = False, interrupts: Interrupts | None = None, changes: Sequence[str] = ()
) -> int:
    """Trains as configured, in as many processes as configured; returns the exit status, 128 + its number for a signal.

    Raises before anything is written: ValueError, FileNotFoundError and others for a configuration that cannot be used,
    FileExistsError if output.directory already holds a training run and `resume` is false, BlockingIOError if another
    process trains there. interrupts: a signal that comes while data are read ends the run with its first state.

    Args:
        changes: Settings to change in a run that is resumed, as optimizer.learning_rate=1e-4.
    """
    if interrupts is None:
        with Interrupts(patient=launched()) as interrupts:
            return train(config, resume, interrupts, changes)
    require_directory(config, resume)
    if resume or changes:
        config = resumed(config, resume, changes)
    device = _device(config)
    _require_possible(places(config)[0][0])
    if launched():
        return _worker(config, resume, interrupts, checked=False)
    # Several nodes read at the same time, and the first process that they launch holds the directory.
    with _locked(config, resume) if config.training.nodes == 1 else nullcontext():
        if resume:
            warn_of_changes(config.data, Path(config.output.directory))
        store, parts = _data(config, Path(config.output.directory), resume, update=not resume)
        config = with_data(config, store, parts, resume)
        if config.training.devices * config.training.nodes == 1:
            return _members(config, resume, Group(), device, interrupts)
        # Errors once, before the launch.
        for one, place in places(config):
            potential = make_potential(one, store, parts["train"], DTYPES[config.training.precision])
            with_replay(one, potential, store, parts, place, device, resume)
        if interrupts.received is not None:
            print("torchmdx: stopped before the first epoch; the same command starts again", file=sys.stderr)
            return interrupts.status
    return launch(config.training, device, _worker, config, resume)


def _device(config: Config) -> torch.device:
    asked = config.training.device
    return choose_device(None if asked == "auto" else asked, "training.device")


def _worker(config: Config, resume: bool, interrupts: Interrupts | None = None, checked: bool = True) -> int:
    """Trains as one of several processes. checked: whether another process has checked the data."""
    if interrupts is None:
        with Interrupts(patient=True) as interrupts:
            return _worker(config, resume, interrupts, checked)
    device = _device(config)
    group = join(device)
    failed = True
    try:
        batch_size = config.training.batch_size
        if batch_size % group.size:
            raise ValueError(
                f"training.batch_size must be a multiple of the number of processes, {group.size}, got {batch_size}"
            )
        with nullcontext() if group.rank else _locked(config, resume):
            store, parts = _data(config, Path(config.output.directory), resume, update=not resume)
            config = with_data(config, store, parts, resume or checked)
            status = _members(config, resume, group, device, interrupts)
        failed = False
        return status
    finally:
        leave(failed)


def _members(config: Config, resume: bool, group: Group, device: torch.device, interrupts: Interrupts) -> int:
    """Trains one potential, or the members of an ensemble, each in its own directory. Rank 0 holds the directory."""
    if not group.rank:  # until the members are calibrated anew
        (Path(config.output.directory) / TOGETHER).unlink(missing_ok=True)
    for one, place in places(config):
        if not _one(one, place, resume and (place / STATE).exists(), group, device, interrupts):
            # The same in all processes, whichever of them received the signal.
            return interrupts.status or 128 + signal.SIGTERM
    if config.training.ensemble > 1 and not group.rank:
        calibrate(config, device)
    return 0


@contextmanager
def _locked(config: Config, resume: bool) -> Iterator[None]:
    """Holds the directory, whose runs are as they were when the configuration was checked. Raises BlockingIOError."""
    directory = Path(config.output.directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with OutputLock(directory / "training"):
            require_directory(config, resume)
            yield
    finally:
        with suppress(OSError):  # which holds files, unless the run has failed before its first one
            directory.rmdir()


def _one(
    config: Config, directory: Path, resume: bool, group: Group, device: torch.device, interrupts: Interrupts
) -> bool:
    """Trains one potential, new or resumed, and writes its report; False if a signal stopped it."""
    if device.type == "cuda":
        device = torch.device("cuda", group.local_rank if device.index is None else device.index)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(config.training.deterministic)
    try:
        trainer = _trainer(config, directory, resume, group, device)
        finished = _loop(config, trainer, directory, resume, interrupts)
    finally:
        torch.use_deterministic_algorithms(before)
    if finished and not group.rank:
        finish(config, trainer, directory, device)
    return finished


def _trainer(config: Config, directory: Path, resume: bool, group: Group, device: torch.device) -> Trainer:
    """A trainer of one potential, whose directory has the files of a new run, or that continues where a run stopped."""
    store, parts = _data(config, directory, resume)
    if config.training.resample and not resume:
        parts = resampled(config, store, parts)
    potential = make_potential(config, store, parts["train"], DTYPES[config.training.precision]).to(device)
    mixed, every = with_replay(config, potential, store, parts, directory, device, resume)
    trainer = Trainer(config, potential, mixed, every, directory, group)
    if resume:
        trainer.resume()
        if not group.rank:
            record_changes(config, trainer, directory)
    elif not group.rank:
        begin(config, directory, store, parts, potential, device)
    return trainer


@contextmanager
def open_trainer(config: Config, resume: bool = False) -> Iterator[Trainer]:
    """A Trainer with the data, the potential and the directory of a configuration, for a custom loop.

    Raises what `train` raises, and ValueError for several devices or an ensemble.
    """
    training = config.training
    if training.devices * training.nodes * training.ensemble > 1 or launched():
        raise ValueError(
            "a custom loop trains one potential in one process, got devices x nodes x ensemble = "
            f"{training.devices * training.nodes * training.ensemble}"
        )
    require_directory(config, resume)
    if resume:
        config = resumed(config, resume, ())
    device, directory = _device(config), Path(config.output.directory)
    _require_possible(config)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(training.deterministic)
    try:
        with _locked(config, resume):
            config = with_data(config, *_data(config, directory, resume, update=not resume), resume)
            trainer = _trainer(config, directory, resume, Group(), device)
            trainer.logs = _logs(config, trainer, directory, resume)
            try:
                yield trainer
            finally:
                trainer.logs.close()
    finally:
        torch.use_deterministic_algorithms(before)


def _logs(config: Config, trainer: Trainer, directory: Path, resume: bool) -> Logs:
    return Logs(directory, tuple(config.output.loggers), config.plain(), trainer.global_step if resume else None)


def _loop(config: Config, trainer: Trainer, directory: Path, resume: bool, interrupts: Interrupts) -> bool:
    if trainer.group.rank:
        return trainer.run(None, interrupts)
    trainer.logs = _logs(config, trainer, directory, resume)
    progress = TrainingProgress(sys.stderr, config.training.epochs, trainer.epoch + 1)
    try:
        with progress.taking_messages():
            finished = trainer.run(progress, interrupts)
    finally:
        progress.finish()
        trainer.logs.close()
    if not finished:
        print(f"torchmdx: stopped in epoch {trainer.epoch + 1}; continue with --resume", file=sys.stderr)
    return finished


def _data(config: Config, directory: Path, resume: bool, update: bool = False) -> tuple[Store, Split]:
    """The configured data. A resumed run keeps its recorded split, unless data.split names one, which must be equal.

    Args:
        update: Whether files that have changed are converted again; a run that has begun continues with the frames it
            has.
    """
    place, several = Path(config.output.directory), config.training.nodes > 1
    if resume and config.data.split is None and (directory / SPLIT).exists():
        store = open_store(config.data, place, several, update)
        return store, read_split(directory / SPLIT, store)
    return open_data(config.data, place, several, update)


def _require_possible(config: Config) -> None:
    """Raises for errors that do not depend on the data, before the data are converted, which may take hours."""
    require_loggers(config.output.loggers)
    if config.output.report:
        from torchmdx.report.style import require_matplotlib

        require_matplotlib()
    checkpoint = config.finetune.checkpoint
    if checkpoint is None:
        potential = Potential(config.model.network(), config.model.prior_configs())
    else:
        potential = load_one(base_of(config)).requires_grad_(True)
        if (said := chosen_heads(config)) is not None and os.environ.get("RANK", "0") == "0":
            say(said)
    freeze(potential, config.finetune.freeze)
    require_terms(config.loss, potential)
