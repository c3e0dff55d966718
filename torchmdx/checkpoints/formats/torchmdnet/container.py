"""The container of a torchmd-net checkpoint: a dictionary saved by torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.torchmdnet import archive
from torchmdx.runtime.damaged_file import WRONG_VALUES

MOST_VALUES, DEEPEST = 100_000, 16


@dataclass(frozen=True, eq=False)
class Content:
    """hyper_parameters and state_dict of one checkpoint. origin: its name in messages."""

    origin: str
    sha256: str
    options: dict[str, Any]
    weights: dict[str, Tensor]


def content_of(source: Source) -> Content:
    """The content of a checkpoint. Raises ValueError for a file that is damaged or not a checkpoint."""
    origin = source.origin
    try:
        checkpoint = archive.load(source.data)
    except archive.Forbidden as error:
        raise ValueError(
            f"{origin!r} holds more than tensors, numbers and text ({error}), and was not "
            "loaded: torchmdx never runs code from a checkpoint"
        ) from error
    except (ValueError, OSError, *WRONG_VALUES) as error:
        raise ValueError(f"{origin!r} is not a readable checkpoint ({error})") from error
    keys = ("hyper_parameters", "state_dict")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(key), dict) for key in keys):
        raise ValueError(f"{origin!r} is not a torchmd-net checkpoint: it needs {' and '.join(keys)}")
    require_plain(checkpoint["hyper_parameters"], origin)
    weights = checkpoint["state_dict"]
    wrong = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(f"{origin!r} is not a torchmd-net checkpoint: {wrong[0]} in its state_dict is not a tensor")
    if not all(isinstance(name, str) for name in weights):
        raise ValueError(f"{origin!r} is not a torchmd-net checkpoint: names in its state_dict must be text")
    return Content(origin, source.sha256, checkpoint["hyper_parameters"], weights)


def require_plain(options: dict[Any, Any], origin: str) -> None:
    """Raises ValueError for too many settings or levels: values in a pickle may contain themselves."""
    left, level = MOST_VALUES, [options]
    for _ in range(DEEPEST):
        inner: list[Any] = []
        for value in level:
            held = list(value.values()) if isinstance(value, dict) else list(value)
            left -= len(held)
            if left < 0:
                break
            inner += [one for one in held if isinstance(one, (dict, list, tuple))]
        if left < 0 or not inner:
            break
        level = inner
    if left < 0 or inner:
        raise ValueError(f"the settings of {origin!r} must be at most {MOST_VALUES} values, {DEEPEST} levels deep")
    if not all(isinstance(name, str) for name in options):
        raise ValueError(f"names of the settings of {origin!r} must be text")
