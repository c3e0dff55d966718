"""Mirror folders: copies of released potentials for machines without network.

$TORCHMDX_MIRROR names one or several folders, separated like those of $PATH. A potential's files are in MIRROR/NAME or
MIRROR/OWNER/REPOSITORY; a single file may also be in MIRROR itself. Hashes are in SHA256SUMS, as `sha256sum` writes it,
in the folder of the files or in MIRROR.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TORCHMDX_MIRROR"
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Copy:
    """The files of a potential in a folder of a mirror."""

    mirror: Path
    folder: Path

    def stated_hash(self, filename: str) -> str | None:
        """The SHA-256 of a file in SHA256SUMS; None if it is not listed. Raises ValueError for an unreadable list."""
        for place in dict.fromkeys((self.folder, self.mirror)):
            sums = place / SUMS
            if not sums.is_file():
                continue
            wanted = (self.folder / filename).relative_to(place)
            for number, line in enumerate(sums.read_text().splitlines(), start=1):
                digest, _, path = line.partition(" ")
                if line.strip() and not path.strip():
                    raise ValueError(f"line {number} of {str(sums)!r} must be a hash and a file, got {line[:80]!r}")
                if path and Path(path.lstrip(" *")) == wanted:
                    return digest
        return None


def mirrors() -> list[Path]:
    """The folders that $TORCHMDX_MIRROR names. Raises FileNotFoundError for one that is not there."""
    found = [Path(part) for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]
    for folder in found:
        if not folder.is_dir():
            raise FileNotFoundError(f"${VARIABLE} must name folders, got {str(folder)!r}, which is none")
    return found


def copy_of(names: Sequence[str], filenames: Sequence[str]) -> Copy | None:
    """The first folder of a mirror, named by one of `names`, that has all files; None if there is none."""
    for mirror in mirrors():
        places = [mirror / name for name in names] + [mirror] * (len(filenames) == 1)
        for place in places:
            if all((place / filename).is_file() for filename in filenames):
                return Copy(mirror, place)
    return None
