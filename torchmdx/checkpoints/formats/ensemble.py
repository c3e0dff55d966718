"""Ensembles in one safetensors file.

The names of member k's tensors in the file have the prefix `members.k.`. The metadata hold the format and version of
the file, and for each member the metadata of a file with that member alone: format version, configuration, priors.
Of a calibrated ensemble, spread_factors are those of energies and forces. Readers of single potentials refuse the file
because of its format.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from safetensors.torch import save as serialize
from torch import Tensor

from torchmdx.checkpoints.formats.own import Contents, contents, deserialized, reading_of
from torchmdx.checkpoints.formats.reading import Reading
from torchmdx.checkpoints.formats.source import Source
from torchmdx.models.ensemble import UNCALIBRATED
from torchmdx.models.potential import Potential
from torchmdx.runtime.damaged_file import is_newer, parse_json

ENDINGS = (".safetensors",)
FORMAT = "torchmdx-ensemble"
FORMAT_VERSION = "1"
Factors = tuple[float, float] | dict[str, tuple[float, float]]


def recognizes(source: Source) -> bool:
    """Whether it is a safetensors file of several potentials."""
    return source.metadata.get("format") == FORMAT


def described(source: Source) -> str:
    """For errors where a single potential is needed."""
    return "holds an ensemble"


def read(source: Source, read_one: Callable[[Source], Reading]) -> list[Reading]:
    """The members, in their order. Raises ValueError, naming the file, as for a single potential."""
    found = unpack(*deserialized(source), source.origin)
    return [
        reading_of(*held, f"{source.origin}/member {k}", source.sha256, source.head) for k, held in enumerate(found)
    ]


def to_bytes(readings: Sequence[Potential | Reading], spread_factors: Factors = UNCALIBRATED) -> bytes:
    """The content of a file of several potentials, of readings with the report on each. As `pack`."""
    return pack(
        [contents(one.potential, one.report) if isinstance(one, Reading) else contents(one) for one in readings],
        spread_factors,
    )


def spread_factors(source: Source, head: str | None = None) -> tuple[float, float]:
    """Factors of the spreads, 1 for an ensemble that is not calibrated. Raises ValueError, naming the file.

    Args:
        head: Of members with several heads, each with factors of its own.
    """
    text = source.metadata.get("spread_factors")
    if text is None:
        return UNCALIBRATED
    found = parse_json(text)
    if isinstance(found, dict):
        found = found.get(head, list(UNCALIBRATED))
    sound = isinstance(found, list) and len(found) == 2
    if not sound or not all(type(one) is float and 0 < one < math.inf for one in found):
        raise ValueError(f"spread_factors of {source.origin!r} must be two numbers > 0, got {text[:80]!r}")
    return found[0], found[1]


def pack(members: list[Contents], spread_factors: Factors = UNCALIBRATED) -> bytes:
    """The content of a file of several potentials. spread_factors: a pair, or one for each head by name."""
    calibrated = {} if spread_factors == UNCALIBRATED else {"spread_factors": json.dumps(spread_factors)}
    metadata = {
        **calibrated,
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "members": json.dumps([held for held, _ in members]),
    }
    tensors = {f"members.{k}.{name}": value for k, (_, held) in enumerate(members) for name, value in held.items()}
    return serialize(tensors, metadata)


def unpack(metadata: dict[str, str], tensors: dict[str, Tensor], origin: str) -> list[Contents]:
    """The potentials in a file. Raises ValueError, naming the file, for another version or inconsistent contents."""
    version = metadata.get("format_version", "")
    if version != FORMAT_VERSION:
        raise ValueError(
            f"this torchmdx reads ensembles of format version {FORMAT_VERSION}, {origin!r} has version {version!r}"
            + ("; update torchmdx" if is_newer(version, int(FORMAT_VERSION)) else "")
        )
    try:
        listed = parse_json(metadata.get("members", ""))
        if not isinstance(listed, list) or not all(isinstance(held, dict) for held in listed) or not listed:
            raise TypeError
    except (ValueError, TypeError) as error:
        raise ValueError(f"{origin!r} lists no readable members, got {metadata.get('members', '')[:80]!r}") from error
    shares: list[dict[str, Tensor]] = [{} for _ in listed]
    numbers = {str(k): k for k in range(len(listed))}
    for name, value in tensors.items():
        word, _, rest = name.partition(".")
        number, _, own = rest.partition(".")
        if word != "members" or number not in numbers:
            raise ValueError(f"the tensors of {origin!r} must belong to its {len(listed)} members, got {name!r}")
        shares[numbers[number]][own] = value
    return list(zip(listed, shares, strict=True))
