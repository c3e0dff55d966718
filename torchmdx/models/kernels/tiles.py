"""How the work of each kernel is cut into programs. Results differ by rounding at most; the speed differs a lot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Up to this many atoms, all programs of one atom each run side by side, twice over; beyond, larger blocks win.
FEW_ATOMS = 528
# Up to this many there is a multiprocessor for each atom, and more warps hide more latency.
FEWEST_ATOMS = 128
# Below this many, larger programs would leave part of the chip idle at the end of a kernel.
SOME_ATOMS = 8192


@dataclass(frozen=True)
class Block:
    """A matrix product: `columns` of the result for 16 atoms, `step` inner channels at a time.

    split: 1 where warps share columns; more where they share the inner sum, or the components (see products.py).
    """

    columns: int
    step: int = 32
    split: int = 1
    warps: int = 4
    stages: int = 3

    def options(self, channels: int, split: bool = True) -> dict[str, Any]:
        """Launch options where products and results have at least `channels`."""
        groups = dict(SPLIT=max(1, min(self.split, channels // 16))) if split else {}
        return dict(
            COLUMNS=min(self.columns, channels),
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
class Row:
    """One program an atom (rows.py): warps share inner sums; `unroll` rows of a matrix, `depth` edges at once."""

    warps: int
    depth: int
    unroll: int

    def work(self, channels: int) -> int:
        """Floats of an atom's own memory: 32 places of all channels, and shares of two products (rows.PARTS)."""
        return (32 + 18 * max(self.warps, self.depth)) * channels

    def options(self, channels: int) -> dict[str, Any]:
        """Launch options; every group of the inner sum has at least one channel."""
        groups = min(self.warps, channels)
        return dict(GROUPS=groups, UNROLL=min(self.unroll, channels // groups), DEPTH=self.depth, num_warps=self.warps)


@dataclass(frozen=True)
class Tiles:
    """The cut of every kernel, in groups of kernels that behave alike.

    row: if given, the short chain of rows.py, with one program for each atom, takes the place of most other kernels.
    """

    norm: Block  # gate_hidden, read_features: products of norms
    head: Block  # read_energies
    single: Block  # products of one matrix
    product: Block  # products of nine components
    last: Block  # update_gradient, whose last part needs the most registers
    messages: Walk
    messages_gradient: Walk
    surroundings: Walk
    surroundings_gradient: Walk  # takes all channels
    row: Row | None = None
    readout_warps: int = 8
    slices_first: bool = True
    force_edges: int = 32
    force_candidates: int = 16

    @classmethod
    def choose(cls, num_atoms: int) -> Tiles:
        """Measured on an H200, C = 128."""
        if num_atoms <= FEW_ATOMS:
            return cls(
                row=Row(8, 8, 4) if num_atoms <= FEWEST_ATOMS else Row(4, 8, 8),
                norm=Block(32, step=128, stages=1),
                head=Block(32, step=64),
                single=Block(16, split=4),
                product=Block(16, step=16, split=2, warps=8),
                last=Block(16, step=16, split=2, warps=8),
                messages=Walk(1, 16, 8, 1),
                messages_gradient=Walk(1, 16, 8, 1),
                surroundings=Walk(1, 16, 16, 1),
                surroundings_gradient=Walk(1, 256, 8, 8),
            )
        return cls(
            norm=Block(128, warps=8, stages=2),
            head=Block(32, warps=2),
            single=Block(128),
            product=Block(64),
            last=Block(32),
            messages=Walk(1, 256, 1, 1) if num_atoms < SOME_ATOMS else Walk(8, 256, 1, 8),
            messages_gradient=Walk(1, 256, 2, 1),
            surroundings=Walk(4, 256, 1, 4),
            surroundings_gradient=Walk(1, 256, 2, 1),
        )
