"""The first layer of TensorNet: tensors from the elements and directions of neighbours."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchmdx.models.tensors import PartwiseLinear, from_direction, squared_norm, to_components
from torchmdx.neighbors.edges import Edges


class TensorEmbedding(nn.Module):
    """A_i = Σ_j f(r_ij) Z_ij (1 + [d_ij]× + (d_ij d_ijᵀ - 1/3)) + f(0) Z_ii
    X_i = g(|A_i|²) · W A_i

    ::

        | variable | symbol |
        |---|---|
        | weights | f(r) [E,3,C], one filter per part: `filters` of the radial basis, times the cosine cutoff |
        | direction | d_ij [E,3], unit vector of the edge |
        | pair | Z_ij [E,C], `pair` (linear) of the embeddings of both elements |
        | gate | g [N,3,C], a two-layer network of the layer-normed squared norm |
        | mix | W, one matrix per part |

    Each atom is its own neighbour at distance 0. It has no direction there, so it adds to the scalar part only.
    """

    def __init__(self, num_channels: int, num_radial: int, activation: nn.Module, max_z: int) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.filters = nn.Linear(num_radial, 3 * num_channels)
        self.elements = nn.Embedding(max_z + 1, num_channels)
        self.pair = nn.Linear(2 * num_channels, num_channels)
        self.norm = nn.LayerNorm(num_channels)
        self.gate = nn.Sequential(
            nn.Linear(num_channels, 2 * num_channels),
            activation,
            nn.Linear(2 * num_channels, 3 * num_channels),
            activation,
        )
        self.mix = PartwiseLinear(num_channels)

    def filter(self, radial: Tensor, envelope: Tensor) -> Tensor:
        """f [E,3,C] from the radial basis [E,R] and the cutoff function [E,1] at the same distances."""
        return (self.filters(radial) * envelope).unflatten(-1, (3, self.num_channels))

    def forward(self, edges: Edges, weights: Tensor, direction: Tensor, atomic_numbers: Tensor) -> Tensor:
        """Tensors X [N,9,C] from filters [E+1,3,C], whose last row is at distance 0, and unit vectors [E,3]."""
        at_target, at_source = self.pair_shares(atomic_numbers)
        x = embedded(edges, weights[:-1], direction, at_target, at_source)
        return self.finish(x, weights[-1, 0] * (at_target + at_source))

    def pair_shares(self, atomic_numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The terms [N,C] of an atom in Z_ij as the target (with the bias) and as the source; Z_ij is their sum."""
        elements = self.elements(atomic_numbers)
        of_target, of_source = self.pair.weight.split(self.num_channels, dim=1)
        return nn.functional.linear(elements, of_target, self.pair.bias), elements @ of_source.T

    def finish(self, x: Tensor, own: Tensor) -> Tensor:
        """X from the sum over neighbours [N,9,C] and the atom's own term f(0) Z_ii of the scalar part [N,C]."""
        x = torch.cat([x[:, :1] + own[:, None], x[:, 1:]], dim=1)
        gate = self.gate(self.norm(squared_norm(x))).unflatten(-1, (3, self.num_channels))
        return self.mix(x) * to_components(gate)


def geometry(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Distances [E] and unit vectors [E,3] of edge vectors [E,3]."""
    distance = torch.linalg.vector_norm(vectors, dim=-1)
    return distance, vectors / distance[:, None]


def embedded(edges: Edges, weights: Tensor, direction: Tensor, at_target: Tensor, at_source: Tensor) -> Tensor:
    """Σ_j f(r_ij) Z_ij (1 + [d_ij]× + (d_ij d_ijᵀ - 1/3)) [N,9,C] from f [E,3,C], d [E,3] and the terms of Z [N,C]."""
    pair = at_target.index_select(0, edges.target) + at_source.index_select(0, edges.source)
    # shape, not len(): an exported program has any number of atoms.
    messages = to_components(weights * pair[:, None]) * from_direction(direction)[:, :, None]
    return messages.new_zeros(at_target.shape[0], 9, at_target.shape[1]).index_add(0, edges.target, messages)
