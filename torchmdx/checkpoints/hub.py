"""Released potentials by name: fetched from the Hugging Face hub, and held to a hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmdx.runtime.compile_cache import usable_directory
from torchmdx.runtime.files import write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Release:
    """Where a released checkpoint is. sha256: of the file, where torchmdx knows it beforehand."""

    repository: str
    filename: str
    revision: str = "main"
    sha256: str | None = None

    @property
    def page(self) -> str:
        """Where a person can download it."""
        return f"https://huggingface.co/{self.repository}"


# No hash of theirs could be verified when this was written, so none is built in: see `fetch`.
RELEASES = {
    "aceff-1.0": Release("Acellera/AceFF-1.0", "aceff_v1.0.ckpt"),
    "aceff-1.1": Release("Acellera/AceFF-1.1", "aceff_v1.1.ckpt"),
    "aceff-2.0": Release("Acellera/AceFF-2.0", "aceff_v2.0.ckpt"),
}


def fetch(name: str, sha256: str | None = None) -> Path:
    """The file of a release, from the hub or its cache, with the hash it must have.

    That is the one given, else the one built in, else the one recorded when this machine first fetched the release,
    else the one that the hub's metadata state for the file; the last is then recorded. So the file can never change
    unnoticed, but without a hash of your own the first fetch trusts the hub. Raises ValueError for an unknown name and
    for a hash that does not match, ImportError without huggingface_hub, and OSError where the file cannot be had.
    """
    if name not in RELEASES:
        raise ValueError(f"name must be one of {', '.join(RELEASES)}, got {name!r}")
    release = RELEASES[name]
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"fetching {name!r} needs huggingface_hub: pip install 'torchmdx[hub]'; or download {release.filename} "
            f"from {release.page} and give its path"
        ) from error
    pins = usable_directory() / "releases.json"
    known = sha256 or release.sha256 or _read_pins(pins).get(name)
    path = _download(name, release, huggingface_hub, cached_will_do=known is not None)
    if known is None:
        known = _stated_by_hub(name, release, huggingface_hub)
        require_digest(path, known)
        _write_pin(pins, name, known)
        log.info("%s has the SHA-256 that the hub states, recorded in %s: %s", name, pins, known)
    else:
        require_digest(path, known)
    return path


def require_digest(path: Path, sha256: str) -> None:
    """Raises ValueError unless a file has this SHA-256."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256.lower():
        raise ValueError(f"the SHA-256 of {str(path)!r} must be {sha256.lower()}, got {found}")


def _download(name: str, release: Release, hub: Any, cached_will_do: bool) -> Path:
    """The file in the hub's cache, fetched if it must be. Where its hash is known, what the cache has will do."""
    wanted = dict(repo_id=release.repository, filename=release.filename, revision=release.revision)
    if cached_will_do:
        with contextlib.suppress(Exception):  # not cached: fetched below
            return Path(hub.hf_hub_download(**wanted, local_files_only=True))
    try:
        return Path(hub.hf_hub_download(**wanted))
    except Exception as error:  # its errors are its own, and change between versions
        raise OSError(
            f"{name!r} could not be fetched ({type(error).__name__}: {_first_line(error)}): try again with a network, "
            f"or download {release.filename} from {release.page} and give its path"
        ) from error


def _stated_by_hub(name: str, release: Release, hub: Any) -> str:
    try:
        (info,) = hub.HfApi().get_paths_info(release.repository, [release.filename], revision=release.revision)
        return str(info.lfs.sha256)
    except Exception as error:  # no network, no such file, or one that is too small to have a hash there
        raise ValueError(
            f"the hash of {name!r} is not known here, and the hub's metadata could not be read "
            f"({type(error).__name__}: {_first_line(error)}): give its SHA-256, which {release.page} shows for "
            f"{release.filename}"
        ) from error


def _read_pins(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} must hold recorded hashes as JSON ({error}); delete it to record them anew"
        ) from error


def _write_pin(path: Path, name: str, sha256: str) -> None:
    pins = {**_read_pins(path), name: sha256}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(pins, indent=1).encode())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
