"""Partial charges of atoms that add up to the charge of their system."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdx.models.tensors import part_norms
from torchmdx.system import Batch

# Added to every atom's share of what is missing: far below any share that training makes, it keeps a system whose
# shares all vanish from dividing by zero. Per atom, so that an atom's share in two copies is half of that in one.
LEAST_SHARE = 1e-12


class ChargeEquilibration(nn.Module):
    """q_i = p_i + s_i / (Σ_j s_j + slack) · (Q - Σ_j p_j),  s_i = f_i²,  sums over the atoms of a system

    | variable | symbol |
    |---|---|
    | first, spread | p, f [N,K], of a network: charges proposed, and how much of what is missing an atom takes |
    | charge | Q [S], total charge of a system |

    Each of the K channels is a set of charges of its own. Without slack each adds up to Q.
    """

    def __init__(self, num_channels: int, num_charges: int, activation: nn.Module, slack: float) -> None:
        super().__init__()
        self.slack = slack
        self.norm = nn.LayerNorm(3 * num_channels)
        self.network = nn.Sequential(
            nn.Linear(3 * num_channels, num_channels),
            activation,
            nn.Linear(num_channels, num_channels),
            activation,
            nn.Linear(num_channels, 2 * num_charges),
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Charges [N,K], e, from tensors [N,9,C]."""
        _, vector, symmetric = part_norms(x)
        invariants = torch.cat([x[:, 0], vector, symmetric], dim=-1)
        first, spread = self.network(self.norm(invariants)).chunk(2, dim=-1)
        return equilibrated(first, spread, batch, self.slack)


def equilibrated(first: Tensor, spread: Tensor, batch: Batch, slack: float) -> Tensor:
    """Charges [N,K] from those proposed [N,K] and the square root of each atom's share [N,K] of what is missing."""
    share = spread**2 + LEAST_SHARE
    sums = first.new_zeros(2, batch.num_systems, first.shape[1])
    proposed, shares = sums.index_add(1, batch.system_index, torch.stack([first, share])).unbind(0)
    missing = (batch.charge[:, None] - proposed).index_select(0, batch.system_index)
    return first + share / (shares + slack).index_select(0, batch.system_index) * missing


def conserved(charges: Tensor, batch: Batch) -> Tensor:
    """Charges [N] moved equally within each system, so that they add up to its charge; float64, so to rounding."""
    charges = charges.double()
    sums = charges.new_zeros(batch.num_systems).index_add(0, batch.system_index, charges)
    missing = (batch.charge - sums) / batch.counts().clamp(min=1)
    return charges + missing.index_select(0, batch.system_index)
