"""A complete training run: directory, data, potential, loop, report; with one or several processes and seeds."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

import torchmdx
from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.splits import Split, read_split, remarks_on_copies, write_split
from torchmdx.datasets.store import Store
from torchmdx.models.potential import Potential
from torchmdx.runtime.devices import choose_device
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.interrupt import Interrupts
from torchmdx.runtime.output_lock import OutputLock
from torchmdx.runtime.wording import number
from torchmdx.training.config import Config
from torchmdx.training.config_file import write_text
from torchmdx.training.distributed import Group, join, launch, launched, leave
from torchmdx.training.gains import UNITS, lines
from torchmdx.training.logs import Logs, require_loggers
from torchmdx.training.loop import BEST, LAST, STATE, Trainer
from torchmdx.training.open_data import open_data, open_store, require_usable, warn_of_changes
from torchmdx.training.prepare import describe_references, freeze, make_potential, require_terms
from torchmdx.training.progress import TrainingProgress
from torchmdx.training.replay import OLD, REPLAY, with_replay
from torchmdx.training.state import read_state, require_same

CONFIG, SPLIT, ENVIRONMENT = "config.yaml", "split.json", "environment.json"
MEMBER = "member-"
SHOWN = {OLD: "old frames"}  # names of parts in the report
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.float32, "float64": torch.float64}


def train(config: Config, resume: bool = False, interrupts: Interrupts | None = None) -> int:
    """Trains as configured, in as many processes as configured; returns the exit status, 128 + its number for a signal.

    Raises before anything is written: ValueError, FileNotFoundError and others for a configuration that cannot be
    used, FileExistsError if output.directory already holds a training run and `resume` is false, BlockingIOError if
    another process trains there. interrupts: a signal that comes while data are read ends the run with its first state.
    """
    if interrupts is None:
        with Interrupts(patient=launched()) as interrupts:
            return train(config, resume, interrupts)
    device = _device(config)
    _require_directory(config, resume)
    _require_possible(config)
    if launched():
        return _worker(config, resume, interrupts)
    # Several nodes read at the same time, and the first process that they launch holds the directory.
    with _locked(config, resume) if config.training.nodes == 1 else nullcontext():
        if resume:
            warn_of_changes(config.data, Path(config.output.directory))
        store, parts = _data(config, Path(config.output.directory), resume, update=not resume)
        require_usable(config, store, parts)
        if config.training.devices * config.training.nodes == 1:
            return _members(config, resume, Group(), device, interrupts)
        # Errors once, before the launch.
        for one, place in _places(config):
            potential = make_potential(one, store, parts["train"], DTYPES[config.training.precision])
            with_replay(one, potential, store, parts, place, device, resume)
        if interrupts.received is not None:
            print("torchmdx: stopped before the first epoch; the same command starts again", file=sys.stderr)
            return interrupts.status
    return launch(config.training, device, _worker, config, resume)


def _device(config: Config) -> torch.device:
    asked = config.training.device
    return choose_device(None if asked == "auto" else asked, "training.device")


def _worker(config: Config, resume: bool, interrupts: Interrupts | None = None) -> int:
    """Trains as one of several processes."""
    if interrupts is None:
        with Interrupts(patient=True) as interrupts:
            return _worker(config, resume, interrupts)
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
            _data(config, Path(config.output.directory), resume, update=not resume)
            status = _members(config, resume, group, device, interrupts)
        failed = False
        return status
    finally:
        leave(failed)


def _members(config: Config, resume: bool, group: Group, device: torch.device, interrupts: Interrupts) -> int:
    """Trains one potential, or the members of an ensemble, each in its own directory. Rank 0 holds the directory."""
    for one, place in _places(config):
        if not _one(one, place, resume and (place / STATE).exists(), group, device, interrupts):
            # The same in all processes, whichever of them received the signal.
            return interrupts.status or 128 + signal.SIGTERM
    return 0


@contextmanager
def _locked(config: Config, resume: bool) -> Iterator[None]:
    """Holds the directory, whose runs are as they were when the configuration was checked. Raises BlockingIOError."""
    directory = Path(config.output.directory)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        with OutputLock(directory / "training"):
            _require_directory(config, resume)
            yield
    finally:
        with suppress(OSError):  # which holds files, unless the run has failed before its first one
            directory.rmdir()


def _places(config: Config) -> list[tuple[Config, Path]]:
    """The configuration and the directory of each potential."""
    directory, size = Path(config.output.directory), config.training.ensemble
    if size == 1:
        return [(config, directory)]
    return [(_member(config, member), directory / f"{MEMBER}{member}") for member in range(size)]


def _member(config: Config, number: int) -> Config:
    """The configuration of a member of the ensemble."""
    seed = config.training.seed + number
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


def _one(
    config: Config, directory: Path, resume: bool, group: Group, device: torch.device, interrupts: Interrupts
) -> bool:
    """Trains one potential, new or resumed, and writes its report; False if a signal stopped it."""
    dtype = DTYPES[config.training.precision]
    if device.type == "cuda":
        device = torch.device("cuda", group.local_rank if device.index is None else device.index)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(config.training.deterministic)
    try:
        store, parts = _data(config, directory, resume)
        require_usable(config, store, parts)
        potential = make_potential(config, store, parts["train"], dtype).to(device)
        mixed, every = with_replay(config, potential, store, parts, directory, device, resume)
        trainer = Trainer(config, potential, mixed, every, directory, group)
        if resume:
            trainer.resume()
        elif not group.rank:
            _begin(config, directory, store, parts, device)
        finished = _loop(config, trainer, directory, resume, interrupts)
    finally:
        torch.use_deterministic_algorithms(before)
    if finished and not group.rank:
        _finish(config, trainer, directory, device)
    return finished


def _loop(config: Config, trainer: Trainer, directory: Path, resume: bool, interrupts: Interrupts) -> bool:
    if trainer.group.rank:
        return trainer.run(None, None, interrupts)
    plain = config.plain()
    logs = Logs(directory, tuple(config.output.loggers), plain, trainer.global_step if resume else None)
    progress = TrainingProgress(sys.stderr, config.training.epochs, trainer.epoch + 1)
    try:
        with progress.taking_messages():
            finished = trainer.run(logs, progress, interrupts)
    finally:
        progress.finish()
        logs.close()
    if not finished:
        print(f"torchmdx: stopped in epoch {trainer.epoch + 1}; continue with --resume", file=sys.stderr)
    return finished


def _finish(config: Config, trainer: Trainer, directory: Path, device: torch.device) -> None:
    best, epoch = trainer.best_errors, trainer.best_epoch
    tuned = bool(trainer.before)
    from_epoch = f"from epoch {epoch}" if epoch else "the checkpoint itself"
    print(f"{directory / BEST}  best, {from_epoch}" if epoch or tuned else f"{directory / LAST}")
    shown = {term: value for term in UNITS if (value := trainer.remembered.get(f"validation_{term}")) is not None}
    if tuned:
        print("\n".join(lines(config, trainer.before, best, epoch)))
    elif shown:
        errors = ", ".join(f"{term} {number(value)} {UNITS[term]}" for term, value in shown.items())
        print(f"validation errors of the last epoch: {errors}")
    if config.output.report:
        from torchmdx.report.sources import source_names
        from torchmdx.report.write import write_report
        from torchmdx.training.gains_section import fine_tuning

        potential = load_one(directory / BEST, device=device)
        parts = {SHOWN.get(name, name): part for name, part in trainer.parts.items() if name != REPLAY and len(part)}
        sets = {name: (trainer.store, part) for name, part in parts.items()}
        page = write_report(
            directory / "report",
            potential,
            sets,
            history=directory if "csv" in config.output.loggers else None,
            config=config.plain(),
            device=device,
            dtype=trainer.potential.dtype,
            kcal=config.output.kcal,
            more=[fine_tuning(config, trainer.before, best, epoch)] if tuned else [],
            title=f"{directory.name}/{BEST} on {source_names(trainer.store)}",
        )
        print(page)


def _data(config: Config, directory: Path, resume: bool, update: bool = False) -> tuple[Store, Split]:
    """The configured data. A resumed run keeps its recorded split, unless data.split names one, which must be equal.

    update: whether files that have changed are converted again; a run that has begun goes on with the frames it has.
    """
    place, several = Path(config.output.directory), config.training.nodes > 1
    if resume and config.data.split is None and (directory / SPLIT).exists():
        store = open_store(config.data, place, several, update)
        return store, read_split(directory / SPLIT, store)
    return open_data(config.data, place, several, update)


def _begin(config: Config, directory: Path, store: Store, parts: Split, device: torch.device) -> None:
    """Writes the files of a new run, and says where its reference energies come from."""
    for text in (describe_references(config, store), *remarks_on_copies(store, parts)):
        if text is not None:
            print(text, file=sys.stderr)
    directory.mkdir(parents=True, exist_ok=True)
    for name in (STATE, BEST, LAST):
        (directory / name).unlink(missing_ok=True)
    write_whole(directory / CONFIG, write_text(config).encode())
    write_split(directory / SPLIT, parts, store)
    write_whole(directory / ENVIRONMENT, (json.dumps(environment(device), indent=1) + "\n").encode())


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, hardware and command, which results may depend on."""
    import numpy

    return {
        "torchmdx": torchmdx.__version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "command": sys.argv,
    }


def _require_directory(config: Config, resume: bool) -> None:
    """Raises FileExistsError, FileNotFoundError, or ValueError if the run in the directory has other settings."""
    directory = Path(config.output.directory)
    members = [path for path in sorted(directory.glob(f"{MEMBER}*")) if path.name.removeprefix(MEMBER).isdigit()]
    found = [place for place in (directory, *members) if (place / STATE).exists()]
    if found and not resume:
        raise FileExistsError(
            f"{str(found[0])!r} already holds a training run: continue it with --resume, "
            "or choose another output.directory"
        )
    if resume and not found:
        raise FileNotFoundError(f"nothing to resume: no {STATE} in {str(directory)!r}")
    for place in found:
        number = place.name.removeprefix(MEMBER) if place != directory else "0"
        require_same(_member(config, int(number)).plain(), read_state(place / STATE)[1]["config"])


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
        potential = load_one(checkpoint).requires_grad_(True)
    freeze(potential, config.finetune.freeze)
    require_terms(config.loss, potential)
