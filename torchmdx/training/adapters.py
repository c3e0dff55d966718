"""Low-rank adapters (LoRA, arXiv 2106.09685): small corrections of the linear maps of a potential to fine-tune.

::

    W = W0 + B A        W0 [out,in] frozen, A [rank,in] random, B [out,rank] zero at first

Files that a training writes have W: a potential with adapters exists only during the training.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchmdx.models.heads import MultiHead
from torchmdx.models.potential import Potential


class LowRank(nn.Module):
    """The weight W of a linear map from W0, by A and B."""

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        first = torch.randn(rank, columns, generator=generator, dtype=torch.float64) / columns**0.5
        self.down = nn.Parameter(first.to(weight.dtype).to(weight.device))
        self.up = nn.Parameter(weight.new_zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """W [out,in]."""
        return weight + self.up @ self.down


def add_adapters(potential: Potential, rank: int, seed: int, kept: tuple[str, ...] = ()) -> int:
    """Freezes all weights but those whose names begin with `kept`, and adds adapters; returns the number trained.

    Linear maps that are frozen already, or are smaller than the rank, get none.

    Raises:
        ValueError: If none is left.
    """
    generator = torch.Generator().manual_seed(seed)
    maps = [
        module
        for name, module in potential.named_modules()
        if isinstance(module, nn.Linear)
        and module.weight.requires_grad
        and min(module.weight.shape) > rank
        and not name.startswith(kept or ("\0",))
    ]
    if not maps:
        raise ValueError(
            f"finetune.lora must be smaller than a linear map of the potential that is not frozen, got {rank}"
        )
    for name, weight in potential.named_parameters():
        if not name.startswith(kept or ("\0",)):
            weight.requires_grad_(False)
    for module in maps:
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, rank, generator))
    return sum(weight.numel() for weight in potential.parameters() if weight.requires_grad)


def merged(potential: Potential) -> Potential:
    """The potential itself, or another one with its adapters in the weights."""
    adapted = {name: one for name, one in potential.named_modules() if parametrize.is_parametrized(one, "weight")}
    if not adapted:
        return potential
    state = {name: tensor for name, tensor in potential.state_dict().items() if ".parametrizations." not in name}
    state |= {f"{name}.weight": cast(Tensor, module.weight).detach() for name, module in adapted.items()}
    found = Potential(potential.config, potential.prior_configs)
    if isinstance(potential, MultiHead):
        cards = dict(zip(potential.heads.names, potential.cards, strict=True))
        parts = {name: Potential(potential.config, potential.prior_configs) for name in cards}
        for name, card in cards.items():
            parts[name].card = card
        found = MultiHead(parts, potential.heads.default)
    found.to(dtype=potential.dtype, device=potential.device).load_state_dict(state)
    found.card = potential.card
    return found.eval()
