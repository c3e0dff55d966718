"""Heads of a training: which frames belong to which, their split, and the files that they begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchmdx.checkpoints.locate import head_names, split_head, with_head
from torchmdx.datasets.splits import PARTS, Split, count_of, split
from torchmdx.datasets.store import Store
from torchmdx.training.config import Config
from torchmdx.training.data_section import DataSection, files_of

Indices = NDArray[np.int64]
# Parts of a store with replayed frames: those that are trained, and those held out to measure what is forgotten.
REPLAY, OLD = "replay", "old"


@dataclass(frozen=True, eq=False)
class HeadsOfFrames:
    """Names of the heads, the number of each frame's head [F], and the weight of each head in the loss."""

    names: tuple[str, ...]
    of_frames: Indices
    weights: NDArray[np.float64]

    def parts(self, indices: Indices) -> dict[str, Indices]:
        """The frames of each head among these."""
        return {name: indices[self.of_frames[indices] == k] for k, name in enumerate(self.names)}

    def every(self, parts: Split) -> Iterator[tuple[str, Split]]:
        """Each head with its frames of all parts."""
        for name in self.names:
            yield name, {part: self.parts(indices)[name] for part, indices in parts.items()}


def names_of(config: Config) -> tuple[str, ...]:
    """The heads that are trained, the default first; none without data.heads."""
    replay = config.finetune.replay_head
    return tuple(dict.fromkeys([*config.data.heads, *([replay] if replay is not None else [])]))


def heads_of(config: Config, store: Store, parts: Split | None = None) -> HeadsOfFrames | None:
    """The heads of the frames of a store, whose parts may include replayed frames; None without data.heads."""
    if not config.data.heads:
        return None
    names = names_of(config)
    of_frames = _by_file(config.data, store)
    for name in (REPLAY, OLD):
        if parts is not None and name in parts:
            of_frames[parts[name]] = names.index(config.finetune.replay_head or names[0])
    weights = np.array([config.loss.head_weights.get(name, 1.0) for name in names])
    return HeadsOfFrames(names, of_frames, weights)


def _by_file(data: DataSection, store: Store) -> Indices:
    numbers = {file: k for k, files in enumerate(data.heads.values()) for file in files_of(files) or []}
    if len(data.heads) == 1:
        return np.zeros(len(store), np.int64)
    return np.array([numbers.get(source, 0) for source in store.sources], np.int64)[store.origin_files]


def split_by_head(data: DataSection, store: Store, **draw: Any) -> Split:
    """As `split`, with sizes that apply to the frames of each head.

    Copies of a structure are in one part, whatever their heads: a head draws what it lacks, in addition to what
    earlier ones have drawn. Raises ValueError, naming the head, as `split`.
    """
    of_frames, part_of = _by_file(data, store), np.full(int(store.copies.max()) + 1, -1)  # of groups of copies
    for number, name in enumerate(data.heads):
        mine = np.flatnonzero((of_frames == number) & ~store.isolated)
        drawn = part_of[store.copies[mine]]
        free = mine[drawn < 0]
        if len(free):
            try:
                sizes = _lacking(draw, drawn, len(free))
                found = split(store, among=free, **(draw | sizes))
            except ValueError as error:
                raise ValueError(f"the head {name}: {error}") from None
            for part, indices in found.items():
                part_of[store.copies[indices]] = PARTS.index(part)
    parts = np.where(store.isolated, -1, part_of[store.copies])
    return {part: np.flatnonzero(parts == k).astype(np.int64) for k, part in enumerate(PARTS)}


def _lacking(draw: Mapping[str, Any], drawn: Indices, free: int) -> dict[str, int]:
    """How many frames of each part a head has to draw, of `free`, besides those drawn; one is left to train."""
    sizes, left = {}, free - 1
    for part in ("test", "validation"):
        lacking = count_of(part, draw[part], len(drawn)) - int((drawn == PARTS.index(part)).sum())
        sizes[part] = min(max(lacking, 0), left) if len(drawn) > free else max(lacking, 0)
        left -= sizes[part]
    if draw["train"] is not None:
        lacking = count_of("train", draw["train"], len(drawn)) - int((drawn == PARTS.index("train")).sum())
        sizes["train"] = max(lacking, 1)
    return sizes


def beginnings(config: Config) -> Mapping[str, str | Path]:
    """The checkpoint with the head that each head to train begins with."""
    path, known, base = _checkpoint(config)
    return {name: with_head(path, name if name in known else base) or "" for name in names_of(config)}


def base_of(config: Config) -> str | Path:
    """The checkpoint with the head that replayed frames begin with, or a fine-tuning of one head."""
    replay = config.finetune.replay_head
    if replay is not None:
        return beginnings(config)[replay]
    path, _, base = _checkpoint(config)
    return with_head(path, base) or ""


def every_head(config: Config) -> list[str | Path]:
    """The checkpoint with each of its heads, one with a single head as it is."""
    path, known, _ = _checkpoint(config)
    return [with_head(path, name) or "" for name in known] or [path]


def is_known(config: Config, name: str) -> bool:
    """Whether the checkpoint has this head, so that its reference energies are those of the labels."""
    return name in _checkpoint(config)[1] or name == config.finetune.replay_head


def chosen_heads(config: Config) -> str | None:
    """Which heads of a checkpoint with several a fine-tuning takes and which it leaves out; None for another one."""
    path, known, base = _checkpoint(config)
    if not known:
        return None
    names = names_of(config)
    said = [f"{path} has the heads {', '.join(known)}"]
    said += [f"{name} begins with {base}" for name in names or ("the training",) if name not in known]
    if left := [name for name in known if name not in (names or (base,))]:
        said.append(f"{', '.join(left)} will not be in the result")
    return "; ".join(said)


def _checkpoint(config: Config) -> tuple[str | Path, tuple[str, ...], str | None]:
    """The file of the checkpoint, its heads, and the one that new heads begin with; a file with one has no names.

    Raises ValueError for two different choices.
    """
    checkpoint, head = config.finetune.checkpoint, config.finetune.head
    assert checkpoint is not None
    path, named = split_head(checkpoint)
    if named is not None and head not in (None, named):
        raise ValueError(f"finetune.head must be the head of finetune.checkpoint, {named}, got {head}")
    known = head_names(path or checkpoint)
    return path or checkpoint, known, head or named or (known[0] if known else None)
