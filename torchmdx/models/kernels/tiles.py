"""How the work of each kernel is cut into programs. Results differ by rounding at most; the speed differs a lot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Below this many atoms a chip has more room than work: kernels are cut as finely as possible.
FEW_ATOMS = 1024


@dataclass(frozen=True)
class Block:
    """A matrix product: `columns` of the result for 16 atoms, `step` inner channels at a time, or all in `split`."""

    columns: int
    step: int = 32
    split: int = 1
    warps: int = 4
    stages: int = 3

    def options(self, channels: int, width: int, split: bool = True) -> dict[str, Any]:
        """Launch options for a result of `width` columns and products over at least `channels`."""
        groups = dict(SPLIT=max(1, min(self.split, channels // 16))) if split else {}
        return dict(
            COLUMNS=min(self.columns, width),
            STEP=min(self.step, channels),
            num_warps=self.warps,
            num_stages=self.stages,
            **groups,
        )


@dataclass(frozen=True)
class Walk:
    """A walk along neighbour rows: `rows` atoms and `slice` channels a program, `depth` edges of each at a time."""

    rows: int
    slice: int
    depth: int
    warps: int

    def options(self, channels: int) -> dict[str, Any]:
        return dict(SLICE=min(self.slice, channels), ROWS=self.rows, DEPTH=self.depth, num_warps=self.warps)


@dataclass(frozen=True)
class Tiles:
    """The cut of every kernel, in groups of kernels that behave alike."""

    norm: Block  # gate_hidden, read_features: products of norms
    head: Block  # read_energies
    product: Block  # the other products
    last: Block  # update_gradient, whose last part needs the most registers
    messages: Walk
    messages_gradient: Walk
    surroundings: Walk
    surroundings_gradient: Walk  # takes all channels
    readout_warps: int = 8
    slices_first: bool = True
    force_edges: int = 32
    force_candidates: int = 16

    @classmethod
    def choose(cls, num_atoms: int) -> Tiles:
        """Measured on an H200, C = 128."""
        if num_atoms < FEW_ATOMS:
            return cls(
                norm=Block(32),
                head=Block(32),
                product=Block(16, split=8, warps=8),
                last=Block(16, split=8, warps=8),
                messages=Walk(1, 32, 8, 1),
                messages_gradient=Walk(1, 32, 8, 1),
                surroundings=Walk(1, 32, 8, 1),
                surroundings_gradient=Walk(1, 128, 4, 4),
            )
        return cls(
            norm=Block(128, warps=8, stages=2),
            head=Block(32, warps=2),
            product=Block(64),
            last=Block(32),
            messages=Walk(8, 128, 1, 8),
            messages_gradient=Walk(1, 128, 2, 1),
            surroundings=Walk(4, 128, 1, 4),
            surroundings_gradient=Walk(1, 128, 2, 1),
        )
