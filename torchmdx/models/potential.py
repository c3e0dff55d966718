"""Potential: a network, its head, and the constants that turn its output into an energy."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchmdx.models.heads import ScalarHead
from torchmdx.models.tensornet import TensorNet, TensorNetConfig
from torchmdx.neighbors.edges import Edges
from torchmdx.system import Batch


class Potential(nn.Module):
    """Energy model: E = Σ_i (scale · output_i + reference_energies[Z_i]) + shift, eV.

    scale and reference_energies [max_z+1] apply to atoms, shift to a system. They, and every energy, are float64
    whatever the dtype of the network: reference energies of a protein add up to 10⁷ eV, where float32 resolves 1 eV.
    """

    scale: Tensor
    shift: Tensor
    reference_energies: Tensor
    _CONSTANTS = ("scale", "shift", "reference_energies")

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.network = TensorNet(config)
        self.head = ScalarHead(config.num_channels, config.activation)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("shift", torch.zeros((), dtype=torch.float64))
        self.register_buffer("reference_energies", torch.zeros(config.max_z + 1, dtype=torch.float64))

    @property
    def cutoff(self) -> float:
        """Radius an atom sees, Å."""
        return float(self.config.cutoff)

    @property
    def dtype(self) -> torch.dtype:
        """Of the network's weights, and so of the positions it takes."""
        return self.network.readout.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.shift.device

    def forward(self, batch: Batch, edges: Edges, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(energy [S], energies [N]) in eV, float64, from edge vectors [E,3] Å.

        Only `vectors` carries gradients. energies sum to energy within a system: the shift is shared by its atoms.
        """
        charge = batch.charge.index_select(0, batch.system_index)
        features = self.network(edges, vectors, batch.atomic_numbers, charge)
        energies = self.head(features).double() * self.scale
        energies = energies + self.reference_energies.index_select(0, batch.atomic_numbers)
        counts = batch.counts().clamp(min=1)
        energies = energies + (self.shift / counts).index_select(0, batch.system_index)
        energy = energies.new_zeros(batch.num_systems).index_add(0, batch.system_index, energies)
        return energy, energies

    def with_network(self, network: nn.Module) -> Potential:
        """The same potential, sharing its weights, with another way to compute the same features."""
        other = copy.copy(self)
        other._modules = {**self._modules, "network": network}
        return other

    def require_elements(self, atomic_numbers: Tensor) -> None:
        """Raises ValueError for an atom whose element the model has no embedding for."""
        beyond = atomic_numbers > self.config.max_z
        if beyond.any():
            atom = int(beyond.nonzero()[0])
            raise ValueError(
                f"this potential knows atomic numbers up to {self.config.max_z}, "
                f"got {int(atomic_numbers[atom])} for atom {atom}"
            )

    def fill(self, tensors: dict[str, Tensor], origin: str) -> None:
        """Takes over tensors by their names, in their dtype; raises ValueError, naming `origin`, if they don't fit."""
        wanted = self.state_dict()
        missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
        if missing or unknown:
            raise ValueError(
                f"the tensors of {origin} do not fit its configuration: "
                f"missing {sorted(missing)}, unexpected {sorted(unknown)}"
            )
        for name, value in tensors.items():
            shape = list(wanted[name].shape)
            if list(value.shape) != shape:
                raise ValueError(f"{name} in {origin} must have shape {shape}, got {list(value.shape)}")
        self.to(dtype=tensors["network.readout.weight"].dtype)
        self.load_state_dict(tensors)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Potential:
        exact = {name: getattr(self, name) for name in self._CONSTANTS}
        super()._apply(fn, recurse)
        for name, value in exact.items():  # moved, but never rounded
            setattr(self, name, value.to(device=getattr(self, name).device))
        return self
