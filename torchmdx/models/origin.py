"""Where a potential comes from: name and hash of its files, which everything computed with it records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SHOWN_DIGITS, MOST_NAMES = 12, 3


@dataclass(frozen=True)
class Origin:
    """The name of a file, folder or release, and its SHA-256: of a folder that of all files that are read.

    Of a potential in memory, the name on its card and a digest of its weights.
    """

    name: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} (SHA-256 {self.sha256[:SHOWN_DIGITS]})"

    @property
    def info(self) -> dict[str, Any]:
        """For `info` of frames."""
        return {"potential": self.name, "potential_sha256": self.sha256}

    @classmethod
    def together(cls, origins: Sequence[Origin]) -> Origin:
        """That of an ensemble: the file that all members come from, else of their names and hashes."""
        if len(set(origins)) == 1:
            return origins[0]
        names = ", ".join(one.name for one in origins)
        digest = hashlib.sha256(" ".join(one.sha256 for one in origins).encode()).hexdigest()
        return cls(names if len(origins) <= MOST_NAMES else f"an ensemble of {len(origins)} potentials", digest)
