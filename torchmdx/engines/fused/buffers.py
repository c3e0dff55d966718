"""Results and scratch memory of the fused kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from torchmdx.engines.fused.launch_sizes import Tiles


@dataclass(eq=False)
class Buffers:
    """What `allocate` makes: results, and the scratch of one evaluation of N atoms, E edge slots and S systems."""

    num_atoms: int
    num_systems: int
    capacity: int
    tiles: Tiles
    with_forces: bool
    energies: Tensor
    energy: Tensor
    forces: Tensor
    virial: Tensor
    tensors: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Device memory of all buffers."""
        results = (self.energies, self.energy, self.forces, self.virial)
        return sum(t.numel() * t.element_size() for t in (*results, *self.tensors.values()))
