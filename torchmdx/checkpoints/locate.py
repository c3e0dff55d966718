"""Locating a potential: a file or a folder of matgl at a path, shipped with torchmdx, or on the Hugging Face hub."""

from __future__ import annotations

import difflib
from pathlib import Path

from torchmdx.checkpoints import hub
from torchmdx.matgl.folder import FILES, is_matgl_folder
from torchmdx.potentials import DEFAULT_POTENTIAL, shipped

# Of files that may hold one or several potentials.
ENDINGS = (".safetensors", ".ckpt", ".pt", ".pth", ".zip")


def locate(path: str | Path | None = None, sha256: str | None = None, *, download: bool = True) -> Path:
    """The file at a path, else the file of the potential with this name, shipped with torchmdx or on the hub.

    Of a potential of matgl the folder, in place of a file; sha256 is that of its weights then. On the hub: one of
    `known_names`, or owner/name of a repository with a potential of matgl; without `download` only what is in the hub's
    cache on this machine. None is the default potential. Raises FileNotFoundError if there is neither, and ValueError
    for another hash.
    """
    name = DEFAULT_POTENTIAL if path is None else str(path)
    ours = shipped()
    if path is not None and Path(path).is_file():
        file = Path(path)
    elif path is not None and is_matgl_folder(path):
        if sha256 is not None:
            hub.require_digest(weights_file(Path(path)), sha256)
        return Path(path)
    elif name in ours:
        file = ours[name]
    elif name in hub.RELEASES:
        return hub.fetch(name, sha256, download=download)
    elif _is_repository(name):
        return _from_repository(name, sha256, download)
    elif name == DEFAULT_POTENTIAL:
        raise FileNotFoundError(f"the file of the potential {name!r}, part of torchmdx, is missing: reinstall torchmdx")
    else:
        raise FileNotFoundError(f"no checkpoint at {name!r}{_names_like(name)}")
    if sha256 is not None:
        hub.require_digest(file, sha256)
    return file


def is_run_folder(path: str | Path) -> bool:
    """Whether a path is a folder that is not a potential of matgl: that of a training with several seeds."""
    return Path(path).is_dir() and not is_matgl_folder(path)


def weights_file(located: Path) -> Path:
    """The file with the weights of what `locate` returns, a file or a folder."""
    return located / FILES[-1] if located.is_dir() else located


def _is_repository(name: str) -> bool:
    """Whether a name can only be one on the hub: not a file's, and not in a folder that exists."""
    owner = Path(name).parent
    return hub.release_of(name) is not None and Path(name).suffix not in ENDINGS and not owner.exists()


def _from_repository(name: str, sha256: str | None, download: bool) -> Path:
    """The potential in a repository on the hub. Raises FileNotFoundError if there is none or it cannot be reached."""
    try:
        return hub.fetch(name, sha256, download=download)
    except (ImportError, OSError) as error:
        raise FileNotFoundError(
            f"no checkpoint at {name!r}, and no potential of matgl in the repository {hub.page_of(name)}: {error}"
        ) from error


def known_names() -> tuple[str, ...]:
    """Every name that `locate` accepts."""
    return (*shipped(), *hub.RELEASES)


def _names_like(name: str) -> str:
    """A hint for an unknown name, with the closest known one; empty for a path."""
    if Path(name).suffix in ENDINGS or Path(name).name != name:
        return ""
    near = difflib.get_close_matches(name, known_names(), 1, 0.5)
    return (
        f", nor is that a name: torchmdx comes with {', '.join(shipped()) or 'none'} and fetches "
        f"{', '.join(hub.RELEASES)}" + (f"; did you mean {near[0]!r}?" if near else "")
    )
