"""From a configuration and its data to the potential that is trained."""

from __future__ import annotations

import difflib
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import composition, fit_references
from torchmdx.datasets.splits import Split, read_split, split
from torchmdx.datasets.store import Store
from torchmdx.evaluate import evaluate
from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.training.config import Config, DataSection
from torchmdx.training.distributed import launched
from torchmdx.training.labelled import label
from torchmdx.training.loss import used_terms

# Frames that are enough for a mean.
SAMPLE = 10_000
CHUNK = 256
CHUNK_OF_FACTS = 4096
# In a run's directory: files of users, packed.
CONVERTED = "data.store"


def open_data(data: DataSection, directory: Path, several: bool = False) -> tuple[Store, Split]:
    """The store and its parts. Raises FileNotFoundError and ValueError, for a part without frames as well."""
    store = open_store(data, directory, several)
    if data.split is not None:
        parts = read_split(data.split, store)
    else:
        parts = split(
            store, train=data.train, validation=data.validation, test=data.test, seed=data.seed, by=data.split_by
        )
    if len(parts["train"]) == 0:
        raise ValueError(f"the split has no training frames, of {len(store)} in {str(store.path)!r}")
    return store, parts


def open_store(data: DataSection, directory: Path, several: bool = False) -> Store:
    """The store that is named, or the one in `directory` that the named files are converted to, once.

    several: whether others do the same at the same time; then there must be a store.
    """
    paths = [data.path] if isinstance(data.path, str) else data.path
    if not paths or not all(paths):
        raise ValueError("data.path must name a store that `torchmdx data convert` made, or files, got nothing")
    units: Any = {"energy_unit": data.energy_unit, "length_unit": data.length_unit, "force_unit": data.force_unit}
    if len(paths) == 1 and Store.is_store(paths[0]):
        given = [name for name, unit in units.items() if unit is not None]
        if given:
            raise ValueError(f"data.{given[0]} applies to files, but {paths[0]!r} is a store, in eV and Å")
        return Store.open(paths[0])
    converted = directory / CONVERTED
    if not Store.is_store(converted):
        if launched() or several:
            raise ValueError(
                f"several processes need a store of their data: torchmdx data convert {' '.join(paths)} -o STORE, "
                f"and data.path STORE, got {len(paths)} files"
            )
        from torchmdx.datasets.convert import convert

        report = convert(paths, converted, **units, broken=data.broken, log=partial(print, file=sys.stderr))
        print(f"{converted}: {report.num_frames:,} frames, {report.num_atoms:,} atoms", file=sys.stderr)
    return Store.open(converted)


def require_usable(config: Config, store: Store, parts: Split) -> None:
    """Raises ValueError where the data cannot serve this configuration."""
    for term in used_terms(config.loss):
        if term not in store.labels:
            raise ValueError(
                f"loss.{term}.weight must be 0 for data without such labels: {str(store.path)!r} has "
                f"{', '.join(sorted(store.labels)) or 'none'}, got {getattr(config.loss, term).weight}"
            )
    if len(parts["validation"]) == 0:
        wants = {
            "schedule.name: plateau": config.schedule.name == "plateau",
            f"training.stop_after: {config.training.stop_after}": config.training.stop_after is not None,
        }
        for name, wanted in wants.items():
            if wanted:
                raise ValueError(f"{name} needs validation frames, got a split without any")


def make_potential(config: Config, store: Store, train: np.ndarray, dtype: torch.dtype) -> Potential:
    """New, from the seed, or the checkpoint to fine-tune; on the CPU, with what is frozen not requiring gradients."""
    finetune = config.finetune
    if finetune.checkpoint is not None:
        potential = load_one(finetune.checkpoint, dtype=dtype)
        _require_elements(potential, store, f"the potential {finetune.checkpoint!r}")
        potential.card = tuned_card(potential.card, card_of(store, train))
        if finetune.references == "shift":
            _shift_references(potential, store, train)
        for name, weight in potential.named_parameters():
            basis = name.startswith("network.basis.")
            weight.requires_grad_(getattr(potential.config, "trainable_basis", True) or not basis)
    else:
        torch.manual_seed(config.training.seed)
        potential = Potential(config.model.network(), config.model.prior_configs()).to(dtype=dtype)
        _require_elements(potential, store, "model.max_z")
        potential.card = card_of(store, train)
        potential.reference_energies.copy_(torch.from_numpy(_references(config, store, train)))
        scale = config.data.scale
        potential.scale.fill_(_force_scale(store, train) if scale == "forces" else scale)
    freeze(potential, finetune.freeze)
    return potential.train()


def freeze(potential: Potential, names: list[str]) -> None:
    """Weights whose name is one of these, or begins with one and a dot, stay. Raises ValueError for other names."""
    weights = dict(potential.named_parameters())
    modules = [name for name, _ in potential.named_modules() if name]
    for name in names:
        chosen = [weight for full, weight in weights.items() if full == name or full.startswith(f"{name}.")]
        if not chosen:
            near = difflib.get_close_matches(name, [*modules, *weights], 1, 0.4)
            raise ValueError(
                f"finetune.freeze must name parts of the potential, got {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        for weight in chosen:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ValueError(f"finetune.freeze must leave something to train, got {names}")


def _require_elements(potential: Potential, store: Store, what: str) -> None:
    most = max(store.elements)
    if most > potential.max_z:
        raise ValueError(
            f"{what} must know elements up to {most}, which occurs in {str(store.path)!r}, got {potential.max_z}"
        )


def card_of(store: Store, train: np.ndarray) -> Card:
    """What a potential that sees these frames is trained on."""
    elements: set[int] = set()
    charges: set[float] = set()
    closed = True
    for start in range(0, len(train), CHUNK_OF_FACTS):
        frames = store.gather(train[start : start + CHUNK_OF_FACTS])
        elements |= set(np.unique(frames.atomic_numbers).tolist())
        charges |= set(np.unique(frames.charge).tolist())
        electrons = np.bincount(frames.frame_index, frames.atomic_numbers, len(frames)) - frames.charge
        closed = closed and not (electrons % 2).any()
    return Card(elements=tuple(elements), charges=tuple(charges), closed_shell=closed)


def tuned_card(before: Card, more: Card) -> Card:
    """Of a potential that was fine-tuned: it has seen both, and is no longer what its name says."""
    known = before.elements is not None and before.charges is not None
    return Card(
        description=f"fine-tuned from {before.title}" if before.name else before.description,
        licence=before.licence,
        elements=(*before.elements, *(more.elements or ())) if before.elements is not None else None,
        charges=(*before.charges, *(more.charges or ())) if before.charges is not None else None,
        closed_shell=known and before.closed_shell and more.closed_shell,
    )


def _references(config: Config, store: Store, train: np.ndarray) -> np.ndarray:
    given, max_z = config.data.references, config.model.max_z
    if given == "fit":
        return fit_references(store, train, max_z) if "energy" in store.labels else np.zeros(max_z + 1)
    references = np.zeros(max_z + 1)
    if isinstance(given, dict):
        for number, energy in given.items():
            if not 1 <= number <= max_z:
                raise ValueError(f"data.references must be of atomic numbers from 1 to {max_z}, got {number}")
            references[number] = energy
        missing = [number for number in store.elements if number not in given]
        if missing:
            raise ValueError(f"data.references must have every element of the data, got none for {missing}")
    return references


def _sample(train: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the frames, evenly spread."""
    return train[:: max(1, -(-len(train) // most))]


def _force_scale(store: Store, train: np.ndarray) -> float:
    """Root mean square of force components, eV/Å: about what a unit of output is worth. 1 without forces."""
    total, count = 0.0, 0
    sample = _sample(train, SAMPLE)
    for start in range(0, len(sample), CHUNK):
        frames = store.gather(sample[start : start + CHUNK])
        forces = frames.forces[~np.isnan(frames.forces[:, 0])].astype(np.float64)
        total, count = total + float((forces**2).sum()), count + forces.size
    return float(np.sqrt(total / count)) if total > 0 else 1.0


def _shift_references(potential: Potential, store: Store, train: np.ndarray) -> None:
    """Adds to the references what fits the labels' difference from the potential, by least squares."""
    sample = _sample(train, SAMPLE)
    rows, differences = [], []
    for start in range(0, len(sample), CHUNK // 8):
        indices = sample[start : start + CHUNK // 8]
        frames = store.gather(indices)
        there = frames.has_energy
        rows.append(composition(frames.counts, frames.atomic_numbers, potential.config.max_z)[there])
        differences.append((frames.energy - _energies(potential, frames, indices))[there])
    if not sum(len(part) for part in differences):
        raise ValueError("finetune.references: shift needs frames with an energy, got none")
    shift = np.linalg.lstsq(np.concatenate(rows), np.concatenate(differences), rcond=1e-10)[0]
    potential.reference_energies += torch.from_numpy(shift)


def _energies(potential: Potential, frames: Frames, indices: np.ndarray) -> np.ndarray:
    labelled = label(
        frames,
        indices,
        num_atoms=frames.num_atoms,
        num_systems=len(frames),
        cutoff=potential.cutoff,
        dtype=potential.dtype,
    )
    with torch.no_grad():
        found: np.ndarray = evaluate(potential, labelled.batch, forces=False).energy[: len(frames)].numpy()
    return found
