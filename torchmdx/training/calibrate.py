"""The ensemble of a training with several seeds: members on other frames, and spreads that are as large as errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from torchmdx.checkpoints.run_folder import BEST, MEMBER, TOGETHER
from torchmdx.checkpoints.save_load import load_one, save
from torchmdx.datasets.splits import Split, read_split, split
from torchmdx.datasets.store import Store
from torchmdx.models.ensemble import UNCALIBRATED, Ensemble
from torchmdx.report.evaluation import evaluate_sets
from torchmdx.runtime.wording import counted, number
from torchmdx.training.begin import SPLIT
from torchmdx.training.config import Config
from torchmdx.training.open_data import open_store

FEWEST = 10  # frames, from which factors are taken


def resampled(config: Config, store: Store, parts: Split) -> Split:
    """The parts of one member: the same test set, and a draw of its own, by its seed, of training and validation."""
    pool = np.sort(np.concatenate([parts["train"], parts["validation"]]))
    sizes = {"train": len(parts["train"]), "validation": len(parts["validation"])}
    drawn = split(store, among=pool, seed=config.training.seed, test=0, by=config.data.split_by, **sizes)
    return parts | {name: drawn[name] for name in sizes}


def calibrate(config: Config, device: torch.device) -> None:
    """Writes all members into one file, with the factors by which their spreads are as large as the errors.

    The errors are those on frames that no member was trained on: the validation frames, or with training.resample the
    test frames. With fewer than ten of them, the factors are 1.
    """
    directory = Path(config.output.directory)
    places = [directory / f"{MEMBER}{k}" for k in range(config.training.ensemble)]
    members = [load_one(place / BEST, device=device) for place in places]
    names = [place.name for place in places]
    store = open_store(config.data, directory, update=False)
    name = "test" if config.training.resample else "validation"
    held_out = read_split(places[0] / SPLIT, store)[name]
    ensemble = Ensemble(members, names)
    factors = UNCALIBRATED
    if len(held_out) >= FEWEST:
        factors = factors_of(ensemble, store, held_out)
    save(Ensemble(members, names, factors), directory / TOGETHER)
    energy, forces = map(number, factors)
    how = f"by the errors of {counted(len(held_out), 'frame')} of {name}" if factors != UNCALIBRATED else "uncalibrated"
    print(f"{directory / TOGETHER}  spreads times {energy} (energy) and {forces} (forces), {how}")


def factors_of(ensemble: Ensemble, store: Store, indices: np.ndarray) -> tuple[float, float]:
    """Root mean square errors over spreads, of energies per atom and forces on atoms; 1 if there are none."""
    sets = {"": (store, indices)}
    errors = evaluate_sets(ensemble, sets, device=ensemble.device, dtype=ensemble.dtype).errors[""]
    found = [one.ratio for one in (errors.energy_spread, errors.forces_spread)]
    energy, forces = (ratio if math.isfinite(ratio) and ratio > 0 else 1.0 for ratio in found)
    return energy, forces
