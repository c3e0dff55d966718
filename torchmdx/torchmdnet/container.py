"""The containers of torchmd-net: a checkpoint is a dictionary saved by torch, an ensemble a zip of checkpoints."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from torchmdx.runtime.damaged_file import WRONG_VALUES, naming
from torchmdx.torchmdnet import archive

ENDING = ".ckpt"
MOST_VALUES, DEEPEST = 100_000, 16


@dataclass(frozen=True, eq=False)
class Content:
    """hyper_parameters and state_dict of one checkpoint. origin: its name in messages."""

    origin: str
    sha256: str
    options: dict[str, Any]
    weights: dict[str, Tensor]


def read_file(path: Path) -> Content:
    """The content of a checkpoint. Raises ValueError for a file that is damaged or not a checkpoint."""
    return read_bytes(path.read_bytes(), str(path))


def read_bytes(data: bytes, origin: str) -> Content:
    """As `read_file`, from bytes in memory."""
    try:
        checkpoint = archive.load(data)
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
    return Content(origin, hashlib.sha256(data).hexdigest(), checkpoint["hyper_parameters"], weights)


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


def is_ensemble(path: Path) -> bool:
    """Whether a file is a zip of checkpoints. A single checkpoint is a zip too, but contains a data.pkl."""
    try:
        if not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as zipped:
            return not any(name.endswith("data.pkl") for name in zipped.namelist())
    except (ValueError, *WRONG_VALUES):  # a damaged zip: reading it raises the error
        return False


def members(path: Path) -> list[tuple[str, bytes]]:
    """(name, content) of the checkpoints in a zip, sorted by name. Nothing is written to disk.

    Raises ValueError for a zip that is damaged, or contains no checkpoint.
    """
    try:
        with naming(path), zipfile.ZipFile(path) as zipped:
            files = [info for info in zipped.infolist() if not info.is_dir()]
            chosen = sorted(info.filename for info in files if _is_checkpoint(info.filename))
            if not chosen:
                held = ", ".join(sorted(info.filename for info in files)) or "nothing"
                raise ValueError(f"{str(path)!r} must hold checkpoints ({ENDING}, .safetensors), got {held}")
            archive.require_unpacked_size(zipped, path.stat().st_size)
            return [(f"{path}/{name}", zipped.read(name)) for name in chosen]
    except OSError as error:
        raise ValueError(f"{str(path)!r} is not a readable zip ({error})") from error


def _is_checkpoint(name: str) -> bool:
    # macOS adds a hidden file for each one.
    return name.endswith((ENDING, ".safetensors")) and not Path(name).name.startswith("._")
