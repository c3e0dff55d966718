"""Partial charges of atoms that sum to the total charge of their system."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdx.models.tensors import part_norms
from torchmdx.structures.system import Batch

# Added to the weight of each atom. It avoids a division by zero if all weights of a system vanish, and is far below
# weights of trained models. It is added per atom, so that an atom in two copies of a system gets half the share.
LEAST_SHARE = 1e-12


class ChargeEquilibration(nn.Module):
    """q_i = p_i + s_i / (Σ_j s_j + slack) · (Q - Σ_j p_j),  s_i = f_i²,  sums over the atoms of a system

    ::

        | variable | symbol |
        |---|---|
        | proposed | p [N,K], charges predicted by a network |
        | root_weight | f [N,K], predicted too: f² weights the share of an atom in the correction |
        | batch.charge | Q [S], total charge of a system |

    Each of the K channels is an independent set of charges. With slack = 0 each set sums to Q.
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
        proposed, root_weight = self.network(self.norm(invariants)).chunk(2, dim=-1)
        return equilibrated(proposed, root_weight, batch, self.slack)


def equilibrated(proposed: Tensor, root_weight: Tensor, batch: Batch, slack: float) -> Tensor:
    """Charges [N,K] from proposed charges [N,K] and the square roots [N,K] of the weights of their corrections."""
    weight = root_weight**2 + LEAST_SHARE
    sums = proposed.new_zeros(2, batch.num_systems, proposed.shape[1])
    charge_sum, weight_sum = sums.index_add(1, batch.system_index, torch.stack([proposed, weight])).unbind(0)
    missing = (batch.charge[:, None] - charge_sum).index_select(0, batch.system_index)
    return proposed + weight / (weight_sum + slack).index_select(0, batch.system_index) * missing


def conserved(charges: Tensor, batch: Batch) -> Tensor:
    """Charges [N], float64, shifted equally within each system so that they sum to its charge up to rounding."""
    charges = charges.double()
    sums = charges.new_zeros(batch.num_systems).index_add(0, batch.system_index, charges)
    missing = (batch.charge - sums) / batch.counts().clamp(min=1)
    return charges + missing.index_select(0, batch.system_index)
