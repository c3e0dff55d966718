"""The ensemble of a training with several seeds: members on other frames, and spreads that are as large as errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from torchmdx.checkpoints.formats import own
from torchmdx.checkpoints.formats.ensemble import pack
from torchmdx.checkpoints.locate import opened
from torchmdx.checkpoints.run_folder import BEST, MEMBER, TOGETHER
from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.splits import Split, join_copies, read_split, split
from torchmdx.datasets.store import Store
from torchmdx.models.ensemble import UNCALIBRATED, Ensemble
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.runtime.files import write_whole
from torchmdx.runtime.wording import counted, number
from torchmdx.training.begin import SPLIT
from torchmdx.training.config import Config
from torchmdx.training.heads import heads_of
from torchmdx.training.open_data import open_store

FEWEST = 10  # frames, from which factors are taken


def resampled(config: Config, store: Store, parts: Split) -> Split:
    """The parts of one member: the same test set, and a draw of its own, by its seed, of training and validation."""
    heads, drawn = heads_of(config, store), []
    every = [parts] if heads is None else [mine for _, mine in heads.every(parts) if len(mine["train"])]
    for mine in every:
        pool = np.sort(np.concatenate([mine["train"], mine["validation"]]))
        sizes = {"train": len(mine["train"]), "validation": len(mine["validation"])}
        drawn.append(split(store, among=pool, seed=config.training.seed, test=0, by=config.data.split_by, **sizes))
    joined = {name: np.concatenate([one[name] for one in drawn]) for name in ("train", "validation")}
    if heads is not None:
        joined = join_copies(joined | {"test": parts["test"]}, store.copies)
    return parts | {name: np.sort(joined[name]).astype(np.int64) for name in ("train", "validation")}


def calibrate(config: Config, device: torch.device) -> None:
    """Writes all members into one file, with the factors by which their spreads are as large as the errors.

    The errors are those on frames that no member was trained on: the validation frames, or with training.resample the
    test frames. With fewer than ten of them, the factors are 1.
    """
    directory = Path(config.output.directory)
    places = [directory / f"{MEMBER}{k}" for k in range(config.training.ensemble)]
    store = open_store(config.data, directory, update=False)
    name = "test" if config.training.resample else "validation"
    held_out, heads = read_split(places[0] / SPLIT, store)[name], heads_of(config, store)
    parts = {"": held_out} if heads is None else heads.parts(held_out)
    found: dict[str, tuple[float, float]] = {}
    for head, frames in parts.items():
        members = [load_one(place / BEST, head=head or None, device=device) for place in places]
        ensemble = Ensemble(members, [place.name for place in places])
        found[head] = factors_of(ensemble, store, frames) if len(frames) >= FEWEST else UNCALIBRATED
    files = [own.deserialized(opened(place / BEST)) for place in places]
    write_whole(directory / TOGETHER, pack(files, found[""] if heads is None else found))
    for head, factors in found.items():
        energy, forces = map(number, factors)
        how = (
            f"by the errors of {counted(len(parts[head]), 'frame')} of {name}"
            if factors != UNCALIBRATED
            else "uncalibrated"
        )
        of = f" of the head {head}" if head else ""
        print(f"{directory / TOGETHER}  spreads{of} times {energy} (energy) and {forces} (forces), {how}")


def factors_of(ensemble: Ensemble, store: Store, indices: np.ndarray) -> tuple[float, float]:
    """Root mean square errors over spreads, of energies per atom and forces on atoms; 1 if there are none."""
    sets = {"": (store, indices)}
    errors = evaluate_sets(ensemble, sets, device=ensemble.device, dtype=ensemble.dtype).errors[""]
    found = [one.ratio for one in (errors.energy_spread, errors.forces_spread)]
    energy, forces = (ratio if math.isfinite(ratio) and ratio > 0 else 1.0 for ratio in found)
    return energy, forces
