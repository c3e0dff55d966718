"""The data of a training run: one store of all files, and its parts."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from torchmdx.datasets.conversion import convert
from torchmdx.datasets.source_state import changed, source_state
from torchmdx.datasets.splits import Split, read_split, split
from torchmdx.datasets.store import Store, is_isolated
from torchmdx.runtime.wording import counted
from torchmdx.training.config import Config
from torchmdx.training.data_section import DataSection
from torchmdx.training.distributed import launched
from torchmdx.training.heads import split_by_head
from torchmdx.training.labelled import NO_TYPE
from torchmdx.training.loss import used_terms

# The store of converted files, in the directory of a run.
CONVERTED = "data.store"


def say(text: str) -> None:
    """Prints a line to stderr."""
    print(text, file=sys.stderr)


def open_data(data: DataSection, directory: Path, several: bool = False, update: bool = True) -> tuple[Store, Split]:
    """The store and its parts, without isolated atoms. Arguments as of `open_store`.

    Raises:
        FileNotFoundError: Also for a split without training frames.
        ValueError: Also for a split without training frames.
    """
    store = open_store(data, directory, several, update)
    parts = _parts(data, store) if data.split is None else read_split(data.split, store)
    parts = {name: indices[~store.isolated[indices]] for name, indices in parts.items()}
    if len(parts["train"]) == 0:
        raise ValueError(f"the split has no training frames, of {len(store)} in {str(store.path)!r}")
    return store, parts


def open_store(data: DataSection, directory: Path, several: bool = False, update: bool = True) -> Store:
    """The store at data.path, or the store in `directory` to which all files of the data are converted.

    Args:
        several: Whether other nodes run this too; data.path must be a store then.
        update: Whether the files are converted again if they have changed since; otherwise a run continues with the
            frames it has.
    """
    pool, files = data.pool_files(), _files(data)
    if not pool:
        raise ValueError("data.path must name a store written by `torchmdx data convert`, or files, got nothing")
    if len(files) == 1 and Store.is_store(pool[0]):
        given = data.given_reading()
        if given:
            raise ValueError(f"data.{given[0]} applies to files, but {pool[0]!r} is a store, in eV and Å")
        return Store.open(pool[0])
    converted = directory / CONVERTED
    exists = Store.is_store(converted)
    if exists:
        store = Store.open(converted)
        different = changed(source_state(files, data.reading().plain()), store.made_from)
        if not different or not update:
            return store
        say(f"{converted} is out of date, because of {', '.join(different)}: the files are converted again")
    if launched() or several:
        raise ValueError(
            f"data.path must be a store for training with several processes, got {len(files)} files; "
            f"convert them with torchmdx data convert {' '.join(files)} -o STORE"
        )
    report = convert(list(files), converted, **data.reading().plain(), overwrite=exists, log=say)
    say(f"{converted}: {counted(report.num_frames, 'frame')}, {counted(report.num_atoms, 'atom')}")
    return Store.open(converted)


def warn_of_changes(data: DataSection, directory: Path) -> None:
    """Says that a resumed run does not see what has changed in its files. Files that were moved are the same."""
    converted, files = directory / CONVERTED, _files(data)
    if not Store.is_store(converted) or (len(files) == 1 and Store.is_store(next(iter(files)))):
        return
    before = (Store.open(converted).made_from or {}).get("files", {})
    if list(source_state(files, {})["files"].values()) != list(before.values()):
        say(f"warning: the files of the data have changed since {str(converted)!r} was made; the run continues with it")


def _files(data: DataSection) -> dict[str, str]:
    """The part of every file, the pool from which parts are drawn first. Raises ValueError for a file in two parts."""
    parts = {"train": data.pool_files(), **{name: f for name, f in data.part_files().items() if name != "train"}}
    found: dict[str, str] = {}
    for part, files in parts.items():
        for file in files:
            if file in found:
                where = "two" if data.heads else f"{found[file]} and {part}"
                what = "of one head" if data.heads else "in one part of the data"
                raise ValueError(f"a file must be {what}, got {file!r} in {where}")
            found[file] = part
    return found


def _parts(data: DataSection, store: Store) -> Split:
    """The frames of the files of each part, and those that are drawn from the others."""
    draw = dict(seed=data.seed, by=data.split_by, **data.sizes())
    if data.heads:
        return split_by_head(data, store, **draw)
    given = {name: files for name, files in data.part_files().items() if name != "train"}
    if not given:
        return split(store, **draw)
    files = _files(data)
    part_of = np.array([files[name] for name in store.sources])[store.origin_files]
    pool = np.flatnonzero(part_of == "train")
    # Frames that are copies of frames of another part are in no part: errors on that part would be too small.
    copied = np.isin(store.copies[pool], store.copies[part_of != "train"])
    parts = split(store, among=pool[~copied], **draw)
    for name, named in given.items():
        parts[name] = np.flatnonzero((part_of == name) & ~store.isolated)
        if not len(parts[name]):
            raise ValueError(f"data.{name} must have at least one frame, got none in {', '.join(named)}")
    return parts


def require_usable(config: Config, store: Store, parts: Split) -> None:
    """Raises ValueError if the data do not fit this configuration."""
    for term in used_terms(config.loss):
        if term not in store.labels:
            raise ValueError(
                f"loss.{term}.weight must be 0 for data without such labels: {str(store.path)!r} has "
                f"{', '.join(sorted(store.labels)) or 'none'}, got {getattr(config.loss, term).weight}"
            )
    types = [name or NO_TYPE for name in store.config_types if not is_isolated(name)]
    for name in config.loss.config_type_weights:
        if name not in types:
            raise ValueError(
                f"loss.config_type_weights must name types of {str(store.path)!r}: {', '.join(types)}, got {name!r}"
            )
    if len(parts["validation"]) == 0:
        needs_validation = {
            "schedule.name: plateau": config.schedule.name == "plateau",
            f"training.stop_after: {config.training.stop_after}": config.training.stop_after is not None,
        }
        for name, needed in needs_validation.items():
            if needed:
                raise ValueError(f"{name} needs validation frames, got a split without")
