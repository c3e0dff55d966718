"""The interaction layer of TensorNet: messages from neighbours, and their product with the tensor of the atom."""

from __future__ import annotations

from torch import Tensor, nn

from torchmdx.models.tensors import PartwiseLinear, product, squared_norm, symmetric_product, to_components
from torchmdx.neighbors.edges import Edges


class Interaction(nn.Module):
    """X̂ = X / (|X|² + 1)
    Y = W₁ X̂
    M_i = Σ_j f(r_ij) Y_j + f(0) Y_i,  or with `gathers` False  (Σ_j f(r_ij) + f(0)) Y_i
    P = (1 + q/10) (Y M + M Y)  under O(3),  2 Y M  under SO(3)
    D = W₂ P / (|P|² + 1)
    X ← X̂ + D + (1 + q/10) D D

    ::

        | variable | symbol |
        |---|---|
        | weights | f(r) [E,3,C], one filter per part: `filters` of the radial basis, times the cosine cutoff |
        | mix_in, mix_out | W₁, W₂, one matrix per part |
        | m | M [N,9,C], sum of messages; the atom itself counts as a neighbour at distance 0 |
        | charge | q [N], total charge of the atom's system |
        | factor | 1 + q/10 |

    The product of O(3) keeps parity (see `symmetric_product`); that of SO(3) may distinguish mirror images.

    Args:
        gathers: Messages carry the tensors of neighbours, else those of the atom that receives them.
    """

    def __init__(
        self, num_channels: int, num_radial: int, activation: nn.Module, reflections: bool, gathers: bool = True
    ) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.reflections = reflections
        self.gathers = gathers
        self.filters = nn.Sequential(
            nn.Linear(num_radial, num_channels),
            activation,
            nn.Linear(num_channels, 2 * num_channels),
            activation,
            nn.Linear(2 * num_channels, 3 * num_channels),
            activation,
        )
        self.mix_in = PartwiseLinear(num_channels)
        self.mix_out = PartwiseLinear(num_channels)

    def filter(self, radial: Tensor, envelope: Tensor) -> Tensor:
        """f [E,3,C] from the radial basis [E,R] and the cutoff function [E,1] at the same distances."""
        return (self.filters(radial) * envelope).unflatten(-1, (3, self.num_channels))

    def forward(self, x: Tensor, edges: Edges, weights: Tensor, charge: Tensor) -> Tensor:
        """New tensors [N,9,C] from X [N,9,C], filters [E+1,3,C], whose last row is at distance 0, and charge [N]."""
        x, y = self.send(x)
        at_source = y.index_select(0, edges.source) if self.gathers else None
        m = message(edges.target, weights[:-1], weights[-1:], y, self.carried(y, edges.target, at_source))
        return self.receive(x, y, m, charge)

    def send(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """X̂ and Y [N,9,C], the normalized tensors and those that are sent to neighbours."""
        x = normalised(x)
        return x, self.mix_in(x)

    def carried(self, y: Tensor, target: Tensor, at_source: Tensor | None) -> Tensor:
        """What messages carry [E,9,C]: Y of the sources of edges, or of their targets where the layer gathers none."""
        return y.index_select(0, target) if at_source is None else at_source

    def receive(self, x: Tensor, y: Tensor, m: Tensor, charge: Tensor) -> Tensor:
        """The new X from X̂, Y and the sum of messages M, all [N,9,C], and the charge q [N]."""
        factor = (1 + 0.1 * charge)[:, None, None]
        d = self.mix_out(normalised(message_product(y, m, factor, reflections=self.reflections)))
        return updated(x, d, factor)


def message(target: Tensor, weights: Tensor, own: Tensor, y: Tensor, carried: Tensor) -> Tensor:
    """M_i = Σ_j f(r_ij) carried_ij + f(0) Y_i [N,9,C], from f [E,3,C], f(0) [N or 1,3,C], Y and carried [E,9,C]."""
    return (to_components(own) * y).index_add(0, target, to_components(weights) * carried)


def normalised(x: Tensor) -> Tensor:
    """X / (|X|² + 1), x [N,9,C]."""
    return x / (squared_norm(x) + 1)[:, None]


def message_product(y: Tensor, m: Tensor, factor: Tensor, *, reflections: bool) -> Tensor:
    """P = f (Y M + M Y), or without reflections 2 Y M; y and m [N,9,C], factor f [N,1,1]."""
    return factor * symmetric_product(y, m) if reflections else 2 * product(y, m)


def updated(x: Tensor, d: Tensor, factor: Tensor) -> Tensor:
    """X + D + f D D; x and d [N,9,C], factor f [N,1,1]."""
    return x + d + factor * product(d, d)
