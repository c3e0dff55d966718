"""Released potentials by name: download from the Hugging Face hub, and check of their hash."""

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
    """The location of a released checkpoint. sha256: of the file, if torchmdx has it built in."""

    repository: str
    filename: str
    revision: str = "main"
    sha256: str | None = None

    @property
    def page(self) -> str:
        """The page from which the file can be downloaded by hand."""
        return f"https://huggingface.co/{self.repository}"


# No hash is built in, because none has been verified: see `fetch`.
RELEASES = {
    "aceff-1.0": Release("Acellera/AceFF-1.0", "aceff_v1.0.ckpt"),
    "aceff-1.1": Release("Acellera/AceFF-1.1", "aceff_v1.1.ckpt"),
    "aceff-2.0": Release("Acellera/AceFF-2.0", "aceff_v2.0.ckpt"),
}


def fetch(name: str, sha256: str | None = None) -> Path:
    """The file of a release, from the hub or its cache, after checking its hash.

    The expected hash is `sha256`, else the one built in, else the one recorded when this machine first downloaded the
    release, else the one in the hub's metadata, which is then recorded. The file can therefore not change unnoticed,
    but without `sha256` the first download trusts the hub. Raises ValueError for an unknown name or another hash,
    ImportError without huggingface_hub, and OSError if the file cannot be downloaded.
    """
    if name not in RELEASES:
        raise ValueError(f"name must be one of {', '.join(RELEASES)}, got {name!r}")
    release = RELEASES[name]
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"downloading {name!r} needs huggingface_hub: pip install 'torchmdx[hub]'; or download {release.filename} "
            f"from {release.page} and give its path"
        ) from error
    pins = usable_directory() / "releases.json"
    known = sha256 or release.sha256 or _read_pins(pins).get(name)
    path = _download(name, release, huggingface_hub, allow_cached=known is not None)
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


def _download(name: str, release: Release, hub: Any, allow_cached: bool) -> Path:
    """The file in the hub's cache, downloaded if necessary. allow_cached: use a cached file without asking the hub."""
    source = dict(repo_id=release.repository, filename=release.filename, revision=release.revision)
    if allow_cached:
        with contextlib.suppress(Exception):  # not cached: downloaded below
            return Path(hub.hf_hub_download(**source, local_files_only=True))
    try:
        return Path(hub.hf_hub_download(**source))
    except Exception as error:  # the exceptions of huggingface_hub change between versions
        raise OSError(
            f"{name!r} could not be downloaded ({type(error).__name__}: {_first_line(error)}): check the network, or "
            f"download {release.filename} from {release.page} and give its path"
        ) from error


def _stated_by_hub(name: str, release: Release, hub: Any) -> str:
    try:
        (info,) = hub.HfApi().get_paths_info(release.repository, [release.filename], revision=release.revision)
        return str(info.lfs.sha256)
    except Exception as error:  # no network, no such file, or a file too small to have a hash in the metadata
        raise ValueError(
            f"no hash of {name!r} is recorded, and the hub's metadata could not be read "
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
            f"{str(path)!r} must hold recorded hashes as JSON ({error}); delete it to record new ones"
        ) from error


def _write_pin(path: Path, name: str, sha256: str) -> None:
    pins = {**_read_pins(path), name: sha256}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(pins, indent=1).encode())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
