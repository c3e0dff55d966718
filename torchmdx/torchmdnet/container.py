"""The container of a torchmd-net checkpoint: a dictionary, saved by torch; or a zip of several of them."""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ENDING = ".ckpt"


@dataclass(frozen=True, eq=False)
class Content:
    """hyper_parameters and state_dict of one checkpoint. `origin` is what messages call it."""

    origin: str
    sha256: str
    options: dict[str, Any]
    weights: dict[str, Tensor]


def read_file(path: Path) -> Content:
    """What a checkpoint holds. Raises ValueError for a file that is broken, or is something else."""
    return read_bytes(path.read_bytes(), str(path))


def read_bytes(data: bytes, origin: str) -> Content:
    """As `read_file`, from bytes in memory."""
    try:
        checkpoint = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        kind = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise ValueError(
            f"{origin!r} holds more than tensors, numbers and text{f' ({kind[1]})' if kind else ''}, and was not "
            "loaded: torchmdx never runs code from a checkpoint"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{origin!r} is not a readable checkpoint ({error})") from error
    parts = ("hyper_parameters", "state_dict")
    if not isinstance(checkpoint, dict) or not all(isinstance(checkpoint.get(part), dict) for part in parts):
        raise ValueError(f"{origin!r} is no torchmd-net checkpoint: it needs {' and '.join(parts)}")
    weights = checkpoint["state_dict"]
    wrong = [name for name, value in weights.items() if not isinstance(value, Tensor)]
    if wrong:
        raise ValueError(f"{origin!r} is no torchmd-net checkpoint: {wrong[0]} in its state_dict is no tensor")
    return Content(origin, hashlib.sha256(data).hexdigest(), checkpoint["hyper_parameters"], weights)


def is_ensemble(path: Path) -> bool:
    """Whether a file is a zip of checkpoints. A checkpoint is a zip too, but has none inside."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return not any(name.endswith("data.pkl") for name in archive.namelist())


def members(path: Path) -> list[tuple[str, bytes]]:
    """(name, content) of the checkpoints in a zip, sorted by name. Nothing is written to disk.

    Raises ValueError for a zip that is broken, or holds no checkpoint.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            chosen = sorted(info.filename for info in files if _is_checkpoint(info.filename))
            if not chosen:
                held = ", ".join(sorted(info.filename for info in files)) or "nothing"
                raise ValueError(f"{str(path)!r} must hold checkpoints ({ENDING}, .safetensors), it holds {held}")
            return [(f"{path}/{name}", archive.read(name)) for name in chosen]
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise ValueError(f"{str(path)!r} is not a readable zip ({error})") from error


def _is_checkpoint(name: str) -> bool:
    # macOS puts a second, hidden file beside each one.
    return name.endswith((ENDING, ".safetensors")) and not Path(name).name.startswith("._")
