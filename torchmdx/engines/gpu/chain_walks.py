"""The launches of kernels that walk along the edges of atoms, for the chains of many atoms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import triton
from torch import Tensor

from torchmdx.engines.gpu.element_sums import gradient_by_elements, sum_by_elements
from torchmdx.engines.gpu.products import ChainProducts
from torchmdx.engines.gpu.triton import edge_geometry, embedding_sum, messages
from torchmdx.engines.gpu.triton import forces as force_kernels

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers, BufferSizes, GradientScratch, Scratch
    from torchmdx.engines.gpu.tensornet import FastTensorNet
    from torchmdx.neighbors.edges import Edges

BLOCK = 256  # edges per program where an edge is little work
SUM_BLOCK = 1024


class ChainWalks(ChainProducts):
    """For the atoms of a chain, or those of a slab (slabs.py), whose neighbours are elsewhere in a window.

    Attributes:
        numbers, system: Of the atoms whose rows are walked; all_numbers: of the atoms that `edges.source` counts.
        senders: Atoms whose tensors messages carry.
        others: Forces [N,3] and virials [N,9] of other energies, set before `backward`; before_forces: called before
            they are used.
        windowed: Tensors of senders are in windows.
    """

    windowed = False

    def __init__(
        self,
        model: FastTensorNet,
        buffers: Buffers,
        positions: Tensor,
        atomic_numbers: Tensor,
        system_index: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        within: Tensor | None = None,
    ) -> None:
        self.weights = model.weights
        self.epsilons = model.epsilons
        self.buffers: Buffers = buffers
        self.sizes: BufferSizes = buffers.sizes
        self.b: Scratch = buffers.scratch
        self.tiles = buffers.sizes.tiles
        self.positions, self.numbers, self.system = positions, atomic_numbers, system_index
        self.cell, self.charge, self.edges = cell, charge, edges
        self.all_numbers = atomic_numbers
        self.gathers = model.config.messages == "source"
        self.senders = edges.source if self.gathers else edges.target
        self.n, self.c, self.within = buffers.sizes.num_atoms, self.weights.channels, within
        self.split, self.tables = model.split_weights, model.tables
        self.others: tuple[Tensor | None, Tensor | None] = (None, None)
        self.before_forces: Callable[[], None] = lambda: None
        self.reflections = dict(REFLECTIONS=model.config.group == "O(3)")

    @property
    def gradient(self) -> GradientScratch:
        """The buffers of the backward pass."""
        assert self.b.gradient is not None
        return self.b.gradient

    def _all_y(self, i: int, y: Tensor) -> Tensor:
        """Y of layer i of the atoms that `senders` count, of which y are the rows of this chain."""
        return y

    def _all_m(self, i: int, m: Tensor) -> Tensor:
        """The same for M."""
        return m

    def _window(self, tensor: Tensor) -> tuple[int, int]:
        """(first, window) of the kernels for one of these tensors that is a window; else not used."""
        return 0, 0

    def _place_edges(self) -> None:
        b, w, e = self.b, self.weights, self.edges
        edge_geometry.place_edges[(max(1, triton.cdiv(e.capacity, BLOCK)),)](
            self.positions, self.cell, self.system, e.row_ptr, e.source, e.target, e.shifts, w.stretch,
            b.knot, b.place, b.stretch, self.n, w.num_intervals - 1, BLOCK=BLOCK,
        )  # fmt: skip

    def _sum_surroundings(self) -> None:
        """The sums over neighbours of the embedding."""
        b, w, e, t = self.b, self.weights, self.edges, self.tiles
        rare, walk = sum_by_elements(self), t.surroundings.options(self.c)
        embedding_sum.surroundings[(triton.cdiv(self.n, t.surroundings.rows), self.c // walk["SLICE"])](
            self.numbers, self.all_numbers, w.targets, w.sources, b.a, self.tables[0], w.own, e.row_ptr, e.source,
            b.knot, b.place, rare, self.atoms(len(w.layers)), CHANNELS=self.c, DEGREE=w.degree, **walk,
        )  # fmt: skip

    def _walk_messages(self, i: int, y: Tensor, m: Tensor, p: Tensor, keep: bool) -> None:
        """M of a layer, stored if `keep`, and the product P̂ of each atom's Y with it."""
        b, w, e, t = self.b, self.weights.layers[i], self.edges, self.tiles
        walk, table = t.messages.options(self.c), self.tables[i + 1]
        messages.messages[(triton.cdiv(self.n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, self._all_y(i, y), m, p, self.charge, self.system, table, w.own, e.row_ptr, self.senders, b.knot,
            b.place, self.atoms(len(self.weights.layers) - 1 - i), *self._window(self._all_y(i, y)), CHANNELS=self.c,
            DEGREE=self.weights.degree, SLICES_FIRST=t.slices_first, WINDOWED=self.windowed, KEEP=keep,
            **self.reflections, **walk,
        )  # fmt: skip

    def _walk_messages_gradient(self, i: int, y: Tensor, gm: Tensor, gy: Tensor, first: bool) -> None:
        """Adds to the gradient in Y what came through messages, from that in M."""
        b, g, w, e, t = self.b, self.gradient, self.weights.layers[i], self.edges, self.tiles
        updated = len(self.weights.layers) - 1 - i  # hops
        walk, table = t.messages_gradient.options(self.c), self.tables[i + 1]
        all_gm = self._all_m(i, gm)
        messages.messages_gradient[(triton.cdiv(self.n, t.messages_gradient.rows) * len(g.pull),)](
            y, gm, all_gm, gy, table, w.own, e.row_ptr, self.senders, b.knot, b.place, g.pull,
            self.atoms(updated + 1), self.atoms(updated), e.capacity, *self._window(all_gm), CHANNELS=self.c,
            DEGREE=self.weights.degree, WINDOWED=self.windowed, FIRST=first, SLICES_FIRST=t.slices_first, **walk,
        )  # fmt: skip

    def _edge_gradients(self, gradient: Tensor) -> None:
        """h_e of the edges, from the gradient in the sums over neighbours and what messages left at the edges."""
        b, g, w, e, t = self.b, self.gradient, self.weights, self.edges, self.tiles
        rare = gradient_by_elements(self, gradient)
        # Fewer programs where nearly all of them have nothing to do.
        walk = (t.surroundings_gradient if rare is None else t.surroundings).options(self.c)
        del walk["SLICE"]
        embedding_sum.surroundings_gradient[(triton.cdiv(self.n, walk["ROWS"]),)](
            self.numbers, self.all_numbers, w.targets, w.sources, gradient, self.tables[0], e.row_ptr, e.source, b.knot,
            b.place, b.stretch, g.pull, g.half, rare, self.atoms(len(w.layers)), e.capacity, CHANNELS=self.c,
            DEGREE=w.degree, SLICES=len(g.pull), **walk,
        )  # fmt: skip

    def _sum_forces(self, virial: bool) -> None:
        """Forces, and each atom's part of the virial, from h_e of all edges."""
        b, g, w, e, t, n = self.b, self.gradient, self.weights, self.edges, self.tiles, self.n
        self.before_forces()
        force_kernels.forces[(n,)](
            e.row_ptr, e.source, e.shifts, b.knot, b.place, b.stretch, None, g.half, *self.others, self.buffers.forces,
            g.virials, self.system, self.buffers.energies, w.shift, self.buffers.energy, n, self.atoms(len(w.layers)),
            VIRIAL=virial, EDGES=t.force_edges, CANDIDATES=t.force_candidates, AT_ONCE=False, SUM=0,
        )  # fmt: skip

    def total(self, virial: bool) -> None:
        """Sums over systems."""
        out, gradient = self.buffers, self.b.gradient
        if self.sizes.num_systems:
            force_kernels.sum_systems[(self.sizes.num_systems,)](
                self.system, out.energies, self.weights.shift, out.virial if gradient is None else gradient.virials,
                out.energy, out.virial, self.cell, out.stress, self.n, VIRIAL=virial, BLOCK=SUM_BLOCK, SEARCH=SUM_BLOCK,
            )  # fmt: skip
