"""A small model that torchmdx does not know, and ways to get one wrong."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from torchmdx import Potential, register_model
from torchmdx.models import registry


@dataclass(frozen=True, kw_only=True)
class OutsideConfig:
    num_channels: int = 6
    num_layers: int = 2
    cutoff: float = 4.0
    max_z: int = 10
    steepness: float = 1.5


class Outside(nn.Module):
    """x_i + Σ_j filter(r_ij) x_j, twice; with vectors summed too, so that angles count."""

    def __init__(self, config: OutsideConfig) -> None:
        super().__init__()
        self.config = config
        channels = config.num_channels
        self.elements = nn.Embedding(config.max_z + 1, channels)
        self.filter = nn.Linear(4, channels)
        self.mix = nn.Linear(channels, channels)

    def envelope(self, distance):
        return 0.5 * (torch.cos(distance.clamp(max=self.config.cutoff) * (math.pi / self.config.cutoff)) + 1)

    def forward(self, edges, vectors, atomic_numbers, charge):
        distance = torch.linalg.vector_norm(vectors, dim=-1).clamp(max=self.config.cutoff)
        envelope = self.envelope(distance)[:, None]
        bumps = torch.stack([torch.exp(-self.config.steepness * (distance - k) ** 2) for k in (1, 1.5, 2, 3)], -1)
        weights = torch.tanh(self.filter(bumps)) * envelope
        x = self.elements(atomic_numbers)
        for _ in range(self.config.num_layers):
            messages = weights * x.index_select(0, edges.source)
            sums = torch.zeros_like(x).index_add(0, edges.target, messages)
            ways = (vectors / (1 + distance[:, None] ** 2))[:, :, None] * messages[:, None, :]
            pulls = x.new_zeros(len(x), 3, x.shape[1]).index_add(0, edges.target, ways * envelope[:, None])
            x = x + torch.tanh(self.mix(sums + (pulls**2).sum(1)))
        return x


NAME = "outside"


@pytest.fixture(autouse=True)
def registration():
    """Registered for one test; modules that import this have it for each of theirs."""
    register_model(NAME, OutsideConfig, Outside)
    yield
    forget(NAME)


def outside_potential(network=None, seed=0, **settings) -> Potential:
    """With random weights, and in place of the network one of another class, if given."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = OutsideConfig(**settings)
        potential = Potential(config)
        if network is not None:
            potential = potential.with_network(network(config))
    with torch.no_grad():
        potential.scale.fill_(2.0)
        potential.shift.fill_(0.7)
        potential.reference_energies.copy_(torch.arange(config.max_z + 1) * -10.0)
    return potential.eval().requires_grad_(False)


def forget(name: str) -> None:
    """Undoes a registration."""
    registry.MODELS.pop(name, None)
