"""Directories of runs, and how a run is resumed: with the same settings, or with changes that are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchmdx.checkpoints.run_folder import MEMBER, files_in, is_ensemble_folder
from torchmdx.training.config import Config
from torchmdx.training.config_file import make_config
from torchmdx.training.loop import STATE
from torchmdx.training.state import CHANGEABLE, CHANGEABLE_ALONE, flatten, read_state, require_same
from torchmdx.training.stress_weight import with_saved_weight


def places(config: Config) -> list[tuple[Config, Path]]:
    """The configuration and the directory of each potential."""
    directory, size = Path(config.output.directory), config.training.ensemble
    if size == 1:
        return [(config, directory)]
    return [(member_config(config, member), directory / f"{MEMBER}{member}") for member in range(size)]


def member_config(config: Config, number: int) -> Config:
    """The configuration of a member of the ensemble, which fine-tunes the same member of an ensemble's folder.

    Raises:
        ValueError: For an ensemble to fine-tune with another number of members.
    """
    seed, finetune = config.training.seed + number, config.finetune
    if finetune.checkpoint is not None and is_ensemble_folder(Path(finetune.checkpoint)):
        files = files_in(Path(finetune.checkpoint))
        if len(files) != config.training.ensemble:
            raise ValueError(
                f"training.ensemble must be the number of members of finetune.checkpoint {finetune.checkpoint!r}, "
                f"{len(files)}, got {config.training.ensemble}"
            )
        finetune = finetune.model_copy(update={"checkpoint": str(files[number])})
    training = config.training.model_copy(update={"seed": seed})
    return config.model_copy(update={"training": training, "finetune": finetune})


def begun(directory: Path) -> list[tuple[Path, int]]:
    """The directories of runs, and the number of the member of each."""
    members = [path for path in sorted(directory.glob(f"{MEMBER}*")) if path.name.removeprefix(MEMBER).isdigit()]
    numbers = [(directory, 0), *((path, int(path.name.removeprefix(MEMBER))) for path in members)]
    return [(place, number) for place, number in numbers if (place / STATE).exists()]


def require_directory(config: Config, resume: bool) -> None:
    """Raises FileExistsError if there is a run and FileNotFoundError if there is none to resume."""
    directory = Path(config.output.directory)
    found = begun(directory)
    if found and not resume:
        raise FileExistsError(
            f"{str(found[0][0])!r} already holds a training run: continue it with --resume, "
            "or choose another output.directory"
        )
    if resume and not found:
        raise FileNotFoundError(f"nothing to resume: no {STATE} in {str(directory)!r}")


def resumed(config: Config, resume: bool, changes: Sequence[str]) -> Config:
    """The configuration with which the run in the directory continues.

    That is the given one, with the changes that were declared when the run was resumed before, and with `changes`,
    written as optimizer.learning_rate=1e-4.

    Raises:
        ValueError: For other differences from the settings of the run.
    """
    if changes and not resume:
        raise ValueError(f"--set changes a run that is resumed: give --resume, or --{changes[0]}")
    new = [_declared(change) for change in changes]
    saved = [(number, read_state(place / STATE)[1]) for place, number in begun(Path(config.output.directory))]
    config = with_saved_weight(config, saved[0][1]["config"])
    config = _changed(config, _earlier(config, saved[0][1].get("changes", [])))
    config = _changed(config, [word for key, text in new for word in (f"--{key}", text)])
    for number, info in saved:
        require_same(member_config(config, number).plain(), info["config"], {key for key, _ in new})
    return config


def _declared(change: str) -> tuple[str, str]:
    key, equals, text = change.partition("=")
    if not equals or not text:
        raise ValueError(f"--set needs KEY=VALUE, as optimizer.learning_rate=1e-4, got {change!r}")
    if not key.startswith(CHANGEABLE) and key not in CHANGEABLE_ALONE:
        allowed = ", ".join((*(f"{name}*" for name in CHANGEABLE), *CHANGEABLE_ALONE))
        raise ValueError(f"--set may change {allowed} of a run, got {key!r}")
    return key, text


def _earlier(config: Config, changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that were changed before, unless the configuration has another value than the first one."""
    first: dict[str, Any] = {}
    last: dict[str, Any] = {}
    for change in changes:
        for key, (then, now) in change["settings"].items():
            first.setdefault(key, then)
            last[key] = now
    given = dict(flatten(config.plain()))
    return [word for key, now in last.items() if given.get(key) == first[key] for word in (f"--{key}", _text(now))]


def _text(value: Any) -> str:
    return "null" if value is None else str(value)


def _changed(config: Config, words: Sequence[str]) -> Config:
    return make_config(config.plain(), words) if words else config
