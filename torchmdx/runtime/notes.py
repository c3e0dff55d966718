"""Small notes of what was found on this machine, in the cache: they save time, and nothing depends on them."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from typing import Any

from torchmdx.runtime.compile_cache import CacheError, readable_directory, usable_directory
from torchmdx.runtime.files import write_whole

MOST = 1000  # notes of a kind that are kept


def name_of(*facts: object) -> str:
    """The name of a note, made from facts and from the versions of torchmdx and torch."""
    versions = [_version(package) for package in ("torchmdx", "torch")]
    return hashlib.sha256(repr((facts, versions)).encode()).hexdigest()[:16]


def noted(kind: str, name: str) -> Any:
    """What was noted by this name; None if nothing was."""
    return _read(kind).get(name)


def note(kind: str, name: str, value: Any) -> None:
    """Notes a value that JSON has. Does nothing where the cache cannot be written."""
    try:
        others = [(known, kept) for known, kept in _read(kind).items() if known != name]
        content = dict([*others, (name, value)][-MOST:])
        write_whole(usable_directory() / f"{kind}.json", json.dumps(content).encode())
    except (CacheError, OSError):
        return


def _read(kind: str) -> dict[str, Any]:
    """All notes of a kind; none where the file is missing or damaged."""
    try:
        found = json.loads((readable_directory() / f"{kind}.json").read_text())
    except (CacheError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
