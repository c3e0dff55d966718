"""Released potentials by name: a mirror folder or the Hugging Face hub, and check of their hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchmdx.checkpoints.formats.matgl.folder import FILES
from torchmdx.checkpoints.formats.reading import UnsupportedCheckpoint
from torchmdx.checkpoints.formats.torchmdnet.settings import RESP
from torchmdx.checkpoints.mirror_folder import SUMS, VARIABLE, Copy, copy_of
from torchmdx.runtime.compile_cache import readable_directory, usable_directory
from torchmdx.runtime.files import write_whole

log = logging.getLogger(__name__)

PINS = "releases.json"  # hashes that were recorded, in the cache folder


def page_of(repository: str) -> str:
    """The page of a repository, owner/name."""
    return f"https://huggingface.co/{repository}"


@dataclass(frozen=True)
class Release:
    """The location of a released potential. sha256: of the weights, if torchmdx has it built in.

    Attributes:
        others: Files next to the weights, in the same folder.
        description, licence: As on its page.
    """

    repository: str
    filename: str
    revision: str = "main"
    sha256: str | None = None
    others: tuple[str, ...] = ()
    description: str = ""
    licence: str = "see the page"

    @property
    def page(self) -> str:
        """The page from which the files can be downloaded by hand."""
        return page_of(self.repository)

    @property
    def files(self) -> str:
        """Names of all files, for messages."""
        return " and ".join([*self.others, self.filename])


def _matgl(repository: str, description: str = "") -> Release:
    """A potential of matgl, a folder."""
    description_file, weights = FILES
    licence = UNLICENSED.get(repository, Release.licence)
    return Release(repository, weights, others=(description_file,), description=description, licence=licence)


NONE = "none is named on the page"
UNLICENSED = dict.fromkeys(
    ("materialyze/TensorNet-PES-ANI-1x-Subset", "materialyze/TensorNet-PES-MatPES-r2SCAN-2025.2-m"), NONE
)
_MATPES = "89 elements, MatPES {}{}; materials"
_ACEFF = "{}, H B C N O F Si P S Cl Br I; molecules, charged ones too"
# No hash is built in, because none has been verified: see `fetch`.
RELEASES = {
    "aceff-1.0": Release(
        "Acellera/AceFF-1.0", "aceff_v1.0.ckpt", description=_ACEFF.format("TensorNet"), licence="Apache 2.0"
    ),
    "aceff-1.1": Release("Acellera/AceFF-1.1", "aceff_v1.1.ckpt", description=_ACEFF.format("TensorNet")),
    "aceff-2.0": Release(
        "Acellera/AceFF-2.0", "aceff_v2.0.ckpt", description=_ACEFF.format("TensorNet2"), licence="Apache 2.0"
    ),
    **{
        f"TensorNet-PES-MatPES-{functional}-2025.2{size}": _matgl(
            f"materialyze/TensorNet-PES-MatPES-{functional}-2025.2{size}",
            _MATPES.format(functional, ", 3 blocks" if size else ""),
        )
        for functional in ("PBE", "r2SCAN")
        for size in ("", "-m")
    },
    "TensorNet-PES-ANI-1x-Subset": _matgl("materialyze/TensorNet-PES-ANI-1x-Subset", "H, C, N, O; molecules"),
}


def require_supported(name: str) -> None:
    """Raises UnsupportedCheckpoint for the name of a released potential that torchmdx cannot evaluate."""
    short = name.lower().removeprefix("acellera/")
    if short.startswith("aceff-2") and "resp" in short:
        raise UnsupportedCheckpoint(
            f"{name!r} is not supported: its model {RESP} has a head of RESP charges, which torchmdx lacks; aceff-2.0 "
            "predicts energies of the same kind"
        )


def release_of(name: str) -> Release | None:
    """The release with this name; of owner/name, a repository with a potential of matgl; None for another text."""
    if name in RELEASES:
        return RELEASES[name]
    is_repository = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None
    return _matgl(name) if is_repository else None


def fetch(name: str, sha256: str | None = None, *, download: bool = True) -> Path:
    """The file of a release, or the folder of one with several files, after checking hashes.

    It is in a mirror folder (mirror_folder.py), else in the hub's cache, else on the hub.

    The expected hash of the weights is `sha256`, else the one built in; of any file the one recorded when this machine
    first downloaded the release, else the one in the hub's metadata, which is then recorded. A file can therefore not
    change unnoticed, but without `sha256` the first download trusts the hub. Raises ValueError for an unknown name or
    another hash, ImportError without huggingface_hub, and OSError if a file cannot be downloaded. Without `download`,
    which uses no network, FileNotFoundError for a file that is not in a mirror or the cache with a known hash.
    """
    release = release_of(name)
    if release is None:
        raise ValueError(f"name must be one of {', '.join(RELEASES)}, or owner/name on the hub, got {name!r}")
    require_supported(name)
    copied = copy_in_mirror(name, release)
    if copied is not None:
        return _from_mirror(name, release, copied, sha256)
    try:
        import huggingface_hub
    except ImportError as error:
        if not download:
            raise _not_here(name) from error
        raise ImportError(
            f"downloading {name!r} needs huggingface_hub: pip install 'torchmdx[hub]'; or download {release.files} "
            f"from {release.page} and give {'the folder' if release.others else 'its path'}, or put it into a mirror "
            f"folder (${VARIABLE})"
        ) from error
    recorded, new = _read_pins(readable_directory() / PINS), {}
    paths = []
    for filename in (*release.others, release.filename):
        pin = name if filename == release.filename else f"{name}/{filename}"
        known = recorded.get(pin)
        if filename == release.filename:
            known = sha256 or release.sha256 or known
        if known is None and download:
            usable_directory()  # raises before the download if the hash cannot be recorded
        path = _download(name, release, filename, huggingface_hub, allow_cached=known is not None, download=download)
        if known is None:
            new[pin] = _verified_by_hub(name, release, filename, path, huggingface_hub)
        else:
            require_digest(path, known)
        paths.append(path)
    if len({path.parent for path in paths}) > 1:
        raise OSError(f"{name!r} must have its files in one folder, got {', '.join(map(str, paths))}")
    if new:
        pins = usable_directory() / PINS
        _write_pins(pins, new)
        found = ", ".join(new.values())
        log.info("%s has the SHA-256 that the hub states, recorded in %s: %s", name, pins, found)
    return paths[-1].parent if release.others else paths[-1]


def copy_in_mirror(name: str, release: Release) -> Copy | None:
    """The files of a release in a mirror folder; None if they are in none."""
    return copy_of((name, release.repository), (*release.others, release.filename))


def _from_mirror(name: str, release: Release, copied: Copy, sha256: str | None) -> Path:
    """The file or folder in a mirror. The hashes must be known: given, recorded before, or in SHA256SUMS."""
    recorded = _read_pins(readable_directory() / PINS)
    for filename in (*release.others, release.filename):
        weights, path = filename == release.filename, copied.folder / filename
        given = sha256 or release.sha256 if weights else None
        pin = name if weights else f"{name}/{filename}"
        known = given or recorded.get(pin) or copied.stated_hash(filename)
        if known is None:
            raise ValueError(
                f"no hash of {str(path)!r} is known, which is in a mirror: give its SHA-256, or list it in "
                f"{str(copied.mirror / SUMS)!r}, as sha256sum does"
            )
        require_digest(path, known)
    return copied.folder if release.others else copied.folder / release.filename


def require_digest(path: Path, sha256: str) -> None:
    """Raises ValueError unless a file has this SHA-256."""
    with path.open("rb") as file:
        require_same_digest(path, hashlib.file_digest(file, "sha256").hexdigest(), sha256)


def require_same_digest(path: Path, found: str, sha256: str) -> None:
    """As `require_digest`, of a file whose SHA-256 was found."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
    if found != sha256.lower():
        raise ValueError(f"the SHA-256 of {str(path)!r} must be {sha256.lower()}, got {found}")


def _not_here(name: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"the potential {name!r} of the hub is not on this machine with a known hash, and is not downloaded where "
        f"permission was not given: torchmdx.load({name!r}) downloads it"
    )


def _download(name: str, release: Release, filename: str, hub: Any, *, allow_cached: bool, download: bool) -> Path:
    """A file in the hub's cache, downloaded if necessary. allow_cached: use a cached file without asking the hub."""
    source = dict(repo_id=release.repository, filename=filename, revision=release.revision)
    if allow_cached:
        with contextlib.suppress(Exception):  # not cached: downloaded below
            return Path(hub.hf_hub_download(**source, local_files_only=True))
    if not download:
        raise _not_here(name)
    try:
        return Path(hub.hf_hub_download(**source))
    except Exception as error:  # the exceptions of huggingface_hub change between versions
        raise OSError(
            f"{name!r} could not be downloaded ({type(error).__name__}: {_first_line(error)}): check the network, or "
            f"download {release.files} from {release.page} and give {'the folder' if release.others else 'its path'}, "
            f"or put it into a mirror folder (${VARIABLE})"
        ) from error


def _verified_by_hub(name: str, release: Release, filename: str, path: Path, hub: Any) -> str:
    """The SHA-256 of a file that is the one in the hub's metadata. Small files have only git's hash there."""
    try:
        (info,) = hub.HfApi().get_paths_info(release.repository, [filename], revision=release.revision)
        large = info.lfs
        stated = str(large.sha256 if large is not None or not release.others else info.blob_id)
    except Exception as error:  # no network, no such file, or a file too small to have a hash in the metadata
        raise ValueError(
            f"no hash of {name!r} is recorded, and the hub's metadata could not be read "
            f"({type(error).__name__}: {_first_line(error)}): give its SHA-256, which {release.page} shows for "
            f"{filename}"
        ) from error
    if large is not None:
        require_digest(path, stated)
        return stated
    content = path.read_bytes()
    found = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    if found != stated.lower():
        raise ValueError(f"git's hash of {str(path)!r} must be {stated.lower()}, got {found}")
    return hashlib.sha256(content).hexdigest()


def _read_pins(path: Path) -> dict[str, str]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} must hold recorded hashes as JSON ({error}); delete it to record new ones"
        ) from error


def _write_pins(path: Path, new: dict[str, str]) -> None:
    pins = {**_read_pins(path), **new}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(pins, indent=1).encode())


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
