"""The format of torchmdx: a safetensors file with the weights, the whole configuration and a format version.

A file of several heads, version 3, has the tensors of head k with the prefix `heads.k.`, and those that heads share
without one. Reading chooses a head: the potential is an ordinary one. A file of a potential that knows its uncertainty,
version 4, has its covariance as the tensor `uncertainty.covariance` (each head its own), and the numbers in the
metadata.

safetensors contains only numbers and text. Shapes are compared with the configuration before memory is allocated for a
model.
"""

from __future__ import annotations

import json
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor

from torchmdx.checkpoints.energy_check import recheck, record
from torchmdx.checkpoints.formats.reading import Reading, Report
from torchmdx.checkpoints.formats.source import Source
from torchmdx.models.heads import HeadNames, MultiHead, require_head_name
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import ModelConfig, model_from_dict, model_to_dict, prior_from_dict, prior_to_dict
from torchmdx.models.skeleton import CONSTANTS, require_sizes
from torchmdx.models.uncertainty import Uncertainty, last_layer_size
from torchmdx.runtime.damaged_file import WRONG_VALUES, is_newer, parse_json

ENDINGS = (".safetensors",)
FORMAT = "torchmdx-potential"
FORMAT_VERSION, WITH_HEADS, WITH_UNCERTAINTY = 2, 3, 4
# Version 1 had a single architecture and no priors.
READABLE_VERSIONS = ("1", "2", "3", "4")

PREFIX = "heads."
COVARIANCE = "uncertainty.covariance"
# Metadata and tensors of one potential.
Contents = tuple[dict[str, str], dict[str, Tensor]]


def recognizes(source: Source) -> bool:
    """Whether it is a safetensors file."""
    return source.is_safetensors


def read(source: Source) -> Reading:
    """The potential in a file. Raises ValueError, naming it, for another version, other content or damage."""
    return reading_of(*deserialized(source), source.origin, source.sha256, source.head)


def to_bytes(potential: Potential, report: Report | None = None) -> bytes:
    """The content of a file. report: how the potential was read from another format."""
    metadata, tensors = contents(potential, report)
    return serialize(tensors, metadata)


def contents(potential: Potential, report: Report | None = None) -> Contents:
    """Metadata and tensors; with a report also energies that loading checks."""
    if isinstance(potential, MultiHead):
        return _of_heads(potential)
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "config": json.dumps(model_to_dict(potential.config)),
        "priors": json.dumps([prior_to_dict(config) for config in potential.prior_configs]),
    }
    if potential.card:
        metadata["card"] = potential.card.to_text()
    if report is not None:
        metadata |= {"report": str(report), "energies": json.dumps(record(potential))}
    tensors = {name: value.detach().cpu().contiguous() for name, value in potential.state_dict().items()}
    if potential.uncertainty is not None:
        metadata |= {
            "format_version": str(WITH_UNCERTAINTY),
            "uncertainty": potential.uncertainty.settings_text(),
        }
        tensors[COVARIANCE] = potential.uncertainty.covariance.contiguous()
    return metadata, tensors


def with_uncertainty(source: Source, uncertainty: Uncertainty) -> bytes:
    """The content of a file, with this uncertainty of its potential, or of its head, and all else as it is."""
    metadata, tensors = deserialized(source)
    metadata, heads = dict(metadata), heads_in(metadata, source.origin)
    if heads is None:
        metadata["uncertainty"] = uncertainty.settings_text()
        tensors[COVARIANCE] = uncertainty.covariance
    else:
        named, number = parse_json(metadata["heads"]), heads.index(source.head, repr(source.origin))
        texts = named.get("uncertainties") or [None] * len(heads.names)
        named["uncertainties"] = [*texts[:number], uncertainty.settings_text(), *texts[number + 1 :]]
        metadata["heads"] = json.dumps(named)
        tensors[f"{PREFIX}{number}.{COVARIANCE}"] = uncertainty.covariance
    metadata["format_version"] = str(WITH_UNCERTAINTY)
    return serialize(tensors, metadata)


def _of_heads(potential: MultiHead) -> Contents:
    """Metadata and tensors of all heads."""
    held = [contents(potential.one(name)) for name in potential.heads.names]
    version = max(WITH_HEADS, *(int(metadata["format_version"]) for metadata, _ in held))
    metadata, tensors = held[0][0], {name: value for name, value in held[0][1].items() if not _is_of_head(name)}
    for number, (_, found) in enumerate(held):
        tensors |= {f"{PREFIX}{number}.{name}": value for name, value in found.items() if _is_of_head(name)}
    named = {
        "names": potential.heads.names,
        "default": potential.heads.default,
        "cards": [m.get("card") for m, _ in held],
    }
    if version == WITH_UNCERTAINTY:
        named["uncertainties"] = [m.get("uncertainty") for m, _ in held]
    metadata.pop("uncertainty", None)
    return {**metadata, "format_version": str(version), "heads": json.dumps(named)}, tensors


def _is_of_head(name: str) -> bool:
    return name.startswith("head.") or name in (*CONSTANTS, COVARIANCE)


def heads_in(metadata: dict[str, Any], origin: str) -> HeadNames | None:
    """The heads that the metadata of a file name; None for a file without. Raises ValueError for damage."""
    version = metadata.get("format_version")
    if version != str(WITH_HEADS) and not (version == str(WITH_UNCERTAINTY) and "heads" in metadata):
        return None
    try:
        found = parse_json(metadata.get("heads", ""))
        heads = HeadNames(tuple(found["names"]), found["default"])
        for name in heads.names:
            require_head_name(name)
        if heads.default not in heads.names or len(set(heads.names)) < len(heads.names):
            raise ValueError
    except (ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{origin!r} must name its heads, got {metadata.get('heads', '')[:80]!r}") from error
    return heads


def _selected(metadata: dict[str, str], tensors: dict[str, Tensor], origin: str, head: str | None) -> Contents:
    """Metadata and tensors of one head, as of a file with that head alone."""
    heads = heads_in(metadata, origin)
    if heads is None:
        if head is not None:
            raise ValueError(f"{origin!r} has a single head without a name, got the head {head!r}")
        return metadata, tensors
    number = heads.index(head, repr(origin))
    mine, every = f"{PREFIX}{number}.", tuple(f"{PREFIX}{k}." for k in range(len(heads.names)))
    shared = {name: tensor for name, tensor in tensors.items() if not name.startswith(every)}
    own = {name.removeprefix(mine): tensor for name, tensor in tensors.items() if name.startswith(mine)}
    named = parse_json(metadata["heads"])
    metadata = {name: text for name, text in metadata.items() if name not in ("card", "uncertainty")}
    for name, key in (("card", "cards"), ("uncertainty", "uncertainties")):
        mine = named.get(key, [])[number : number + 1]
        metadata |= {name: mine[0]} if mine and isinstance(mine[0], str) else {}
    return metadata, shared | own


def deserialized(source: Source) -> Contents:
    """What is in a safetensors file. Raises ValueError for a damaged one."""
    try:
        return source.metadata, deserialize(source.data)
    except (SafetensorError, OSError, ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{source.origin!r} is not a readable checkpoint (safetensors says: {error})") from error


def reading_of(
    metadata: dict[str, str], tensors: dict[str, Tensor], origin: str, sha256: str, head: str | None = None
) -> Reading:
    """The potential of one set of metadata and tensors; sha256: of the file. head: None is the default one."""
    if not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"the metadata of {origin!r} must be text")
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{origin!r} is a safetensors file but not a torchmdx potential: its format must be {FORMAT!r}, "
            f"got {metadata.get('format')!r}"
        )
    version = metadata.get("format_version", "")
    if version not in READABLE_VERSIONS:
        raise ValueError(
            f"this torchmdx reads format versions {', '.join(READABLE_VERSIONS)}, {origin!r} has version {version!r}"
            + ("; update torchmdx" if is_newer(version, WITH_UNCERTAINTY) else "")
        )
    heads = heads_in(metadata, origin)
    metadata, tensors = _selected(metadata, tensors, origin, head)
    config, priors = _configs(metadata, origin)
    tensors = dict(tensors)
    covariance = tensors.pop(COVARIANCE, None)
    require_sizes(config, priors, tensors, repr(origin))
    potential = Potential(config, priors)
    potential.fill(tensors, repr(origin))
    potential.card = _card(metadata, origin)
    potential.uncertainty = _uncertainty(potential, metadata.get("uncertainty"), covariance, origin)
    if "energies" in metadata:
        recheck(potential, parse_json(metadata["energies"]), origin)
    report = Report(origin, sha256)
    report.read.append(f"torchmdx's own format, version {version}")
    if heads is not None:
        chosen = heads.names[heads.index(head, origin)]
        report.read.append(f"the head {chosen} of {', '.join(heads.names)}" + ", the default" * (head is None))
    return Reading(potential, report)


def _configs(metadata: dict[str, str], origin: str) -> tuple[ModelConfig, list[PriorConfig]]:
    texts = metadata.get("config", ""), metadata.get("priors", "[]")
    try:
        config, priors = (parse_json(text) for text in texts)
        if not isinstance(config, dict) or "model" not in config or not isinstance(priors, list):
            raise TypeError
        if not all(isinstance(prior, dict) for prior in priors):
            raise TypeError
    except (ValueError, TypeError) as error:
        raise ValueError(f"{origin!r} holds no readable configuration, got {texts[0][:80]!r}") from error
    try:
        return model_from_dict(config), [prior_from_dict(prior) for prior in priors]
    except ValueError as error:
        raise ValueError(f"{origin!r}: {error}") from error


def _uncertainty(potential: Potential, text: str | None, covariance: Tensor | None, origin: str) -> Uncertainty | None:
    """What a file says of the uncertainty of its potential. Raises ValueError, naming file, field and shapes."""
    if text is None and covariance is None:
        return None
    if text is None or covariance is None:
        missing = "metadata 'uncertainty'" if text is None else f"tensor {COVARIANCE}"
        raise ValueError(f"{origin!r} must have both parts of an uncertainty, but lacks the {missing}")
    try:
        size = last_layer_size(potential)
        if list(covariance.shape) != [size, size]:
            raise ValueError(f"{COVARIANCE} must have shape {[size, size]}, got {list(covariance.shape)}")
        return Uncertainty.from_file(text, covariance)
    except ValueError as error:
        raise ValueError(f"{origin!r}: {error}") from error


def _card(metadata: dict[str, str], origin: str) -> Card:
    try:
        return Card.from_text(metadata["card"]) if "card" in metadata else Card()
    except ValueError as error:
        raise ValueError(f"{origin!r}: {error}") from error
