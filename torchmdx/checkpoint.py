"""Potentials on disk: one safetensors file that holds the weights, the whole configuration and a format version.

Loading never runs code from a file: safetensors holds numbers and text only, and foreign checkpoints are read by
`torch.load(weights_only=True)`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize

from torchmdx.models.potential import Potential
from torchmdx.models.tensornet import TensorNetConfig
from torchmdx.torchmdnet.reader import read_torchmdnet

FORMAT = "torchmdx-potential"
FORMAT_VERSION = 1


def save(potential: Potential, path: str | Path) -> None:
    """Writes a potential to `path` (.safetensors). The file appears whole or not at all."""
    path = Path(path)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "config": json.dumps({"model": "tensornet", **asdict(potential.config)}),
    }
    tensors = {name: value.detach().cpu().contiguous() for name, value in potential.state_dict().items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Not save_file, which makes files that only their owner can read.
        partial.write_bytes(serialize(tensors, metadata))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> Potential:
    """The potential in `path`: torchmdx's own format, or a torchmd-net checkpoint (`.ckpt`).

    dtype: of the network; None keeps the file's. Raises FileNotFoundError for a missing file and ValueError, naming
    the file and what is wrong, for one that is broken or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {str(path)!r}")
    potential = read_torchmdnet(path).potential if _is_foreign(path) else _load_own(path)
    potential = potential.to(device=device, dtype=dtype)
    return potential.eval().requires_grad_(False)


def _is_foreign(path: Path) -> bool:
    """By the file's first bytes, and by its name where they say nothing."""
    with path.open("rb") as file:
        head = file.read(9)
    if head[8:] == b"{":  # safetensors: eight bytes of length, then JSON
        return False
    return head.startswith(b"PK\x03\x04") or path.suffix in (".ckpt", ".pt", ".pth")


def _load_own(path: Path) -> Potential:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"{str(path)!r} is not a readable checkpoint (safetensors says: {error})") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{str(path)!r} is a safetensors file but not a torchmdx potential: its format must be {FORMAT!r}, "
            f"got {metadata.get('format')!r}"
        )
    version = metadata.get("format_version", "")
    if version != str(FORMAT_VERSION):
        raise ValueError(
            f"this torchmdx reads format version {FORMAT_VERSION}, {str(path)!r} has version {version!r}"
            + ("; update torchmdx" if version.isdigit() and int(version) > FORMAT_VERSION else "")
        )
    potential = Potential(_config(metadata.get("config", ""), path))
    potential.fill(tensors, repr(str(path)))
    return potential


def _config(text: str, path: Path) -> TensorNetConfig:
    try:
        values: dict[str, Any] = json.loads(text)
        model = values.pop("model")
    except (json.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} holds no readable configuration, got {text[:80]!r}") from error
    if model != "tensornet":
        raise ValueError(f"model must be 'tensornet', got {model!r} in {str(path)!r}")
    unknown = values.keys() - {field.name for field in fields(TensorNetConfig)}
    if unknown:
        raise ValueError(f"{str(path)!r} has settings this torchmdx does not know: {', '.join(sorted(unknown))}")
    return TensorNetConfig(**values)
