"""The state of a training run for an exact resume: one safetensors file of tensors and JSON, replaced atomically."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from torchmdx.runtime.damaged_file import WRONG_VALUES, naming, parse_json
from torchmdx.runtime.files import write_whole
from torchmdx.training.loss_section import TERMS

FORMAT, FORMAT_VERSION = "torchmdx-training", 1
# Settings that may change when a run is resumed: where it runs, for how long, and what it writes.
FREE_SECTIONS = ("output.",)
FREE = (
    "data.path",  # the frames are compared instead, so data may be moved
    "data.checks",
    "data.split",  # likewise
    "training.epochs",
    "training.stop_after",
    "training.device",
    "training.devices",
    "training.nodes",
    "training.rendezvous",
    "training.prefetch",
)

# Settings that may change in a run if that is declared. All others decide what a checkpoint is.
CHANGEABLE = ("optimizer.", "schedule.", "loss.")
CHANGEABLE_ALONE = ("training.validate_every", "training.validation_batch_size", "training.deterministic")

# Mappings that are one setting, and those in which the order does not matter: that of heads is that of their weights.
UNORDERED = ("references", "head_weights", "config_type_weights")
WHOLE = (*UNORDERED, "heads")

# Settings that version 0.1 did not have, and how it trained.
ADDED = {"model.messages": "source", "training.resample": False, "finetune.lora": None}
ADDED |= {"data.heads": {}, "loss.head_weights": {}, "finetune.head": None, "finetune.replay_head": None}


def write_state(path: Path, tensors: dict[str, Tensor], info: dict[str, Any]) -> None:
    """Writes tensors by name, and `info`, which must be JSON-serializable."""
    metadata = {"format": FORMAT, "format_version": str(FORMAT_VERSION), "info": json.dumps(info)}
    # Copies, because the format does not allow tensors that share memory.
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    write_whole(path, serialize(own, metadata))


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and info of a file. Raises FileNotFoundError, or ValueError with the file and the reason."""
    if not path.is_file():
        raise FileNotFoundError(f"nothing to resume: no {path.name} in {str(path.parent)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{str(path)!r} is not readable (safetensors says: {error})") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} must be the state of a training run, got format {metadata.get('format')!r}")
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise ValueError(
            f"this torchmdx resumes version {FORMAT_VERSION}, {str(path)!r} has {metadata.get('format_version')!r}"
        )
    with naming(path):
        info = parse_json(metadata["info"])
        _require_info(info)
    return tensors, info


def _require_info(info: Any) -> None:
    """Raises ValueError with the first entry of a state that is missing or has the wrong type."""
    if not isinstance(info, dict):
        raise ValueError(f"the state of a training run must be a JSON object, got {info!r:.80}")
    schedule = info.get("schedule")
    schedule = schedule if isinstance(schedule, dict) else {}
    means = info.get("means")
    is_valid = {
        "config": isinstance(info.get("config"), dict),
        **{name: isinstance(info.get(name), str) for name in ("digest", "train")},
        **{
            name: _is_count(info.get(name))
            for name in ("epoch", "done", "global_step", "best_epoch", "waited", "ranks")
        },
        "best": info.get("best", "") is None or _is_number(info["best"]),
        "schedule": _is_number(schedule.get("factor"))
        and _is_count(schedule.get("waited"))
        and (schedule.get("best", "") is None or _is_number(schedule["best"])),
        "means": isinstance(means, dict)
        and set(means) <= set(TERMS)
        and all(
            isinstance(sums, list) and len(sums) in (3, 4) and all(map(_is_number, sums)) for sums in means.values()
        ),
        "remembered": _are_numbers(info.get("remembered")),
        **{name: _are_numbers(info.get(name, {})) for name in ("before", "best_errors")},
        "changes": _are_changes(info.get("changes", [])),
        "capacities": isinstance(info.get("capacities"), list)
        and len(info["capacities"]) == info.get("ranks")
        and all(isinstance(one, dict) and all(map(_is_count, one.values())) for one in info["capacities"]),
    }
    for name, good in is_valid.items():
        if not good:
            raise ValueError(f"{name} of the state is damaged, got {info.get(name)!r:.80}")


def _are_changes(value: Any) -> bool:
    """Whether this is a list of changed settings, [then, now] by key."""
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("settings"), dict)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in one["settings"].values())
        for one in value
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**62


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(map(_is_number, values.values()))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2.0**1000


def require_same(config: dict[str, Any], saved: dict[str, Any], declared: Collection[str] = ()) -> None:
    """Raises ValueError that lists all settings that differ from those of the run and must not change on a resume.

    Both are nested dictionaries of JSON types. A setting that only one of them has counts as different,
    but for `ADDED`. declared: settings that may differ.
    """
    now = dict(flatten(config))
    then = {key: value for key, value in ADDED.items() if key in now} | dict(flatten(saved))
    differences = [
        f"{key} was {_shown(then, key)}, got {_shown(now, key)}"
        for key in dict.fromkeys((*now, *then))
        if key not in (*FREE, *declared) and not key.startswith(FREE_SECTIONS) and _shown(now, key) != _shown(then, key)
    ]
    if differences:
        raise ValueError(
            f"a run must be resumed with the same settings: {'; '.join(differences)} (--set KEY=VALUE changes those of "
            "optimizer, schedule and loss)"
        )


def _shown(settings: dict[str, Any], key: str) -> str:
    return repr(settings[key]) if key in settings else "not set"


def flatten(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """(dotted key, value) of nested dictionaries."""
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict) and value and name not in WHOLE:
            found += flatten(value, f"{prefix}{name}.")
        else:
            ordered = name not in UNORDERED or not isinstance(value, dict)
            found.append((prefix + name, value if ordered else dict(sorted(value.items()))))
    return found


def changes_of(config: dict[str, Any], saved: dict[str, Any]) -> dict[str, list[Any]]:
    """What differs in the settings that may be changed: [then, now] by key."""
    now = dict(flatten(config))
    then = {key: value for key, value in ADDED.items() if key in now} | dict(flatten(saved))
    return {
        key: [then[key], now[key]]
        for key in now
        if (key.startswith(CHANGEABLE) or key in CHANGEABLE_ALONE) and key in then and then[key] != now[key]
    }
