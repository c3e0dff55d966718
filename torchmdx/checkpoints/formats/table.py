"""Every format of checkpoints. A new one is a module with what `Format` lists, and a line in FORMATS."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from torchmdx.checkpoints.formats import ensemble, own, zipped
from torchmdx.checkpoints.formats.content import kind_of
from torchmdx.checkpoints.formats.matgl import folder as matgl
from torchmdx.checkpoints.formats.reading import Reading
from torchmdx.checkpoints.formats.source import Source
from torchmdx.checkpoints.formats.torchmdnet import reader as torchmdnet
from torchmdx.models.heads import HeadNames
from torchmdx.models.origin import Origin
from torchmdx.runtime.damaged_file import naming, parse_json

log = logging.getLogger(__name__)


class Format(Protocol):
    """A module that reads one potential from a file or a folder. It never runs code from there.

    ENDINGS: of its files, for commands that take potentials and data. A format of folders also has WEIGHTS, the name of
    the file that holds the weights, and if it reads others FILES, the names of all.
    """

    @property
    def ENDINGS(self) -> tuple[str, ...]: ...

    def recognizes(self, source: Source) -> bool:
        """Whether content, name or, of a folder, the files in it are those of this format."""

    def read(self, source: Source) -> Reading:
        """The potential. Raises ValueError with the file and what is wrong."""


class EnsembleFormat(Protocol):
    """A module that reads several potentials. described: completes "a single potential is needed, but FILE ..."."""

    @property
    def ENDINGS(self) -> tuple[str, ...]: ...

    def recognizes(self, source: Source) -> bool: ...

    def described(self, source: Source) -> str: ...

    def read(self, source: Source, read_one: Callable[[Source], Reading]) -> list[Reading]: ...


# The first that recognizes a file reads it.
FORMATS: tuple[Format, ...] = (
    own,
    torchmdnet,
    matgl,
)
ENSEMBLES: tuple[EnsembleFormat, ...] = (
    ensemble,
    zipped,
)


def endings() -> tuple[str, ...]:
    """Of all files that may hold one or several potentials."""
    return tuple(dict.fromkeys(ending for listed in (FORMATS, ENSEMBLES) for one in listed for ending in one.ENDINGS))


def format_of(source: Source) -> Format | None:
    """The format of one potential that recognizes a file or folder."""
    return next((one for one in FORMATS if one.recognizes(source)), None)


def ensemble_format_of(source: Source) -> EnsembleFormat | None:
    """The format of several potentials that recognizes a file."""
    return None if source.is_folder else next((one for one in ENSEMBLES if one.recognizes(source)), None)


def weights_part(folder: Source) -> str:
    """The file in a folder that holds the weights."""
    return str(getattr(format_of(folder), "WEIGHTS"))  # noqa: B009 (of some formats only)


def heads_in(source: Source) -> HeadNames | None:
    """The heads of a file, of an ensemble those of its members; None for a file with a single one."""
    held: Any = source.metadata
    if ensemble.recognizes(source):
        members = parse_json(held.get("members", "[]"))
        held = members[0] if isinstance(members, list) and members else {}
    return own.heads_in(held, source.origin) if isinstance(held, dict) else None


def head_of(source: Source) -> str | None:
    """The head that is read of a file with several; None for another one. Raises ValueError for an unknown head."""
    heads = heads_in(source)
    return heads.names[heads.index(source.head, repr(source.origin))] if heads is not None else source.head


def origin_of(source: Source) -> Origin:
    """Name and hash of what is read, with the head."""
    head = head_of(source)
    return Origin(source.name if head is None else f"{source.name}:{head}", identity_of(source))


def identity_of(source: Source) -> str:
    """SHA-256 of a file; of a folder, that of the names and hashes of all files that are read.

    Of one head of several, that of the hash of the file and the name.
    """
    if not source.is_folder:
        head = head_of(source)
        return source.sha256 if head is None else hashlib.sha256(f"{source.sha256} {head}".encode()).hexdigest()
    files: tuple[str, ...] = getattr(format_of(source), "FILES", (weights_part(source),))
    lines = [f"{name} {hashlib.sha256(source.part(name)).hexdigest()}\n" for name in files]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_one(source: Source) -> Reading:
    """The potential in a file or folder. Raises ValueError for one that is damaged or has no known format."""
    with naming(source.origin):
        found = format_of(source)
        if found is None:
            if not source.is_folder and (kind := kind_of(source.data)) is not None:
                raise ValueError(f"{source.origin!r} is not a readable checkpoint: it is {kind}")
            found = own  # says what is wrong as safetensors
        if source.head is not None and found is not own:
            raise ValueError(f"a head can be chosen in a file of torchmdx, got {source.head!r} for {source.origin!r}")
        reading = found.read(source)
    _say_default(source)
    reading.potential.origin = origin_of(source)
    return reading


def read_several(source: Source) -> list[Reading]:
    """The potentials in a file of several. Raises ValueError, also for a file of one."""
    chosen = ensemble_format_of(source)
    if chosen is None:
        raise ValueError(
            "an ensemble must be a file of several potentials, a zip of checkpoints, the folder of a training of "
            f"several seeds or a list of paths, got {source.origin!r} with one potential"
        )
    with naming(source.origin):
        readings = chosen.read(source, read_one)
    _say_default(source)
    for reading in readings:
        reading.potential.origin = origin_of(source)
    return readings


def _say_default(source: Source) -> None:
    """Logs, once for each file, that the default of several heads is taken."""
    heads = heads_in(source) if source.head is None else None
    if heads is not None:
        _warn_once(
            f"{source.origin} has the heads {', '.join(heads.names)}: {heads.default} is taken; "
            "head= or --head chooses one"
        )


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
