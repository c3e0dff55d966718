"""A file or folder that may hold potentials, whose content is read once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torchmdx.runtime.damaged_file import parse_json


@dataclass(frozen=True, eq=False)
class Source:
    """What a format recognizes and reads.

    Attributes:
        origin: The path, also for messages.
        content: That of a file inside another, which is not on disk.
        total_energy: Add reference energies that the file contains but disables.
        known_as: The name by which a release was asked for.
        head: The head that is read of a file with several; None: its default.
    """

    origin: str
    content: bytes | None = None
    total_energy: bool = False
    _parts: dict[str, bytes] = field(default_factory=dict)
    known_as: str | None = None
    head: str | None = None

    @cached_property
    def path(self) -> Path:
        return Path(self.origin)

    @property
    def name(self) -> str:
        """For outputs: that of a release, else of the file or folder."""
        return self.known_as or self.path.resolve().name

    @cached_property
    def is_folder(self) -> bool:
        return self.content is None and self.path.is_dir()

    @cached_property
    def data(self) -> bytes:
        """The content of the file; empty for a folder."""
        if self.content is not None:
            return self.content
        return b"" if self.is_folder else self.path.read_bytes()

    def with_total_energy(self) -> Source:
        """The same content."""
        return replace(self, content=None if self.is_folder else self.data, total_energy=True)

    def part(self, name: str) -> bytes:
        """The content of a file in the folder."""
        if name not in self._parts:
            self._parts[name] = (self.path / name).read_bytes()
        return self._parts[name]

    def has_part(self, name: str) -> bool:
        """Whether it is a folder with this file."""
        return self.is_folder and (self.path / name).is_file()

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def is_safetensors(self) -> bool:
        """Whether the file begins as safetensors do: eight bytes of length, then JSON."""
        return self.data[8:9] == b"{"

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The metadata of a safetensors file; empty for another file, and for one whose header is damaged."""
        if not self.is_safetensors:
            return {}
        length = int.from_bytes(self.data[:8], "little")
        try:
            header = parse_json(self.data[8 : 8 + length])
        except ValueError:
            return {}
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        return metadata if isinstance(metadata, dict) else {}
