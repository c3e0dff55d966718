"""Ensembles on disk: one safetensors file with every member, or the folder of a training with several seeds.

The names of member k's tensors in the file have the prefix `members.k.`. The metadata hold the format and version of
the file, and for each member the metadata of a file with that member alone: format version, configuration, priors.
Readers of single potentials refuse the file because of its format.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save as serialize
from torch import Tensor

from torchmdx.runtime.damaged_file import is_newer, parse_json

FORMAT = "torchmdx-ensemble"
FORMAT_VERSION = "1"
LONGEST_HEADER = 100_000_000  # bytes, the limit of safetensors
# Names that trainings give.
MEMBER, BEST = "member-", "best.safetensors"

# Metadata and tensors of one potential.
Contents = tuple[dict[str, str], dict[str, Tensor]]


def pack(members: list[Contents]) -> bytes:
    """The content of a file of several potentials."""
    metadata = {
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


def is_ensemble_file(path: Path) -> bool:
    """Whether a file is a safetensors file of several potentials; reads only its header."""
    with path.open("rb") as file:
        start = file.read(9)
        if start[8:] != b"{":
            return False
        length = int.from_bytes(start[:8], "little")
        if not 0 < length <= LONGEST_HEADER:
            return False
        try:
            header = parse_json(b"{" + file.read(length - 1))
        except ValueError:
            return False
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and metadata.get("format") == FORMAT


def is_ensemble_folder(folder: Path) -> bool:
    """Whether a folder is that of a training with several seeds."""
    return any(place.name.removeprefix(MEMBER).isdecimal() for place in folder.glob(f"{MEMBER}*") if place.is_dir())


def files_in(folder: Path) -> list[Path]:
    """The files of the best potentials of a training with several seeds, in the order of seeds.

    Raises FileNotFoundError for a folder without members, and for members that have no best potential yet.
    """
    numbered = {place.name.removeprefix(MEMBER): place for place in folder.glob(f"{MEMBER}*") if place.is_dir()}
    places = [numbered[number] for number in sorted(filter(str.isdecimal, numbered), key=int)]
    if not places:
        raise FileNotFoundError(
            f"no checkpoint at {str(folder)!r}: a folder must hold {MEMBER}0, {MEMBER}1, ..., as a training of several "
            "seeds creates them"
        )
    files = [place / BEST for place in places]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise FileNotFoundError(f"every member of the ensemble in {str(folder)!r} must be trained: no {missing[0]}")
    return files
