"""Locating a potential: a file or folder at a path, shipped with torchmdx, or on the Hugging Face hub."""

from __future__ import annotations

import difflib
import hashlib
from pathlib import Path

from torchmdx.checkpoints import hub
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.table import (
    endings,
    ensemble_format_of,
    format_of,
    heads_in,
    identity_of,
    origin_of,
    weights_part,
)
from torchmdx.checkpoints.potentials import DEFAULT_POTENTIAL, shipped
from torchmdx.checkpoints.run_folder import best_in, is_ensemble_folder, whole_in
from torchmdx.models.heads import NAME
from torchmdx.models.origin import Origin


def locate(path: str | Path | None = None, sha256: str | None = None, *, download: bool = True) -> Path:
    """The file at a path, else the file of the potential with this name, shipped with torchmdx or on the hub.

    Of a potential of matgl the folder, in place of a file; sha256 is that of its weights then. Of the folder of a
    training its best potential. FILE:NAME, for the head NAME of a file with several, stays so. On the hub: one of
    `known_names`, or owner/name of a repository with a potential of matgl; without `download` only what is in the hub's
    cache on this machine. None is the default potential.

    Raises:
        FileNotFoundError: If there is neither.
        ValueError: For another hash.
    """
    name, head = split_head(path)
    found = _resolved(name, sha256, download)
    if sha256 is not None:
        hub.require_digest(weights_file(found), sha256)
    return found if head is None else Path(f"{found}:{head}")


def opened(
    path: str | Path | Source | None = None,
    sha256: str | None = None,
    *,
    total_energy: bool = False,
    download: bool = True,
) -> Source:
    """What `locate` finds, to be read once; an open one as it is. Raises as `locate`.

    Args:
        sha256: Of a folder that of its weights, or as `origin_at`.
    """
    if isinstance(path, Source):
        source = path.with_total_energy() if total_energy else path
    else:
        path, head = split_head(path)
        found = _resolved(path, None if head else sha256, download)
        name = DEFAULT_POTENTIAL if path is None else str(path)
        known_as = found.stem if found in shipped().values() else None if found == Path(name) else name
        if path is not None and found == best_in(path):
            known_as = Path(path).resolve().name
        source = Source(str(found), total_energy=total_energy, known_as=known_as, head=head)
    if sha256 is not None and sha256 != identity_of(source):
        hub.require_same_digest(weights_file(source.path), digest_of(source), sha256)
    return source


def origin_at(path: str | Path | None = None) -> Origin:
    """Name and SHA-256 of a potential that is a file, a folder or a name. Raises as `locate`."""
    return origin_of(opened(path))


def is_potential(path: str | Path) -> bool:
    """Whether text can only be that of a potential: a name, a folder with one or several, or a file by its ending."""
    place = Path(split_head(path)[0] or path)
    if place.is_dir():
        return _is_potential_folder(place) or best_in(place) is not None or is_ensemble_folder(place)
    return place.suffix in endings() or str(place) in known_names()


def split_head(path: str | Path | None) -> tuple[str | Path | None, str | None]:
    """The path and the head of FILE:NAME; None for another path, also for one that exists."""
    before, _, head = str(path).rpartition(":")
    if path is None or len(before) < 2 or not NAME.fullmatch(head) or Path(path).exists():
        return path, None
    return before, head


def with_head(path: str | Path | None, head: str | None) -> str | Path | None:
    """FILE:NAME of a path and a head, if there is one. Raises ValueError for a path with another head."""
    path, named = split_head(path) if head is not None else (path, None)
    if named not in (None, head):
        raise ValueError(f"a head must be chosen once, got {head!r} and {path}:{named}")
    return path if head is None else f"{DEFAULT_POTENTIAL if path is None else path}:{head}"


def head_names(path: str | Path) -> tuple[str, ...]:
    """The names of the heads of a file, the default first; none for a file with a single head. Raises as `locate`."""
    source = opened(path)
    heads = heads_in(source)
    return () if heads is None else (heads.default, *(name for name in heads.names if name != heads.default))


def digest_of(source: Source) -> str:
    """SHA-256 of a file, of a folder that of its weights."""
    return hashlib.sha256(source.part(weights_part(source))).hexdigest() if source.is_folder else source.sha256


def _resolved(path: str | Path | None, sha256: str | None, download: bool) -> Path:
    """As `locate`, but of what is on this machine the hash is not checked."""
    name = DEFAULT_POTENTIAL if path is None else str(path)
    ours = shipped()
    if path is not None and (Path(path).is_file() or _is_potential_folder(path)):
        return Path(path)
    if path is not None and (best := best_in(path)) is not None:
        return best
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
    path = split_head(path)[0] or path
    return Path(path).is_dir() and not _is_potential_folder(path) and best_in(path) is None


def files_at(path: str | Path | None = None) -> tuple[Path, ...]:
    """What `locate` finds, or the files of the potentials in the folder of a training with several seeds."""
    if path is None or not is_run_folder(path):
        return (locate(path),)
    folder, head = split_head(path)
    return tuple(Path(str(with_head(file, head))) for file in whole_in(Path(str(folder))))


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
    lower = {known.lower(): known for known in known_names()}
    near = difflib.get_close_matches(name.lower(), lower, 1, 0.8)
    meant = repr(lower[near[0]]) if near else like(name)
    return (
        f", nor is that a name: torchmdx comes with {', '.join(shipped()) or 'none'} and fetches "
        f"{', '.join(hub.RELEASES)}" + (f"; did you mean {meant}?" if meant else "")
    )


MATERIALS, MOLECULES, IONS = "TensorNet-PES-MatPES-PBE-2025.2", "organic-1", "aceff-2.0"
# Beginnings of names in lower case. The longest that fits decides.
FAMILIES = {
    MATERIALS: (
        "mace", "mace-mp", "mace-mpa", "mace-omat", "mace-matpes", "medium-mpa", "small", "medium", "large", "m3gnet",
        "chgnet", "matgl", "tensornet-matpes", "orb", "mattersim", "sevennet", "7net", "eqv2", "esen", "uma", "grace",
        "alignn", "allegro", "nequip", "matpes", "pet-mad", "fairchem", "dpa",
    ),
    MOLECULES: (
        "mace-off", "mace-omol", "mace-polar", "ani", "aimnet", "orb-v3-conservative-omol", "so3lr", "fennix",
        "xtb", "gfn",
    ),
    IONS: ("aceff",),
}  # fmt: skip
KINDS = {MATERIALS: "crystals and surfaces", MOLECULES: "molecules", IONS: "molecules, charged ones too"}


def like(name: str) -> str | None:
    """The potential for the structures that a name's family is for, with what it is for; None for no known family."""
    short = name.lower().rsplit("/", 1)[-1].replace("_", "-")
    fitting = [(start, ours) for ours, starts in FAMILIES.items() for start in starts if short.startswith(start)]
    if not fitting:
        return None
    _, ours = max(fitting, key=lambda pair: len(pair[0]))
    return f"{ours!r}, for {KINDS[ours]}"
