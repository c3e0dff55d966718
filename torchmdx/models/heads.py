"""Several heads on one network: potentials of several levels of theory that share all other weights.

A head is the last layers, with their scale, shift and reference energies. Evaluations use one head, by which a
potential is an ordinary one; only a training evaluates all of them, each for its own systems of a batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from torchmdx.models.model_card import Card
from torchmdx.models.potential import Potential
from torchmdx.structures.system import Batch

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")  # also that of a folder


@dataclass(frozen=True)
class HeadNames:
    """Names of the heads of a file, and the one that is used unless another is chosen."""

    names: tuple[str, ...]
    default: str

    def index(self, name: str | None, origin: str) -> int:
        """The number of a head; None: the default. Raises ValueError, naming `origin`, for an unknown one."""
        if name is not None and name not in self.names:
            raise ValueError(f"{origin} has the heads {', '.join(self.names)}, got {name!r}")
        return self.names.index(self.default if name is None else name)


def require_head_name(name: str) -> None:
    """Raises ValueError unless a name can be that of a head."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(
            f"the name of a head must consist of letters, digits, _, ., + and -, and not begin with one of the "
            f"last three, got {name!r}"
        )


class HeadTable(nn.Module):
    """The last layers of all heads. Outputs [N] of an atom are those of its system's head, see `select`."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.index: Tensor | None = None  # [S], the head of each system
        self.of_atoms: Tensor | None = None  # [N]

    def forward(self, features: Tensor) -> Tensor:
        return self.chosen([part(features) for part in self.parts])

    def chosen(self, outputs: list[Tensor]) -> Tensor:
        """Outputs [N] of the heads of the atoms from those of every head."""
        assert self.of_atoms is not None, "select comes before an evaluation"
        mine = self.of_atoms[:, None] == torch.arange(len(outputs), device=self.of_atoms.device)
        # A mask, unlike an index, has a deterministic gradient.
        return torch.where(mine, torch.stack(outputs, dim=-1), 0.0).sum(-1)


class MultiHead(Potential):
    """A potential in training whose systems have different heads. Saving it writes all heads into one file.

    Attributes:
        scale, shift [H] and reference_energies [H,max_z+1] are those of the heads, cards their cards, uncertainties
            what is known of theirs, which a training forgets.
    """

    def __init__(self, heads: Mapping[str, Potential], default: str) -> None:
        """The network of the first potential, with the last layers and constants of all.

        Raises ValueError for potentials of different configurations or priors.
        """
        for name in heads:
            require_head_name(name)
        potentials = list(heads.values())
        first = potentials[0]
        for name, other in heads.items():
            if (other.config, other.prior_configs) != (first.config, first.prior_configs):
                raise ValueError(f"heads must have the same configuration and priors, {name!r} differs")
        super().__init__(first.config, first.prior_configs, network=first.network)
        self.heads = HeadNames(tuple(heads), default)
        self.cards = [potential.card for potential in potentials]
        self.uncertainties = [potential.uncertainty for potential in potentials]
        self.card = _together(self.cards)
        self.head = HeadTable([potential.head for potential in potentials])
        for constant in ("scale", "shift", "reference_energies"):
            setattr(self, constant, torch.stack([getattr(potential, constant) for potential in potentials]))
        self.to(device=first.device)

    def select(self, index: Tensor, batch: Batch) -> None:
        """Sets the heads [S] of the systems of the batch that is evaluated next."""
        self.head.index, self.head.of_atoms = index, index.index_select(0, batch.system_index)

    def train(self, mode: bool = True) -> MultiHead:
        if mode:
            self.uncertainties = [None for _ in self.cards]
        super().train(mode)
        return self

    def constants(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        index, of_atoms = self.head.index, self.head.of_atoms
        references = self.reference_energies[of_atoms, batch.atomic_numbers]
        return self.scale[of_atoms], references, self.shift[index]

    def one(self, name: str) -> Potential:
        """The potential of one head, which shares its weights."""
        number = self.heads.index(name, "the potential")
        found = Potential(self.config, self.prior_configs, network=self.network)
        found.head = cast(HeadTable, self.head).parts[number]
        for constant in ("scale", "shift", "reference_energies"):
            setattr(found, constant, getattr(self, constant)[number])
        found.card = self.cards[number]
        found = found.to(device=self.device).train(self.training)
        found.uncertainty = self.uncertainties[number]  # which `train` forgets
        return found


def one_head(potential: Potential) -> Potential:
    """The potential of the default head, of another potential itself."""
    return potential.one(potential.heads.default) if isinstance(potential, MultiHead) else potential


def select_heads(potential: Potential, index: Tensor, batch: Batch) -> None:
    """`MultiHead.select`; nothing for other potentials."""
    if isinstance(potential, MultiHead):
        potential.select(index, batch)


def _together(cards: list[Card]) -> Card:
    """Elements that one of the heads was trained on."""
    known = [card.elements for card in cards]
    return Card(elements=None if None in known else tuple(z for one in known for z in one or ()))
