"""What a Trainer saves for an exact resume, and how it is restored."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchmdx.datasets.splits import Split
from torchmdx.runtime.damaged_file import naming
from torchmdx.training.epoch_means import EpochMeans
from torchmdx.training.state import changes_of, read_state, write_state

if TYPE_CHECKING:
    from torchmdx.training.loop import Trainer


def restore(trainer: Trainer, path: Path) -> None:
    """Restores the state that `write` wrote in a run with the same settings, or with declared changes.

    Raises:
        FileNotFoundError: For damaged files, different data or a different model.
        ValueError: For damaged files, different data or a different model.
    """
    with naming(path):
        tensors, info = read_state(path)
        _require_same_data(trainer, info, path)
        _restore_weights(trainer, tensors, info, path)
        _restore_progress(trainer, info)


def _require_same_data(trainer: Trainer, info: dict[str, Any], path: Path) -> None:
    if info["digest"] != trainer.store.digest or info["train"] != digest(trainer.parts):
        raise ValueError(
            f"a run must be resumed with the same data, but {str(path)!r} was trained on other "
            f"frames than those of {str(trainer.store.path)!r} with this split"
        )


def _restore_weights(trainer: Trainer, tensors: dict[str, Tensor], info: dict[str, Any], path: Path) -> None:
    own = trainer.potential.state_dict()
    weights = {name.removeprefix("potential."): t for name, t in tensors.items() if name.startswith("potential.")}
    if own.keys() != weights.keys() or any(own[name].shape != weights[name].shape for name in own):
        raise ValueError(f"{str(path)!r} must hold weights of the configured model, got those of another")
    trainer.potential.load_state_dict(weights)
    group = trainer.group
    trainer.new_step(info["capacities"][group.rank] if group.size == info["ranks"] else {})
    optimizer = {name.removeprefix("optimizer."): t for name, t in tensors.items() if name.startswith("optimizer.")}
    trainer.step.optimizer.load_state(optimizer)


def _restore_progress(trainer: Trainer, info: dict[str, Any]) -> None:
    trainer.epoch, trainer.done, trainer.global_step = info["epoch"], info["done"], info["global_step"]
    trainer.best, trainer.best_epoch, trainer.waited = info["best"] or math.inf, info["best_epoch"], info["waited"]
    if trainer.epoch > trainer.config.training.epochs:
        raise ValueError(
            f"training.epochs must be >= {trainer.epoch}, the completed epochs, got {trainer.config.training.epochs}"
        )
    trainer.stopped_early = trainer.waited >= (trainer.config.training.stop_after or math.inf)
    trainer.schedule.load_state({**info["schedule"], "best": info["schedule"]["best"] or math.inf})
    trainer.means = EpochMeans(info["means"])
    trainer.remembered = info["remembered"]
    trainer.before, trainer.best_errors = info.get("before", {}), info.get("best_errors", {})
    trainer.changes = info.get("changes", [])
    settings = changes_of(trainer.config.plain(), info["config"])
    if not settings:
        return
    trainer.changes.append({"epoch": trainer.epoch, "step": trainer.global_step, "settings": settings})
    if any(key.startswith("loss.") for key in settings):  # losses before and after cannot be compared
        trainer.best, trainer.waited, trainer.stopped_early = math.inf, 0, False


def write(trainer: Trainer, path: Path, capacities: list[dict[str, int]]) -> None:
    """Writes the state. capacities: of the neighbour lists of each process."""
    potential = {f"potential.{name}": tensor for name, tensor in trainer.potential.state_dict().items()}
    optimizer = {f"optimizer.{name}": tensor for name, tensor in trainer.step.optimizer.state().items()}
    schedule = trainer.schedule.state()
    info: dict[str, Any] = {
        "config": trainer.config.plain(),
        "digest": trainer.store.digest,
        "train": digest(trainer.parts),
        "epoch": trainer.epoch,
        "done": trainer.done,
        "global_step": trainer.global_step,
        "best": _finite(trainer.best),
        "best_epoch": trainer.best_epoch,
        "waited": trainer.waited,
        "schedule": {**schedule, "best": _finite(schedule["best"])},
        "means": trainer.means.sums,
        "remembered": trainer.remembered,
        "before": trainer.before,
        "best_errors": trainer.best_errors,
        "changes": trainer.changes,
        "capacities": capacities,
        "ranks": trainer.group.size,
    }
    write_state(path, potential | optimizer, info)


def digest(parts: Split) -> str:
    """A hash of the frames that are trained and validated."""
    return hashlib.sha256(b"".join(parts[name].tobytes() + b"|" for name in ("train", "validation"))).hexdigest()


def _finite(value: float) -> float | None:
    """None for infinity, which JSON lacks."""
    return value if math.isfinite(value) else None


def is_finished(directory: Path) -> bool | None:
    """Whether the run in a directory has come to its end; None without one."""
    path = directory / "state.safetensors"
    if not path.exists():
        return None
    info = read_state(path)[1]
    training = info["config"]["training"]
    stopped = training.get("stop_after") is not None and info["waited"] >= training["stop_after"]
    return bool(info["epoch"] >= training["epochs"] or stopped)
