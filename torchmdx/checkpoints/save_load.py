"""Saving and loading potentials: a safetensors file with the weights, the whole configuration and a format version.

Loading never runs code from a file: safetensors contains only numbers and text, and checkpoints of torchmd-net are read
by `torchmdnet.archive`. Shapes are compared with the configuration before memory is allocated for a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as deserialize
from safetensors.torch import save as serialize
from torch import Tensor

from torchmdx.checkpoints.content import kind_of
from torchmdx.checkpoints.energy_check import recheck, record
from torchmdx.checkpoints.ensemble_file import Contents, files_in, is_ensemble_file, pack, unpack
from torchmdx.checkpoints.locate import is_run_folder, locate
from torchmdx.matgl.folder import read_matgl
from torchmdx.models.ensemble import Ensemble, require_alike
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.models.priors.base import PriorConfig
from torchmdx.models.registry import ModelConfig, model_from_dict, model_to_dict, prior_from_dict, prior_to_dict
from torchmdx.models.skeleton import require_sizes
from torchmdx.runtime.damaged_file import WRONG_VALUES, is_newer, naming, parse_json
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.isolation import isolated
from torchmdx.torchmdnet.container import is_ensemble, members
from torchmdx.torchmdnet.reader import read_torchmdnet_bytes
from torchmdx.torchmdnet.report import Reading, Report

FORMAT = "torchmdx-potential"
FORMAT_VERSION = 2
# Version 1 had a single architecture and no priors.
READABLE_VERSIONS = ("1", "2")

# The sources of one or several potentials.
Source = str | Path | Sequence[str | Path]
# The name of `locate` in version 0.1.
located = locate


def save(potential: Potential | Ensemble, path: str | Path, *, report: Report | None = None) -> None:
    """Writes a potential, or an ensemble, to `path` (.safetensors), atomically.

    report: how a potential was read from another format; it is stored in the file, with energies that loading checks.
    """
    if isinstance(potential, Ensemble):
        if report is not None:
            raise ValueError("report must be None for an ensemble, got the report of a single potential")
        content = pack([_contents(member) for member in potential])
    else:
        content = to_bytes(potential, report)
    write_whole(Path(path), content)


def to_bytes(potential: Potential, report: Report | None = None) -> bytes:
    """The content of the file that `save` writes for a potential."""
    metadata, tensors = _contents(potential, report)
    return serialize(tensors, metadata)


def ensemble_to_bytes(readings: Sequence[Reading]) -> bytes:
    """The content of a file of several potentials, with the report on each."""
    return pack([_contents(reading.potential, reading.report) for reading in readings])


def _contents(potential: Potential, report: Report | None = None) -> Contents:
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
    return metadata, {name: value.detach().cpu().contiguous() for name, value in potential.state_dict().items()}


@isolated
def load(
    source: Source | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    sha256: str | None = None,
) -> Potential | Ensemble:
    """Loads a potential: torchmdx's own format, a torchmd-net checkpoint (`.ckpt`), a folder of matgl, or a name, as in
    `locate`.

    source: None for the default potential. A file of several potentials, a zip of checkpoints, a list of paths, or the
    folder of a training with several seeds gives an ensemble. dtype: of the network; None keeps the file's. sha256: the
    expected hash of the file. Raises FileNotFoundError for a missing file and ValueError, with the file and the reason,
    for a file that is damaged or is not a potential.
    """
    if source is None:
        source = locate()
    if sha256 is not None:
        if not isinstance(source, (str, Path)) or is_run_folder(source):
            raise ValueError(f"sha256 needs a single file, got {source!r}")
        source = locate(source, sha256)
    if isinstance(source, (str, Path)) and not holds_several(source):
        return _ready(read(source).potential, dtype, device)
    readings = read_ensemble(source)
    if len(readings) < 2 and isinstance(source, (str, Path)):
        raise ValueError(f"an ensemble needs at least 2 potentials, got {len(readings)} in {str(source)!r}")
    potentials = [_ready(reading.potential, dtype, device) for reading in readings]
    return Ensemble(potentials, [reading.report.source for reading in readings])


@isolated
def load_one(
    path: str | Path | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    sha256: str | None = None,
) -> Potential:
    """As `load`, but raises ValueError for an ensemble."""
    return _ready(read(path, sha256=sha256).potential, dtype, device)


@isolated
def load_ensemble(
    source: Source, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
) -> list[Potential]:
    """The members of an ensemble, as a list, from one file, a folder, or a list of paths, as for `load`.

    Raises ValueError if there is none, or if their cutoffs or elements differ.
    """
    return [_ready(reading.potential, dtype, device) for reading in read_ensemble(source)]


def read(path: str | Path | None = None, *, sha256: str | None = None, total_energy: bool = False) -> Reading:
    """As `load_one`, with a report on what was read; the potential keeps the dtype of the file.

    total_energy: add the reference energies that a torchmd-net checkpoint contains but disables (`remove_ref_energy`).
    """
    file = locate(path, sha256)
    if file.is_dir():
        return read_matgl(file)
    if is_ensemble(file) or is_ensemble_file(file):
        kind = (
            f"is a zip of {len(members(file))} checkpoints, an ensemble" if is_ensemble(file) else "holds an ensemble"
        )
        raise ValueError(f"a single potential is needed, but {str(file)!r} {kind}")
    return _read(file.read_bytes(), str(file), total_energy)


def read_ensemble(source: Source, *, total_energy: bool = False) -> list[Reading]:
    """As `load_ensemble`, with reports."""
    if isinstance(source, (str, Path)) and not is_run_folder(source):
        file = locate(source)
        if not file.is_dir() and is_ensemble(file):
            readings = [_read(data, origin, total_energy) for origin, data in members(file)]
        elif not file.is_dir() and is_ensemble_file(file):
            readings = _read_own_ensemble(file.read_bytes(), str(file))
        else:
            raise ValueError(
                "an ensemble must be a file of several potentials, a zip of checkpoints, the folder of a training of "
                f"several seeds or a list of paths, got {str(file)!r} with one potential"
            )
    else:
        paths = files_in(Path(source)) if isinstance(source, (str, Path)) else source
        readings = [read(path, total_energy=total_energy) for path in paths]
    if not readings:
        raise ValueError("an ensemble needs at least one checkpoint, got none")
    require_alike([reading.potential for reading in readings], [reading.report.source for reading in readings])
    return readings


def holds_several(source: Source) -> bool:
    """Whether `load` returns an ensemble for this source. Raises as `locate`."""
    if not isinstance(source, (str, Path)) or is_run_folder(source):
        return True
    file = locate(source)
    return not file.is_dir() and (is_ensemble(file) or is_ensemble_file(file))


def _ready(potential: Potential, dtype: torch.dtype | None, device: torch.device | str) -> Potential:
    return potential.to(device=device, dtype=dtype).eval().requires_grad_(False)


def _read(data: bytes, origin: str, total_energy: bool) -> Reading:
    with naming(origin):
        kind = kind_of(data)
        if kind is not None:
            raise ValueError(f"{origin!r} is not a readable checkpoint: it is {kind}")
        if _is_foreign(data, origin):
            return read_torchmdnet_bytes(data, origin, total_energy=total_energy)
        return _read_own(data, origin)


def _is_foreign(data: bytes, origin: str) -> bool:
    """Whether a file has torchmd-net's format: by its first bytes, else by its suffix."""
    if data[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
        return False
    return data.startswith(b"PK\x03\x04") or Path(origin).suffix in (".ckpt", ".pt", ".pth")


def _deserialized(data: bytes, origin: str) -> Contents:
    try:
        tensors = deserialize(data)
        length = int.from_bytes(data[:8], "little")
        return parse_json(data[8 : 8 + length]).get("__metadata__") or {}, tensors
    except (SafetensorError, OSError, ValueError, *WRONG_VALUES) as error:
        raise ValueError(f"{origin!r} is not a readable checkpoint (safetensors says: {error})") from error


def _read_own(data: bytes, origin: str) -> Reading:
    metadata, tensors = _deserialized(data, origin)
    return _reading(metadata, tensors, origin, data)


def _read_own_ensemble(data: bytes, origin: str) -> list[Reading]:
    with naming(origin):
        found = unpack(*_deserialized(data, origin), origin)
        return [_reading(*contents, f"{origin}/member {k}", data) for k, contents in enumerate(found)]


def _reading(metadata: dict[str, str], tensors: dict[str, Tensor], origin: str, data: bytes) -> Reading:
    """The potential of one set of metadata and tensors; data: the content of the file."""
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
            f"this torchmdx reads format versions {' and '.join(READABLE_VERSIONS)}, {origin!r} has version {version!r}"
            + ("; update torchmdx" if is_newer(version, FORMAT_VERSION) else "")
        )
    config, priors = _configs(metadata, origin)
    require_sizes(config, priors, tensors, repr(origin))
    potential = Potential(config, priors)
    potential.fill(tensors, repr(origin))
    potential.card = _card(metadata, origin)
    if "energies" in metadata:
        recheck(potential, parse_json(metadata["energies"]), origin)
    return Reading(potential, _report_of_own(metadata, data, origin))


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


def _card(metadata: dict[str, str], origin: str) -> Card:
    try:
        return Card.from_text(metadata["card"]) if "card" in metadata else Card()
    except ValueError as error:
        raise ValueError(f"{origin!r}: {error}") from error


def _report_of_own(metadata: dict[str, Any], data: bytes, origin: str) -> Report:
    report = Report(origin, hashlib.sha256(data).hexdigest())
    report.read.append(f"torchmdx's own format, version {metadata['format_version']}")
    return report
