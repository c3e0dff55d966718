"""Locating a potential: a file or folder at a path, shipped with torchmdx, or on the Hugging Face hub."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

from torchmdx.checkpoints import hub
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.table import endings, ensemble_format_of, format_of, weights_part
from torchmdx.checkpoints.potentials import DEFAULT_POTENTIAL, shipped


def locate(path: str | Path | None = None, sha256: str | None = None, *, download: bool = True) -> Path:
    """The file at a path, else the file of the potential with this name, shipped with torchmdx or on the hub.

    Of a potential of matgl the folder, in place of a file; sha256 is that of its weights then. On the hub: one of
    `known_names`, or owner/name of a repository with a potential of matgl; without `download` only what is in the hub's
    cache on this machine. None is the default potential. Raises FileNotFoundError if there is neither, and ValueError
    for another hash.
    """
    found = _resolved(path, sha256, download)
    if sha256 is not None:
        hub.require_digest(weights_file(found), sha256)
    return found


def opened(
    path: str | Path | Source | None = None,
    sha256: str | None = None,
    *,
    total_energy: bool = False,
    download: bool = True,
) -> Source:
    """What `locate` finds, to be read once; an open one as it is. Raises as `locate`."""
    if isinstance(path, Source):
        source = path.with_total_energy() if total_energy else path
    else:
        source = Source(str(_resolved(path, sha256, download)), total_energy=total_energy)
    if sha256 is not None:
        hub.require_same_digest(weights_file(source.path), digest_of(source), sha256)
    return source


def digest_of(source: Source) -> str:
    """SHA-256 of a file, of a folder that of its weights."""
    return hashlib.sha256(source.part(weights_part(source))).hexdigest() if source.is_folder else source.sha256


def _resolved(path: str | Path | None, sha256: str | None, download: bool) -> Path:
    """As `locate`, but of what is on this machine the hash is not checked."""
    name = DEFAULT_POTENTIAL if path is None else str(path)
    ours = shipped()
    if path is not None and (Path(path).is_file() or _is_potential_folder(path)):
        return Path(path)
    if name in ours:
        return ours[name]
    hub.require_supported(name)
    if name in hub.RELEASES:
        return hub.fetch(name, sha256, download=download)
    if _is_repository(name):
        return _from_repository(name, sha256, download)
    if name == DEFAULT_POTENTIAL:
        raise FileNotFoundError(f"the file of the potential {name!r}, part of torchmdx, is missing: reinstall torchmdx")
    raise FileNotFoundError(f"no checkpoint at {name!r}{_names_like(name)}")


def is_run_folder(path: str | Path) -> bool:
    """Whether a path is a folder that is not one potential: that of a training with several seeds."""
    return Path(path).is_dir() and not _is_potential_folder(path)


def holds_several(source: str | Path | Source) -> bool:
    """Whether a source holds an ensemble: a file of several potentials, or the folder of a training."""
    if isinstance(source, (str, Path)) and is_run_folder(source):
        return True
    return ensemble_format_of(opened(source)) is not None


def _is_potential_folder(path: str | Path) -> bool:
    """Whether a format recognizes a folder, as matgl's."""
    return Path(path).is_dir() and format_of(Source(str(path))) is not None


def weights_file(located: Path) -> Path:
    """The file with the weights of what `locate` returns, a file or a folder."""
    return located / weights_part(Source(str(located))) if located.is_dir() else located


def _is_repository(name: str) -> bool:
    """Whether a name can only be one on the hub: not a file's, and not in a folder that exists."""
    owner = Path(name).parent
    return hub.release_of(name) is not None and Path(name).suffix not in endings() and not owner.exists()


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
    if Path(name).suffix in endings() or Path(name).name != name:
        return ""
    near = difflib.get_close_matches(name, known_names(), 1, 0.5)
    return (
        f", nor is that a name: torchmdx comes with {', '.join(shipped()) or 'none'} and fetches "
        f"{', '.join(hub.RELEASES)}" + (f"; did you mean {near[0]!r}?" if near else "")
    )
