"""The launches of one evaluation, in order, without allocation or synchronisation.

A new kernel is a function in kernels/, its buffers in buffers.py, and its launch here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import triton
from torch import Tensor

from torchmdx.engines.gpu.element_sums import gradient_by_elements, sum_by_elements
from torchmdx.engines.gpu.products import ChainProducts
from torchmdx.engines.gpu.triton import (
    edge_geometry,
    embedding,
    embedding_sum,
    gated_head,
    interaction,
    messages,
    readout,
)
from torchmdx.engines.gpu.triton import forces as force_kernels
from torchmdx.neighbors.edges import Edges

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers, GradientScratch
    from torchmdx.engines.gpu.tensornet import FastTensorNet

ATOMS = 16  # per program of the head: the fewest rows of a tensor core product
BLOCK = 256  # edges per program where an edge is little work
SUM_BLOCK = 1024


class Chain(ChainProducts):
    """One evaluation: the model's weights, its buffers and the caller's tensors."""

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
        self.buffers, self.sizes, self.tiles, self.b = buffers, buffers.sizes, buffers.sizes.tiles, buffers.scratch
        self.positions, self.numbers, self.system = positions, atomic_numbers, system_index
        self.cell, self.charge, self.edges = cell, charge, edges
        self.gathers = model.config.messages == "source"
        self.senders = edges.source if self.gathers else edges.target  # atoms whose tensors messages carry
        self.n, self.c, self.within = buffers.sizes.num_atoms, self.weights.channels, within
        self.split, self.tables = model.split_weights, model.tables
        # Forces [N,3] and virials [N,9] of other energies, set before `backward`; what is called before they are used.
        self.beside: tuple[Tensor | None, Tensor | None] = (None, None)
        self.before_forces: Callable[[], None] = lambda: None
        self.head_precision = "tf32x3" if model.dot_precision == "tf32x3" else "tf32"
        rows = max(1, buffers.sizes.tiles.elements // self.c)
        self.each_atom, self.elements = (triton.cdiv(self.n, rows),), dict(CHANNELS=self.c, ROWS=rows)
        self.reflections = dict(REFLECTIONS=model.config.group == "O(3)")
        activation = "silu" if model.config.activation == "swish" else model.config.activation
        self.activation = dict(ACTIVATION=activation)
        self.readout = activation if model.config.readout_activation else "none"  # of the features

    def atoms(self, hops: int) -> int | Tensor:
        """Number of atoms that a kernel evaluates; of a domain those with at most so many hops, counted on the device.

        Energies are those of owned atoms, and a layer reads the neighbours of the atoms that it updates. So layer i of
        L updates atoms with at most L-1-i hops, the embedding those with at most L; owned ones if layers read no other.
        """
        first = hops if self.gathers else 0
        return self.n if self.within is None else self.within[first : first + 1]

    @property
    def gradient(self) -> GradientScratch:
        """The buffers of the backward pass."""
        assert self.b.gradient is not None
        return self.b.gradient

    def forward(self, keep: bool) -> None:
        """Energies of the atoms. keep: also stores what the backward pass reads."""
        if not self.n:
            return
        b, w, reach = self.b, self.weights, len(self.weights.layers)
        self._surroundings()
        self._gate()
        mixed = self.gradient.mixed if keep else b.p
        self._multiply_parts(b.a, self.split.mix, mixed, hops=reach)
        embedding.gated[self.each_atom](
            mixed, b.gate, b.x[0], b.inverse[0], self.atoms(reach), LAST=not w.layers, **self.activation,
            **self.elements,
        )  # fmt: skip
        x = b.x[0]
        for i in range(len(w.layers)):
            x = self._layer(i, x, keep)
        self._read(x, keep)

    def _gate(self) -> None:
        """The gate before its second activation."""
        b, w, norms, reach = self.b, self.weights, self.b.features, len(self.weights.layers)
        embedding.standardised_norms[self.each_atom](
            b.a, w.gate_scale, w.gate_offset, norms, self.atoms(reach), self.epsilons[0], WIDTH=w.width, **self.elements
        )
        self._multiply(norms, self.split.gate_in, w.gate_in_bias, b.hidden, "bias", activation="none", hops=reach)
        self._multiply(b.hidden, self.split.gate_out, w.gate_out_bias, b.gate, "bias", hops=reach)

    def _surroundings(self) -> None:
        """The edges, and the sums over neighbours of the embedding."""
        b, w, e, t, n = self.b, self.weights, self.edges, self.tiles, self.n
        if self.within is not None:
            self.buffers.energies.zero_()  # those of other atoms than the owned are not written
        edge_geometry.place_edges[(max(1, triton.cdiv(e.capacity, BLOCK)),)](
            self.positions, self.cell, self.system, e.row_ptr, e.source, e.target, e.shifts, w.stretch,
            b.knot, b.place, b.stretch, n, w.num_intervals - 1, BLOCK=BLOCK,
        )  # fmt: skip
        rare, walk = sum_by_elements(self), t.surroundings.options(self.c)
        embedding_sum.surroundings[(triton.cdiv(n, t.surroundings.rows), self.c // walk["SLICE"])](
            self.numbers, w.targets, w.sources, b.a, self.tables[0], w.own, e.row_ptr, e.source, b.knot, b.place,
            rare, self.atoms(len(w.layers)), CHANNELS=self.c, DEGREE=w.degree, **walk,
        )  # fmt: skip

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b = self.b
        # Without a backward pass, all layers use the buffers of the first.
        slot, after = (i, i + 1) if self.sizes.with_forces else (0, (i + 1) % 2)
        y, p, out = b.y[slot], b.p, b.x[after]
        updated = len(self.weights.layers) - 1 - i  # hops
        self._multiply_parts(x, self.split.mix_in[i], y, hops=updated + 1, scale=1 / self.split.units[i])
        self._messages_of(i, y, keep)
        d = self.gradient.d[i] if keep else y
        self._multiply_parts(p, self.split.mix_out[i], d, hops=updated)
        interaction.update[self.each_atom](
            d, x, self.charge, self.system, out, b.inverse_of(i + 1), self.atoms(updated),
            LAST=i == len(self.weights.layers) - 1, **self.elements,
        )  # fmt: skip
        return out

    def _messages_of(self, i: int, y: Tensor, keep: bool) -> None:
        """The product P̂ of each atom's Y and its messages."""
        b, w, e, t = self.b, self.weights.layers[i], self.edges, self.tiles
        walk, table = t.messages.options(self.c), self.tables[i + 1]
        messages.messages[(triton.cdiv(self.n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, self.gradient.m[i] if keep else y, b.p, self.charge, self.system, table, w.own, e.row_ptr, self.senders,
            b.knot, b.place, self._units(i, keep), self.atoms(len(self.weights.layers) - 1 - i), self.split.units[i],
            CHANNELS=self.c, DEGREE=self.weights.degree, SLICES_FIRST=t.slices_first, KEEP=keep, **self.reflections,
            **walk,
        )  # fmt: skip

    def _units(self, i: int, keep: bool = True) -> Tensor:
        """The units of M of a layer; unused except in half precision."""
        return self.gradient.units[i] if keep and self.gradient.units else self.b.features

    def _read(self, x: Tensor, keep: bool) -> None:
        b, w = self.b, self.weights
        norms = self.norms(keep)
        readout.read_norms[self.each_atom](
            x, None, self.charge, self.system, w.read_scale, w.read_offset, norms, self.atoms(0), self.epsilons[1],
            WIDTH=w.width, **self.elements,
        )  # fmt: skip
        self._multiply(norms, self.split.read, w.read_bias, b.features, "bias", activation="none")
        self._head(keep, slice(0, self.n))

    def norms(self, keep: bool) -> Tensor:
        """The buffer of the standardised norms of the readout, then of their gradient."""
        return self.gradient.norms if keep else self.b.gate

    def _head(self, keep: bool, rows: slice) -> None:
        """Energies of some atoms from their features, and the gradient of the features if `keep`."""
        b, w, h, count = self.b, self.weights, self.weights.head, rows.stop - rows.start
        numbers, energies = self.numbers[rows], self.buffers.energies[rows]
        atoms = count if self.within is None else self.atoms(0)
        if self.buffers.features is not None:  # before the kernels of the head put a gradient in their place
            self.buffers.features[rows].copy_(b.features[:count])
        if h.gated:
            self._gated_head(keep, numbers, energies, atoms)
            return
        readout.read_energies[(triton.cdiv(count, ATOMS),)](
            b.features, b.features if b.gradient is None else b.gradient.features, b.head, h.into, h.more, h.bias,
            h.last, h.constants, w.references, numbers, energies, atoms, HEAD=h.width, LAYERS=h.num_layers,
            GRADIENT=keep, CHANNELS=self.c, ATOMS=ATOMS, STEP=min(32, self.c), PRECISION=self.head_precision,
            READOUT=self.readout, **self.activation, num_warps=self.tiles.head_warps,
        )  # fmt: skip

    def _gated_head(self, keep: bool, numbers: Tensor, energies: Tensor, atoms: int | Tensor) -> None:
        """`_head` of a gated head."""
        b, h, z = self.b, self.weights.head, self.b.head
        self._multiply(b.features, self.split.head[0], h.bias[0], z[0], "bias", activation=self.readout)
        for k in range(1, h.num_layers):
            self._multiply_halves(z[k - 1], self.split.head[k], h.bias[k], z[k], atoms, back=False)
        gated_head.gated_energies[(triton.cdiv(len(numbers), ATOMS),)](
            z[-1], h.last, h.constants, self.weights.references, numbers, energies, atoms,
            CHANNELS=self.c, ATOMS=ATOMS, GRADIENT=keep, **self.activation,
        )  # fmt: skip
        if keep:
            for k in reversed(range(1, h.num_layers)):
                self._multiply_halves(z[k], self.split.head_back[k], z[k - 1], z[k - 1], atoms, back=True)
            self._multiply(
                z[0], self.split.head_back[0], b.features, self.gradient.features, "slope", activation=self.readout
            )

    def backward(self, virial: bool) -> None:
        """Forces, and each atom's part of the virial, from the values stored by the forward pass."""
        if not self.n:
            return
        b, g, w = self.b, self.gradient, self.weights
        last = reach = len(w.layers)
        self._read_gradient(last)
        for i in reversed(range(last)):
            self._layer_gradient(i, first=i == last - 1)
        self._multiply_parts(g.x, self.split.mix_back, b.p, hops=reach)
        self._gate_gradient()
        self._forces(b.p, virial)

    def _gate_gradient(self) -> None:
        """Adds to the gradient in A what came through the gate."""
        b, w, reach = self.b, self.weights, len(self.weights.layers)
        self._multiply(b.gate, self.split.gate_out_back, b.hidden, b.hidden, "slope", hops=reach)
        self._multiply(b.hidden, self.split.gate_in_back, w.gate_scale, b.features, "scale", hops=reach)
        embedding.surroundings_mix_gradient[self.each_atom](
            b.p, b.a, b.features, self.atoms(reach), self.epsilons[0], WIDTH=w.width, **self.elements
        )

    def _forces(self, gradient: Tensor, virial: bool) -> None:
        """Forces from the gradient in the sums over neighbours and from what messages left at the edges."""
        b, g, w, e, t, n = self.b, self.gradient, self.weights, self.edges, self.tiles, self.n
        reach = len(w.layers)
        self.before_forces()
        rare = gradient_by_elements(self, gradient)
        # Fewer programs where nearly all of them have nothing to do.
        walk = (t.surroundings_gradient if rare is None else t.surroundings).options(self.c)
        del walk["SLICE"]
        embedding_sum.surroundings_gradient[(triton.cdiv(n, walk["ROWS"]),)](
            self.numbers, w.targets, w.sources, gradient, self.tables[0], e.row_ptr, e.source, b.knot, b.place,
            b.stretch, g.pull, g.half, rare, self.atoms(reach), e.capacity, CHANNELS=self.c, DEGREE=w.degree,
            SLICES=len(g.pull), **walk,
        )  # fmt: skip
        force_kernels.forces[(n,)](
            e.row_ptr, e.source, e.shifts, b.knot, b.place, b.stretch, None, g.half, *self.beside, self.buffers.forces,
            g.virials, self.system, self.buffers.energies, w.shift, self.buffers.energy, n, self.atoms(reach),
            VIRIAL=virial, EDGES=t.force_edges, CANDIDATES=t.force_candidates, AT_ONCE=False, SUM=0,
        )  # fmt: skip

    def _read_gradient(self, last: int) -> None:
        self._multiply(self.gradient.features, self.split.read_back, self.weights.read_scale, self.norms(True), "scale")
        self.norms_gradient(last)

    def norms_gradient(self, last: int) -> None:
        """The gradient in the last tensors from that in their norms."""
        b, g, w = self.b, self.gradient, self.weights
        readout.read_features_gradient[self.each_atom](
            self.norms(True), b.x[last], g.x, *self._made_by(last), self.atoms(0), self.epsilons[1], WIDTH=w.width,
            EMBEDDING=last == 0, UPDATED=True, **self.activation, **self.elements,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, g = self.b, self.gradient
        y, gm, gy, d, unit, units = b.y[i], g.m[i], b.p, g.d[i], self.split.units[i], self._units(i)
        updated = len(self.weights.layers) - 1 - i  # hops
        received, sent = self.atoms(updated), self.atoms(updated + 1)
        self._multiply_parts(d, self.split.mix_out_back[i], gy, hops=updated)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, units, received, unit, **self.reflections, **self.elements
        )
        self._messages_gradient_of(i, first)
        # The gradient in D is not read any more: its buffer takes the gradient through Y.
        self._multiply_parts(gy, self.split.mix_in_back[i], d, hops=updated + 1)
        interaction.mix_in_gradient[self.each_atom](
            d, b.x[i], b.inverse[i], g.x, *self._made_by(i), sent, received,
            EMBEDDING=i == 0, **self.activation, **self.elements,
        )  # fmt: skip

    def _messages_gradient_of(self, i: int, first: bool) -> None:
        """Adds to the gradient in Y what came through messages, from that in M."""
        b, g, w, e, t = self.b, self.gradient, self.weights.layers[i], self.edges, self.tiles
        updated = len(self.weights.layers) - 1 - i  # hops
        walk, table = t.messages_gradient.options(self.c), self.tables[i + 1]
        messages.messages_gradient[(triton.cdiv(self.n, t.messages_gradient.rows) * len(g.pull),)](
            b.y[i], g.m[i], b.p, table, w.own, e.row_ptr, self.senders, b.knot, b.place, g.pull, self._units(i),
            self.atoms(updated + 1), self.atoms(updated), e.capacity, self.split.units[i], CHANNELS=self.c,
            DEGREE=self.weights.degree, FIRST=first, SLICES_FIRST=t.slices_first, **walk,
        )  # fmt: skip

    def _made_by(self, i: int) -> tuple[Tensor, ...]:
        """Buffers of the layer, or the embedding, that computed the tensors x_i; and the charges."""
        g = self.gradient
        return g.d[i - 1] if i else g.mixed, g.mixed, self.b.gate, self.charge, self.system

    def total(self, virial: bool) -> None:
        """Sums over systems."""
        out, gradient = self.buffers, self.b.gradient
        if self.sizes.num_systems:
            force_kernels.sum_systems[(self.sizes.num_systems,)](
                self.system, out.energies, self.weights.shift, out.virial if gradient is None else gradient.virials,
                out.energy, out.virial, self.cell, out.stress, self.n, VIRIAL=virial, BLOCK=SUM_BLOCK, SEARCH=SUM_BLOCK,
            )  # fmt: skip
