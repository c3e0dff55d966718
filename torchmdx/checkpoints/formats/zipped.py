"""Ensembles as zips of checkpoints, of torchmd-net or torchmdx. Nothing is written to disk."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

from torchmdx.checkpoints.formats.reading import Reading
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.torchmdnet import archive
from torchmdx.runtime.damaged_file import WRONG_VALUES, naming

ENDINGS = (".zip",)
MEMBERS = (".ckpt", ".safetensors")


def recognizes(source: Source) -> bool:
    """Whether a file is a zip of checkpoints. A single checkpoint is a zip too, but contains a data.pkl."""
    try:
        if not zipfile.is_zipfile(io.BytesIO(source.data)):
            return False
        with zipfile.ZipFile(io.BytesIO(source.data)) as zipped:
            return not any(name.endswith("data.pkl") for name in zipped.namelist())
    except (ValueError, *WRONG_VALUES):  # a damaged zip: reading it raises the error
        return False


def described(source: Source) -> str:
    """For errors where a single potential is needed."""
    return f"is a zip of {len(members(source))} checkpoints, an ensemble"


def read(source: Source, read_one: Callable[[Source], Reading]) -> list[Reading]:
    """The potentials in a zip, sorted by name. Raises ValueError as `members` and `read_one`."""
    return [read_one(member) for member in members(source)]


def members(source: Source) -> list[Source]:
    """The checkpoints in a zip, sorted by name.

    Raises:
        ValueError: For a zip that is damaged, or contains no checkpoint.
    """
    try:
        with naming(source.origin), zipfile.ZipFile(io.BytesIO(source.data)) as zipped:
            files = [info for info in zipped.infolist() if not info.is_dir()]
            chosen = sorted(info.filename for info in files if _is_checkpoint(info.filename))
            if not chosen:
                held = ", ".join(sorted(info.filename for info in files)) or "nothing"
                raise ValueError(f"{source.origin!r} must hold checkpoints ({', '.join(MEMBERS)}), got {held}")
            archive.require_unpacked_size(zipped, len(source.data))
            return [
                Source(f"{source.origin}/{name}", zipped.read(name), source.total_energy, head=source.head)
                for name in chosen
            ]
    except OSError as error:
        raise ValueError(f"{source.origin!r} is not a readable zip ({error})") from error


def _is_checkpoint(name: str) -> bool:
    # macOS adds a hidden file for each one.
    return name.endswith(MEMBERS) and not Path(name).name.startswith("._")
