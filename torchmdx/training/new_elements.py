"""Elements of the data that a potential to fine-tune was not trained on: embeddings and reference energies for them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.models.model_card import symbols
from torchmdx.models.potential import Potential


def new_elements(potential: Potential, elements: Collection[int]) -> tuple[int, ...]:
    """Those of the elements that the potential was not trained on.

    Without a list of its elements, these are elements beyond its tables, and those without a reference energy if others
    have one.
    """
    if potential.card.elements is not None:
        return tuple(sorted(set(elements) - set(potential.card.elements)))
    references = potential.reference_energies
    without = references.any().item() * ~(references.isfinite() & (references != 0))
    beyond = potential.config.max_z
    return tuple(z for z in sorted(set(elements)) if z > beyond or bool(without[z]))


def with_elements(potential: Potential, new: Collection[int], seed: int) -> Potential:
    """The potential with embeddings for new elements, and reference energies of 0 for them.

    The tables grow if they end before these elements. An embedding is drawn at random with mean and standard deviation
    of those that were trained.
    """
    if not new:
        return potential
    size = potential.config.max_z + 1
    grown = _grown(potential, max(new)) if max(new) >= size else potential
    drawn_as: dict[str, Any] = dict(generator=torch.Generator().manual_seed(seed), dtype=torch.float32, device="cpu")
    fresh = torch.tensor(sorted(new), dtype=torch.int64, device="cpu")
    trained = torch.tensor([z for z in _trained(potential) if z not in new], dtype=torch.int64, device="cpu")
    with torch.no_grad():
        grown.reference_energies[fresh] = 0.0
        for table in embeddings(grown).values():
            known = table[trained] if len(trained) > 1 else torch.randn(2, table.shape[1], **drawn_as)
            drawn = torch.randn(len(fresh), table.shape[1], **drawn_as).to(table)
            table[fresh] = known.mean(0) + known.std(0) * drawn
    return grown


def embeddings(potential: Potential) -> dict[str, Tensor]:
    """Embeddings of elements [max_z+1,C] in the network, by name."""
    return {
        f"{name}.weight": module.weight
        for name, module in potential.named_modules()
        if isinstance(module, nn.Embedding) and module.num_embeddings == potential.config.max_z + 1
    }


def require_trainable(potential: Potential, new: Collection[int]) -> None:
    """Raises ValueError if there are new elements and an embedding of elements is frozen."""
    frozen = [name for name, table in embeddings(potential).items() if not table.requires_grad]
    if new and frozen:
        raise ValueError(
            f"finetune.freeze must leave {frozen[0]} trainable for elements that are new to the checkpoint, "
            f"got {symbols(new)}"
        )


def _trained(potential: Potential) -> list[int]:
    """Elements whose embeddings serve as examples."""
    if potential.card.elements is not None:
        return [z for z in potential.card.elements if z <= potential.config.max_z]
    return [z for z in range(1, potential.config.max_z + 1) if bool(potential.reference_energies[z] != 0)]


def _grown(potential: Potential, max_z: int) -> Potential:
    """The same potential with larger tables of elements, zero for those that are added."""
    other = Potential(replace(potential.config, max_z=max_z), potential.prior_configs).to(dtype=potential.dtype)
    other.card = potential.card
    old, size = potential.state_dict(), potential.config.max_z + 1

    def widened(name: str, tensor: Tensor) -> Tensor:
        if old[name].shape == tensor.shape:
            return old[name]
        if old[name].shape != (size, *tensor.shape[1:]):
            raise ValueError(f"{name} of the potential must have a row for each of {size} elements to get more")
        return torch.cat([old[name], tensor.new_zeros(len(tensor) - size, *tensor.shape[1:])])

    other.load_state_dict({name: widened(name, tensor) for name, tensor in other.state_dict().items()})
    return other
