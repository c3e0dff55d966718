"""How the work of each kernel is divided into programs. Results differ by rounding at most; the speed differs a lot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from torchmdx.engines.plan.machine import Machine
from torchmdx.engines.plan.workload import USUAL_NEIGHBOURS, Workload

# Up to this many atoms one program per atom is faster than blocks of atoms on tensor cores.
FEW_ATOMS = 448
# Up to this many there is a multiprocessor for each atom, and more warps hide more latency.
FEWEST_ATOMS = 128
# Below these many, larger programs would leave part of the chip idle at the end of a kernel.
SOME_ATOMS, MORE_ATOMS = 2048, 8192
# The fewest atoms for which tiles of atoms (atom_tiles.py) are faster than a launch for each product: on an H100, by
# 4 % of a step at 2,489 atoms and by 18 % at 22,528.
TILE_ATOMS = 2000
# The fewest atoms for which memory can count more than a few products: 4.5 GB if all tensors were kept. It does where
# they would take more than this share of the device's memory, at these bytes for each atom.
LEAN_ATOMS, LEAN_SHARE, KEPT_BYTES = 65536, 1 / 8, 69_000
# Atoms whose gates or energies are evaluated together, where memory counts; a multiple of 16.
PIECE = 16384
# With this many rows of edges or more, wide blocks of a product fill the chip.
MANY_EDGE_ROWS = 32768
# Atoms of one system, up to which a program takes one atom of a TensorNet2: on an H100 with two layers and Coulomb
# energies, a quarter faster with 50 atoms and a fifth with 90; on an H200 with one layer 8 % with 128.
FEW_CHARGED = 128
# The same where kernels of CUDA C++ evaluate the network of edges, from which a program of one atom is then spared.
FEW_WITH_MAPS = 256


@dataclass(frozen=True)
class ProductBlock:
    """A product with a matrix: `columns` of the result for `rows` atoms, `step` inner channels at a time."""

    rows: int = 64
    columns: int = 64
    step: int = 32
    warps: int = 4
    stages: int = 3

    def options(self, inner: int, width: int) -> dict[str, Any]:
        """Launch options for `inner` channels in and `width` out, which blocks have to divide."""
        return dict(
            ROWS=self.rows,
            COLUMNS=gcd(self.columns, width),
            STEP=gcd(self.step, inner),
            num_warps=self.warps,
            num_stages=self.stages,
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
class ByElements:
    """The embedding's sums by elements (element_sums.py): walks take one atom a program.

    Attributes:
        edges: The least number for each atom and element: products of atoms take longer with every element, while walks
            save most of the time of an edge.
        depth, depth_back: Edges at a time.
        group: The most elements that a program sums up.
        product, product_back: Without `step` and without `columns`, which follow from the functions.
    """

    edges: int = 12
    depth: int = 2
    group: int = 4
    depth_back: int = 4
    product: ProductBlock = ProductBlock()
    product_back: ProductBlock = ProductBlock()

    def walk(self, elements: int) -> dict[str, int]:
        """Launch options; elements are divided evenly among programs."""
        programs = -(-elements // self.group)
        return dict(GROUP=-(-elements // programs), ROWS=1, DEPTH=self.depth, num_warps=1)

    def walk_back(self) -> dict[str, int]:
        """Launch options of the gradient."""
        return dict(ROWS=1, DEPTH=self.depth_back, num_warps=1)


@dataclass(frozen=True)
class Row:
    """One program per atom (one_atom.py): warps share inner sums; `unroll` rows of a matrix, `depth` edges at once.

    Attributes:
        apart: Products and walks are not inlined, which compiles faster.
    """

    warps: int
    depth: int
    unroll: int
    apart: bool = False

    def work(self, channels: int) -> int:
        """Floats of an atom's own memory: 32 places of all channels, and shares of two products (one_atom.PARTS)."""
        return (32 + 18 * max(self.warps, self.depth)) * channels

    def options(self, channels: int) -> dict[str, Any]:
        """Launch options; every group of the inner sum has at least one channel."""
        groups = min(self.warps, channels)
        unroll = min(self.unroll, channels // groups)
        return dict(GROUPS=groups, UNROLL=unroll, DEPTH=self.depth, APART=self.apart, num_warps=self.warps)


@dataclass(frozen=True)
class Tiles:
    """Launch sizes of all kernels, in groups that behave alike.

    Attributes:
        row: If given, the kernels of one_atom.py, with one program per atom, replace most others.
        lean: The backward pass computes most tensors of atoms again, and networks of atoms take `piece` atoms at a time
            (0: all), so that an atom takes little more than half the memory (recompute.py).
        by_elements: If given, the embedding's sums are taken by elements where a structure has few.
    """

    product: ProductBlock
    messages: Walk
    messages_gradient: Walk
    surroundings: Walk
    surroundings_gradient: Walk  # takes all channels
    by_elements: ByElements | None = None
    row: Row | None = None
    edge_product: ProductBlock = ProductBlock()
    lean: bool = False
    piece: int = 0
    head_warps: int = 2
    elements: int = 128  # of a program where an atom's channels are worked on one by one
    slices_first: bool = True
    force_edges: int = 32
    force_candidates: int = 16
    force_warps: int = 4

    @classmethod
    def choose(cls, num_atoms: int, lean_atoms: int = LEAN_ATOMS) -> Tiles:
        """The fastest on an H200 with C = 128. lean_atoms: the fewest for which memory counts (`first_lean`)."""
        if num_atoms <= FEW_ATOMS:
            return cls(
                row=Row(8, 8, 8) if num_atoms <= FEWEST_ATOMS else Row(4, 8, 16, apart=True),
                force_candidates=64,
                force_warps=8,
                product=ProductBlock(),
                messages=Walk(1, 16, 8, 1),
                messages_gradient=Walk(1, 16, 8, 1),
                surroundings=Walk(1, 16, 16, 1),
                surroundings_gradient=Walk(1, 256, 8, 8),
            )
        lean = num_atoms >= lean_atoms
        return cls(
            lean=lean,
            piece=PIECE if lean else 0,
            product=ProductBlock(columns=32 if num_atoms < SOME_ATOMS else 64 if num_atoms < MORE_ATOMS else 128),
            messages=Walk(1, 256, 1, 1) if num_atoms < MORE_ATOMS else Walk(16, 256, 1, 16),
            messages_gradient=Walk(1, 256, 2, 1),
            surroundings=Walk(4, 256, 1, 4),
            surroundings_gradient=Walk(1, 256, 2, 1),
            by_elements=ByElements(),
        )


def first_lean(memory: int) -> int:
    """The fewest atoms for which memory counts, on a device with this many bytes."""
    return max(LEAN_ATOMS, int(memory * LEAN_SHARE / KEPT_BYTES))


def launch_sizes(kind: str, work: Workload, machine: Machine, *, edge_maps: bool = False) -> Tiles:
    """The fastest launch sizes for a network of this kind. Only kernels for many atoms evaluate a part of the atoms.

    Args:
        edge_maps: Kernels of CUDA C++ can evaluate the network of edges of a TensorNet2.
    """
    atoms = max(work.atoms, FEW_ATOMS + 1) if work.domain else work.atoms
    few = FEW_WITH_MAPS if edge_maps else FEW_CHARGED
    return _charged_sizes(atoms, few) if kind == "TensorNet2" else Tiles.choose(atoms, first_lean(machine.memory))


def _charged_sizes(atoms: int, few: int) -> Tiles:
    """One program per atom up to `few`. Beyond, the network of edges is enough work for tensor cores."""
    tiles = Tiles.choose(atoms)
    if atoms > few:
        tiles = replace(tiles, row=None)
    if atoms < SOME_ATOMS:
        tiles = replace(tiles, product=ProductBlock(columns=32))
    many = atoms * USUAL_NEIGHBOURS >= MANY_EDGE_ROWS
    return replace(
        tiles,
        edge_product=ProductBlock(128, 64, 32, 8) if many else ProductBlock(columns=32),
        messages=Walk(1, 256, 2, 1) if many else tiles.messages,
        messages_gradient=Walk(1, 64 if atoms < MORE_ATOMS else 128, 1, 1) if many else tiles.messages_gradient,
    )
