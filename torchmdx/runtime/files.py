"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file that appears whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Not save_file of safetensors, which makes files that only their owner can read.
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
