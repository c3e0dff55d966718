"""Scratch memory of TensorNet2's kernels besides buffers.py. K charges; C, H and K are padded (weights.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchmdx.engines.gpu.buffers import BufferSizes

# Systems with fewer atoms are not divided for sums over them; others have parts of PART atoms, and at most MOST_PARTS.
FEWEST_TO_DIVIDE, PART, MOST_PARTS = 1024, 128, 128


def parts_of(num_atoms: int, num_systems: int) -> int:
    """Into how many parts systems are divided for the sums over them; a power of two."""
    each = num_atoms // num_systems
    return 1 if each < FEWEST_TO_DIVIDE else min(MOST_PARTS, 1 << (each // PART).bit_length() - 1)


@dataclass(eq=False)
class ChargeScratch:
    """What a TensorNet2 needs beyond `Scratch`. "rows": N atoms, then E edges (see triton/edge_mlp.py).

    Lists have an entry for each layer, and charges, first, second, proposed and sums one more if the charges behind the
    last layer are evaluated. Without a gradient all layers use the first entry of everything but `charges`.
    """

    shares: Tensor  # [N,2,C] what the charges of target and source add to z₁; then the gradient
    charges: Tensor  # [layers,N,K]
    charges_gradient: Tensor  # [N,K] of one layer at a time; if there are last charges, of every layer: [layers,N,K]
    first: list[Tensor]  # [N,C] first map of the charges' network
    second: list[Tensor]  # [N,C] second map
    proposed: Tensor  # [layers,N,2K] third map
    sums: list[Tensor]  # [S,2,K] sums over systems, float64
    parts_sums: Tensor  # [S,parts,2,K] sums over parts of systems, float64
    z3: list[Tensor]  # [rows,3,C]
    z2: list[Tensor]  # [rows,2C], or the slopes of its activation; empty if it is evaluated again in the backward pass
    z1: list[Tensor]  # [rows,C]
    piece: Tensor | None  # [piece,2C] z₂ of some rows at a time
    read_norms: Tensor | None  # [N,3,C] norms of the readout, if `norms` is taken by the last charges
    reverse: Tensor | None  # [E] slot of the edge in the other direction, int32
    pull: Tensor | None  # [slices,E] a layer's part of `GradientScratch.pull`, which has one slice for few atoms

    @classmethod
    def allocate(
        cls,
        sizes: BufferSizes,
        charges: int,
        *,
        last_charges: bool,
        edge_maps: bool,
        keeps_slopes: bool,
        piece: int,
    ) -> ChargeScratch:
        """keeps_slopes, piece: of `KernelPlan`.

        Args:
            edge_maps: sm90/edge_maps.cu, which keeps slopes in z₂ and needs no pieces.
        """
        n, c, k, layers, new = sizes.num_atoms, sizes.channels, charges, sizes.layers, sizes.new
        systems, rows = max(sizes.num_systems, 1), n + sizes.slots
        keep = sizes.with_forces and keeps_slopes
        in_pieces = sizes.with_forces and not keep and not edge_maps
        slices = c // min(sizes.tiles.messages_gradient.slice, c)
        charged = range(layers + last_charges)
        own = charged if sizes.with_forces else range(1)
        filters = range(layers if sizes.with_forces else min(layers, 1))
        return cls(
            shares=new(n, 2, c),
            charges=new(len(charged), n, k),
            charges_gradient=new(len(charged) if last_charges else 1, n, k),
            first=[new(n, c) for _ in own],
            second=[new(n, c) for _ in own],
            proposed=new(len(own), n, 2 * k),
            sums=[new(systems, 2, k, dtype=torch.float64) for _ in own],
            parts_sums=new(systems, parts_of(n, systems), 2, k, dtype=torch.float64),
            z3=[new(rows, 3, c) for _ in filters],
            z2=[new(rows, 2 * c) for _ in filters] if keep else [],
            z1=[new(rows, c) for _ in filters],
            piece=new(min(rows, piece), 2 * c) if in_pieces or not edge_maps else None,
            read_norms=new(n, 3, c) if last_charges else None,
            reverse=new(sizes.slots, dtype=torch.int32) if sizes.with_forces else None,
            pull=new(slices, sizes.slots) if sizes.with_forces and sizes.one_program_per_atom else None,
        )
