"""Preparation of a training run: data, and the potential to train."""

from __future__ import annotations

import difflib
import sys

import numpy as np
import torch

from torchmdx.checkpoints.save_load import load_one
from torchmdx.datasets.frames import Frames
from torchmdx.datasets.references import composition, fit_references, isolated_energies
from torchmdx.datasets.store import Store
from torchmdx.evaluation.derivatives import evaluate
from torchmdx.models.heads import MultiHead
from torchmdx.models.model_card import Card, symbols
from torchmdx.models.potential import Potential
from torchmdx.runtime.wording import signed
from torchmdx.training.adapters import add_adapters
from torchmdx.training.config import Config
from torchmdx.training.distributed import launched
from torchmdx.training.heads import base_of, beginnings, every_head, heads_of, is_known, names_of
from torchmdx.training.labelled import label
from torchmdx.training.loss import used_terms
from torchmdx.training.loss_section import LossSection
from torchmdx.training.new_elements import new_elements, require_trainable, with_elements

# Number of frames that suffices for a mean.
SAMPLE = 10_000
CHUNK = 256
CHUNK_OF_FACTS = 4096


def make_potential(config: Config, store: Store, train: np.ndarray, dtype: torch.dtype) -> Potential:
    """A new potential, or the checkpoint to fine-tune; on the CPU, frozen weights without requires_grad.

    With data.heads all heads, each with the constants of its own frames.
    """
    finetune, heads = config.finetune, heads_of(config, store)
    new: tuple[int, ...] = ()
    if finetune.checkpoint is not None:
        new = card_of(store, train).elements or ()
        for source in every_head(config):  # which share the embeddings
            new = new_elements(load_one(source), new)
    of_one = _new_potential if finetune.checkpoint is None else _tuned_potential
    if heads is None:
        potential = of_one(config, store, train, dtype, None, new)
    else:
        parts = heads.parts(train)
        potential = MultiHead(
            {name: of_one(config, store, parts[name], dtype, name, new) for name in heads.names}, heads.names[0]
        )
    if new and not launched():
        print(
            f"new to {finetune.checkpoint}: {symbols(new)}; reference energies are fitted, embeddings are trained",
            file=sys.stderr,
        )
    if finetune.checkpoint is not None:
        for name, weight in potential.named_parameters():
            basis = name.startswith("network.basis.")
            weight.requires_grad_(getattr(potential.config, "trainable_basis", True) or not basis)
    freeze(potential, finetune.freeze)
    require_trainable(potential, new)
    if finetune.lora is not None:
        # Embeddings of elements that the checkpoint does not know have to be trained whole.
        count = add_adapters(potential, finetune.lora, config.training.seed, ("network.embedding",) if new else ())
        if not launched():
            every = sum(weight.numel() for weight in potential.parameters())
            print(f"adapters of rank {finetune.lora}: {count:,} of {every:,} weights are trained", file=sys.stderr)
    return potential.train()


def _tuned_potential(
    config: Config, store: Store, train: np.ndarray, dtype: torch.dtype, head: str | None, new: tuple[int, ...]
) -> Potential:
    """The checkpoint to fine-tune, or one head of it, with elements that are new to it. train: frames of the head."""
    finetune = config.finetune
    source = base_of(config) if head is None else beginnings(config)[head]
    potential = load_one(source, dtype=dtype)
    mine = card_of(store, train) if len(train) else Card()
    fitted = new_elements(potential, mine.elements or ())
    potential = with_elements(potential, new, config.training.seed)
    _require_elements(potential, store, f"the potential {finetune.checkpoint!r}")
    if not len(train):  # only replayed frames, whose labels are those of the checkpoint
        return potential
    potential.card = tuned_card(potential.card, mine)
    if finetune.references == "shift" or not (head is None or is_known(config, head)):
        _shift_references(potential, store, train)
    elif fitted:
        _shift_references(potential, store, train, fitted)
        if fitted != new and not launched():
            print(f"new to {source}: {symbols(fitted)}; reference energies are fitted", file=sys.stderr)
    return potential


def _new_potential(
    config: Config, store: Store, train: np.ndarray, dtype: torch.dtype, head: str | None, new: tuple[int, ...]
) -> Potential:
    """A potential with random weights, and the constants of its training frames."""
    names = names_of(config)
    torch.manual_seed(config.training.seed + (names.index(head) if head is not None else 0))
    potential = Potential(config.model.network(), config.model.prior_configs()).to(dtype=dtype)
    _require_elements(potential, store, "model.max_z")
    potential.card = card_of(store, train)
    potential.reference_energies.copy_(torch.from_numpy(_references(config, store, train, head)))
    scale = config.data.scale
    potential.scale.fill_(_force_scale(store, train) if scale == "forces" else scale)
    return potential


def require_terms(loss: LossSection, potential: Potential) -> None:
    """Raises ValueError for terms of quantities that the potential does not predict."""
    for name in ("charges", "dipole"):
        if name in used_terms(loss) and not potential.predicts_charges:
            raise ValueError(
                f"loss.{name}.weight must be 0 for a model without partial charges (model.name: tensornet2 has them), "
                f"got {loss.terms()[name].weight}"
            )


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
    closed, periodic = True, False
    for start in range(0, len(train), CHUNK_OF_FACTS):
        frames = store.gather(train[start : start + CHUNK_OF_FACTS])
        elements |= set(np.unique(frames.atomic_numbers).tolist())
        charges |= set(np.unique(frames.charge).tolist())
        electrons = np.bincount(frames.frame_index, frames.atomic_numbers, len(frames)) - frames.charge
        closed = closed and not (electrons % 2).any()
        periodic = periodic or bool(frames.pbc.any())
    return Card(elements=tuple(elements), charges=tuple(charges), closed_shell=closed, periodic=periodic)


def tuned_card(before: Card, more: Card) -> Card:
    """The card of a fine-tuned potential: trained on both data sets, and without the name of the first."""
    known = before.elements is not None and before.charges is not None
    return Card(
        description=f"fine-tuned from {before.title}" if before.name else before.description,
        licence=before.licence,
        elements=(*before.elements, *(more.elements or ())) if before.elements is not None else None,
        charges=(*before.charges, *(more.charges or ())) if before.charges is not None else None,
        closed_shell=known and before.closed_shell and more.closed_shell,
        periodic=True if more.periodic else before.periodic,
    )


def _references(config: Config, store: Store, train: np.ndarray, head: str | None) -> np.ndarray:
    given, max_z = config.data.references, config.model.max_z
    if given in ("auto", "fit", "isolated"):
        lone = isolated_energies(store, _of_head(config, store, head)) if given != "fit" else {}
        if "energy" not in store.labels:
            return np.zeros(max_z + 1)
        known, base = (lone, {}) if given == "isolated" else ({}, lone)
        return fit_references(store, train, max_z, known, base)
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


def _of_head(config: Config, store: Store, head: str | None) -> np.ndarray | None:
    """Which frames of a store are those of a head."""
    heads = heads_of(config, store)
    return None if heads is None or head is None else heads.of_frames == heads.names.index(head)


def describe_references(config: Config, store: Store, potential: Potential) -> str | None:
    """Where the reference energies come from, if from isolated atoms; of several heads a line for each."""
    if isinstance(potential, MultiHead):
        said = {name: _described(config, store, potential.one(name), name) for name in potential.heads.names}
        return "\n".join(f"head {name}: {text}" for name, text in said.items() if text is not None) or None
    return _described(config, store, potential, None)


def _described(config: Config, store: Store, potential: Potential, head: str | None) -> str | None:
    known, given = isolated_energies(store, _of_head(config, store, head)), config.data.references
    if config.finetune.checkpoint is not None or given not in ("auto", "isolated") or not known:
        return None
    fitted = [z for z in store.elements if z not in known]
    rest = f", least squares for {symbols(fitted)}" if fitted else ""
    said = f"reference energies: isolated atoms of {symbols(known)}"
    if given == "isolated":
        return said + rest
    used = potential.reference_energies.tolist()
    constants = ", ".join(f"{signed(used[z] - energy)} eV" for z, energy in known.items())
    return f"{said}, plus fitted constants of {constants}{rest}"


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


def _shift_references(
    potential: Potential, store: Store, train: np.ndarray, elements: tuple[int, ...] | None = None
) -> None:
    """Adds to the references a least-squares fit to the difference between labels and potential.

    Args:
        elements: Those whose references are fitted, from the frames that contain them; None: all.
    """
    sample = _sample(train if elements is None else _containing(store, train, elements), SAMPLE)
    rows, differences = [], []
    for start in range(0, len(sample), CHUNK // 8):
        indices = sample[start : start + CHUNK // 8]
        frames = store.gather(indices)
        has_energy = frames.has_energy
        counts = composition(frames.counts, frames.atomic_numbers, potential.config.max_z)[has_energy]
        rows.append(counts if elements is None else counts * np.isin(np.arange(counts.shape[1]), elements))
        differences.append((frames.energy - _energies(potential, frames, indices))[has_energy])
    if not sum(len(part) for part in differences):
        if elements is not None:
            return  # without energies, references have no effect
        raise ValueError("finetune.references: shift needs frames with an energy, got none")
    shift = np.linalg.lstsq(np.concatenate(rows), np.concatenate(differences), rcond=1e-10)[0]
    potential.reference_energies += torch.from_numpy(shift)


def _containing(store: Store, train: np.ndarray, elements: tuple[int, ...]) -> np.ndarray:
    """The frames that have one of the elements."""
    found = []
    for start in range(0, len(train), CHUNK_OF_FACTS):
        indices = train[start : start + CHUNK_OF_FACTS]
        frames = store.gather(indices)
        of_frame = np.bincount(frames.frame_index, np.isin(frames.atomic_numbers, elements), len(frames))
        found.append(indices[of_frame > 0])
    return np.concatenate(found)


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
