"""Preparation of a training run: data, and the potential to train."""

from __future__ import annotations

import difflib
import sys
from functools import partial
from pathlib import Path

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
from torchmdx.training.config import Config
from torchmdx.training.data_section import DataSection
from torchmdx.training.distributed import launched
from torchmdx.training.labelled import label
from torchmdx.training.loss import used_terms

# Number of frames that suffices for a mean.
SAMPLE = 10_000
CHUNK = 256
CHUNK_OF_FACTS = 4096
# The store of converted files, in the directory of a run.
CONVERTED = "data.store"


def open_data(data: DataSection, directory: Path, several: bool = False) -> tuple[Store, Split]:
    """The store and its split. Raises FileNotFoundError; ValueError, also for a split without training frames."""
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
    """The store at data.path, or the store in `directory` to which the files at data.path are converted, once.

    several: whether other nodes run this too; data.path must be a store then.
    """
    paths = [data.path] if isinstance(data.path, str) else data.path
    if not paths or not all(paths):
        raise ValueError("data.path must name a store written by `torchmdx data convert`, or files, got nothing")
    if len(paths) == 1 and Store.is_store(paths[0]):
        given = data.given_reading()
        if given:
            raise ValueError(f"data.{given[0]} applies to files, but {paths[0]!r} is a store, in eV and Å")
        return Store.open(paths[0])
    converted = directory / CONVERTED
    if not Store.is_store(converted):
        if launched() or several:
            raise ValueError(
                f"data.path must be a store for training with several processes, got {len(paths)} files; "
                f"convert them with torchmdx data convert {' '.join(paths)} -o STORE"
            )
        from torchmdx.datasets.convert import convert

        report = convert(paths, converted, **data.reading(), log=partial(print, file=sys.stderr))
        print(f"{converted}: {report.num_frames:,} frames, {report.num_atoms:,} atoms", file=sys.stderr)
    return Store.open(converted)


def require_usable(config: Config, store: Store, parts: Split) -> None:
    """Raises ValueError if the data do not fit this configuration."""
    for term in used_terms(config.loss):
        if term not in store.labels:
            raise ValueError(
                f"loss.{term}.weight must be 0 for data without such labels: {str(store.path)!r} has "
                f"{', '.join(sorted(store.labels)) or 'none'}, got {getattr(config.loss, term).weight}"
            )
    if len(parts["validation"]) == 0:
        needs_validation = {
            "schedule.name: plateau": config.schedule.name == "plateau",
            f"training.stop_after: {config.training.stop_after}": config.training.stop_after is not None,
        }
        for name, needed in needs_validation.items():
            if needed:
                raise ValueError(f"{name} needs validation frames, got a split without")


def make_potential(config: Config, store: Store, train: np.ndarray, dtype: torch.dtype) -> Potential:
    """A new potential, or the checkpoint to fine-tune; on the CPU, frozen weights without requires_grad."""
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
    """Freezes the weights and modules with these names. Raises ValueError for unknown names."""
    weights = dict(potential.named_parameters())
    modules = [name for name, _ in potential.named_modules() if name]
    for name in names:
        chosen = [weight for full, weight in weights.items() if full == name or full.startswith(f"{name}.")]
        if not chosen:
            near = difflib.get_close_matches(name, [*modules, *weights], 1, 0.4)
            raise ValueError(
                f"finetune.freeze must name modules or weights of the potential, got {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        for weight in chosen:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ValueError(f"finetune.freeze must leave trainable weights, got {names}")


def _require_elements(potential: Potential, store: Store, what: str) -> None:
    most = max(store.elements)
    if most > potential.max_z:
        raise ValueError(
            f"{what} must cover atomic number {most}, which occurs in {str(store.path)!r}, got {potential.max_z}"
        )


def card_of(store: Store, train: np.ndarray) -> Card:
    """The card of a potential trained on these frames."""
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
    """The card of a fine-tuned potential: trained on both data sets, and without the name of the first."""
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
                raise ValueError(f"keys of data.references must be atomic numbers from 1 to {max_z}, got {number}")
            references[number] = energy
        missing = [number for number in store.elements if number not in given]
        if missing:
            raise ValueError(f"data.references must include every element of the data, got none for {missing}")
    return references


def _sample(train: np.ndarray, most: int) -> np.ndarray:
    """At most `most` of the frames, evenly spaced."""
    return train[:: max(1, -(-len(train) // most))]


def _force_scale(store: Store, train: np.ndarray) -> float:
    """Root mean square of force components, eV/Å, used as scale of the network output; 1 without forces."""
    total, count = 0.0, 0
    sample = _sample(train, SAMPLE)
    for start in range(0, len(sample), CHUNK):
        frames = store.gather(sample[start : start + CHUNK])
        forces = frames.forces[~np.isnan(frames.forces[:, 0])].astype(np.float64)
        total, count = total + float((forces**2).sum()), count + forces.size
    return float(np.sqrt(total / count)) if total > 0 else 1.0


def _shift_references(potential: Potential, store: Store, train: np.ndarray) -> None:
    """Adds to the references a least-squares fit to the difference between labels and potential."""
    sample = _sample(train, SAMPLE)
    rows, differences = [], []
    for start in range(0, len(sample), CHUNK // 8):
        indices = sample[start : start + CHUNK // 8]
        frames = store.gather(indices)
        has_energy = frames.has_energy
        rows.append(composition(frames.counts, frames.atomic_numbers, potential.config.max_z)[has_energy])
        differences.append((frames.energy - _energies(potential, frames, indices))[has_energy])
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
