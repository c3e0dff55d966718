"""Replay: frames of structures that the potential to fine-tune knows, together with the new ones in one store."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.blocks import Keys
from torchmdx.datasets.conversion import convert
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.reading import ReadingOptions
from torchmdx.datasets.references import composition
from torchmdx.datasets.source_state import source_state
from torchmdx.datasets.splits import Split
from torchmdx.datasets.store import Store, StoreWriter
from torchmdx.models.heads import MultiHead
from torchmdx.models.model_card import symbols
from torchmdx.models.potential import Potential
from torchmdx.report.predictor import Predictor
from torchmdx.runtime.wording import counted
from torchmdx.training.batches import Indices
from torchmdx.training.config import Config
from torchmdx.training.data_section import files_of
from torchmdx.training.distributed import launched
from torchmdx.training.heads import OLD, REPLAY, base_of
from torchmdx.training.loss import used_terms
from torchmdx.training.open_data import say

MIXED, READ = "with_replay.store", ".replay.store"
HELD_OUT, MOST_HELD_OUT = 0.1, 1000
CHUNK = 1024


def with_replay(
    config: Config,
    potential: Potential,
    store: Store,
    parts: Split,
    directory: Path,
    device: torch.device,
    resume: bool,
) -> tuple[Store, Split]:
    """A store in `directory` of all frames of `store` and the replayed ones after them, and the parts of both.

    Raises ValueError, FileNotFoundError as a conversion does.

    Args:
        potential: As it is before the training, with its references already fitted. Without finetune.replay, `store`
            and `parts` are returned. The store is made once: later calls open it, unless something has changed.
    """
    if config.finetune.replay is None:
        return store, parts
    if isinstance(potential, MultiHead):
        potential = potential.one(config.finetune.replay_head or potential.heads.default)
    path = directory / MIXED
    exists = Store.is_store(path)
    if not (exists and resume):
        wanted = _state(config, potential, store)
        if not exists or Store.open(path).made_from != wanted:
            if launched():
                raise ValueError(
                    "finetune.replay with processes started by torchrun needs the store that a run with one process "
                    f"or with training.devices writes, got none for these settings at {str(path)!r}"
                )
            _write(config, potential, store, path, device, wanted)
    mixed = Store.open(path)
    return mixed, parts | _old_parts(config, len(store), len(mixed), bool(len(parts["validation"])))


def _old_parts(config: Config, first: int, end: int, validated: bool) -> Split:
    """The replayed frames: a tenth is held out, if there is a validation."""
    count = end - first
    held = min(MOST_HELD_OUT, max(1, round(HELD_OUT * count))) if validated else 0
    if count - held < 1:
        raise ValueError(f"finetune.replay must have at least 2 frames, of which one is held out, got {count}")
    order = first + np.random.default_rng(config.data.seed).permutation(count)
    return {REPLAY: np.sort(order[held:]).astype(np.int64), OLD: np.sort(order[:held]).astype(np.int64)}


def _state(config: Config, potential: Potential, store: Store) -> dict[str, Any]:
    """What the store depends on, as JSON values."""
    base = load_one(base_of(config), dtype=potential.dtype)
    digest = hashlib.sha256()
    for tensor in (*base.state_dict().values(), potential.reference_energies):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    finetune = config.finetune
    return source_state(_files(config), _reading(config).plain()) | {
        "new": store.digest,
        "base": digest.hexdigest(),
        "labels": finetune.replay_labels,
        "weight": finetune.replay_weight,
        "stress": "stress" in used_terms(config.loss),
    }


def _files(config: Config) -> list[str]:
    return files_of(config.finetune.replay) or []


def _reading(config: Config) -> ReadingOptions:
    """Files are read as those of the data; names and units of labels do not matter if they are computed."""
    reading = config.data.reading()
    if all(Store.is_store(file) for file in _files(config)):
        return ReadingOptions(broken=reading.broken)
    if config.finetune.replay_labels == "file":
        return reading
    keys, kept = reading.keys, ("charge", "positions", "atomic_numbers", "cell")
    return ReadingOptions(
        format=reading.format,
        length_unit=reading.length_unit,
        keys=Keys(**{name: getattr(keys, name) for name in kept}),
        broken=reading.broken,
    )


def _write(
    config: Config, potential: Potential, store: Store, path: Path, device: torch.device, made_from: dict[str, Any]
) -> None:
    """Writes the store, atomically."""
    read = path.with_name(READ)
    try:
        unlabelled = config.finetune.replay_labels == "base"
        reading = _reading(config).plain()
        convert(_files(config), read, **reading, unlabelled=unlabelled, overwrite=True, log=lambda text: None)
        old = Store.open(read)
        _require_known(config, potential, old)
        labelled = _as_given if config.finetune.replay_labels == "file" else _by_base
        with StoreWriter(path, made_from=made_from, overwrite=True) as writer:
            for start in range(0, len(store), CHUNK):
                indices = np.arange(start, min(start + CHUNK, len(store)))
                _add(writer, store, indices, store.gather(indices))
            for indices, frames in labelled(config, potential, old, np.flatnonzero(~old.isolated), device):
                weight = frames.weight * config.finetune.replay_weight
                _add(writer, old, indices, replace(frames, weight=weight))
    finally:
        shutil.rmtree(read, ignore_errors=True)
    count = counted(len(Store.open(path)) - len(store), "frame")
    how = "in the files" if config.finetune.replay_labels == "file" else f"computed with {config.finetune.checkpoint}"
    say(f"{path}: {counted(len(store), 'frame')}, and {count} to replay, with labels {how}")


def _require_known(config: Config, potential: Potential, old: Store) -> None:
    """Raises ValueError for frames with elements that the checkpoint was not trained on."""
    assert config.finetune.checkpoint is not None
    known = load_one(base_of(config)).card.elements
    unknown = [z for z in old.elements if z > potential.max_z or (known is not None and z not in known)]
    if unknown:
        raise ValueError(
            "finetune.replay must have structures of elements that the checkpoint was trained on, "
            f"{symbols(known) if known else f'up to atomic number {potential.max_z}'}, got {symbols(unknown)}"
        )


def _by_base(
    config: Config, potential: Potential, old: Store, indices: Indices, device: torch.device
) -> Iterator[tuple[Indices, Frames]]:
    """Frames with energies, forces and stress of the potential, and no other labels."""
    stress = "stress" in used_terms(config.loss)
    predictor = Predictor(potential, device=device, dtype=potential.dtype)
    for part in predictor.parts(old, indices, stress=stress):
        frames, size = part.frames, len(part.frames)
        stresses = np.full((size, 3, 3), np.nan) if part.stress is None else part.stress.copy()
        stresses[~frames.pbc.all(1)] = np.nan
        yield (
            part.indices,
            replace(
                frames,
                energy=part.energy,
                forces=part.forces.astype(np.float32),
                stress=stresses.astype(np.float32),
                charges=np.full(frames.num_atoms, np.nan, np.float32),
                dipole=np.full((size, 3), np.nan, np.float32),
            ),
        )


def _as_given(
    config: Config, potential: Potential, old: Store, indices: Indices, device: torch.device
) -> Iterator[tuple[Indices, Frames]]:
    """Frames with their labels; energies relative to the reference energies that were fitted to the new data."""
    assert config.finetune.checkpoint is not None
    before = load_one(base_of(config)).reference_energies.double().cpu().numpy()
    after = potential.reference_energies.detach().double().cpu().numpy()
    shift = np.zeros(len(after))
    shift[list(old.elements)] = after[list(old.elements)] - before[list(old.elements)]
    for start in range(0, len(indices), CHUNK):
        chosen = indices[start : start + CHUNK]
        frames = old.gather(chosen)
        counts = composition(frames.counts, frames.atomic_numbers, len(shift) - 1)
        yield chosen, replace(frames, energy=frames.energy + counts @ shift)


def _add(writer: StoreWriter, store: Store, indices: Indices, frames: Frames) -> None:
    """Adds frames, which came from `indices` of a store, with their origin."""
    files = store.origin_files[indices]
    starts = np.flatnonzero(np.diff(files, prepend=-1))
    for first, end in zip(starts, [*starts[1:], len(indices)], strict=True):
        origins = [store.origin(int(index)) for index in indices[first:end]]
        numbers = np.array([number for _, number in origins], np.int64)
        writer.add(frames.take(np.arange(first, end)), origins[0][0], numbers)
