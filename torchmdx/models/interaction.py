"""One round of messages between neighbouring tensors: the repeated layer of TensorNet."""

from __future__ import annotations

from torch import Tensor, nn

from torchmdx.models.tensors import PartwiseLinear, product, spread, squared_norm, symmetric_product
from torchmdx.neighbors.edges import Edges


class Interaction(nn.Module):
    """X̂ = X / (|X|² + 1)
    Y = W₁ X̂
    M_i = Σ_j f(r_ij) Y_j + f(0) Y_i
    P = (1 + q/10) (Y M + M Y)  under O(3),  2 Y M  under SO(3)
    D = W₂ P / (|P|² + 1)
    X ← X̂ + D + (1 + q/10) D D

    | variable | symbol |
    |---|---|
    | filters | f(r) [E,3,C], a network of the radial basis, times the cosine cutoff |
    | charge | q [N], total charge of the atom's system |
    """

    def __init__(self, num_channels: int, num_radial: int, activation: nn.Module, reflections: bool) -> None:
        super().__init__()
        self.num_channels = num_channels
        self.reflections = reflections
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
        """f [E,3,C] from the radial basis [E,R] and the cutoff function [E,1] at some distances."""
        return (self.filters(radial) * envelope).unflatten(-1, (3, self.num_channels))

    def forward(self, x: Tensor, edges: Edges, weights: Tensor, charge: Tensor) -> Tensor:
        """Tensors [N,9,C] from tensors [N,9,C], filters [E+1,3,C], the last row at distance 0, and charge [N]."""
        x, y = self.send(x)
        weights = spread(weights)
        messages = weights[:-1] * y.index_select(0, edges.source)
        m = (weights[-1] * y).index_add(0, edges.target, messages)
        return self.receive(x, y, m, charge)

    def send(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """X̂ and Y of the formula: what an atom keeps, and what it tells its neighbours."""
        x = x / (squared_norm(x) + 1)[:, None]
        return x, self.mix_in(x)

    def receive(self, x: Tensor, y: Tensor, m: Tensor, charge: Tensor) -> Tensor:
        """The new X from X̂, Y and the sum of messages M, all [N,9,C], and charge [N]."""
        factor = (1 + 0.1 * charge)[:, None, None]
        p = factor * symmetric_product(y, m) if self.reflections else 2 * product(y, m)
        d = self.mix_out(p / (squared_norm(p) + 1)[:, None])
        return x + d + factor * product(d, d)
