"""Where a potential's file is: at a path, among those that torchmdx comes with, or on the Hugging Face hub."""

from __future__ import annotations

import difflib
from pathlib import Path

from torchmdx.checkpoints import hub
from torchmdx.potentials import DEFAULT_POTENTIAL, shipped

# Of files that may hold a potential, or several.
ENDINGS = (".safetensors", ".ckpt", ".pt", ".pth", ".zip")


def located(path: str | Path | None = None, sha256: str | None = None) -> Path:
    """The file at a path, else of the potential of this name: one that torchmdx comes with, or a release on the hub.

    None is the default potential. Raises FileNotFoundError for what is neither, and ValueError for another hash.
    """
    name = DEFAULT_POTENTIAL if path is None else str(path)
    ours = shipped()
    if path is not None and Path(path).is_file():
        file = Path(path)
    elif name in ours:
        file = ours[name]
    elif name in hub.RELEASES:
        return hub.fetch(name, sha256)
    elif name == DEFAULT_POTENTIAL:
        raise FileNotFoundError(f"the potential {name!r} comes with torchmdx but is not there: install torchmdx again")
    else:
        raise FileNotFoundError(f"no checkpoint at {name!r}{_names_like(name)}")
    if sha256 is not None:
        hub.require_digest(file, sha256)
    return file


def named() -> tuple[str, ...]:
    """Every name that `located` knows."""
    return (*shipped(), *hub.RELEASES)


def _names_like(name: str) -> str:
    """What might have been meant by a name that nothing has; nothing for what is clearly a path."""
    if Path(name).suffix in ENDINGS or Path(name).name != name:
        return ""
    near = difflib.get_close_matches(name, named(), 1, 0.5)
    return (
        f", nor is that a name: torchmdx comes with {', '.join(shipped()) or 'none'} and fetches "
        f"{', '.join(hub.RELEASES)}" + (f"; did you mean {near[0]!r}?" if near else "")
    )
