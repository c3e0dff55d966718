"""The launches of one evaluation, in order. Nothing here allocates or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from torch import Tensor

from torchmdx.engines.fused.kernels import (
    edge_geometry,
    embedding,
    embedding_sum,
    interaction,
    messages,
    readout,
    tf32_product,
)
from torchmdx.engines.fused.kernels import forces as force_kernels
from torchmdx.engines.fused.kernels.tf32_product import Split
from torchmdx.neighbors.edges import Edges

if TYPE_CHECKING:
    from torchmdx.engines.fused.buffers import Buffers
    from torchmdx.engines.fused.tensornet import FastTensorNet

ATOMS = 16  # of a program of the head: the fewest rows a tensor core takes
BLOCK = 256  # edges of a program where an edge is little work
SUM_BLOCK = 1024


class Chain:
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
    ) -> None:
        self.weights = model.weights
        self.epsilons = model.epsilons
        self.buffers, self.tiles, self.b = buffers, buffers.tiles, buffers.tensors
        self.positions, self.numbers, self.system = positions, atomic_numbers, system_index
        self.cell, self.charge, self.edges = cell, charge, edges
        self.n, self.c = buffers.num_atoms, self.weights.channels
        self.split = model.split_weights
        self.head_precision = "tf32x3" if model.precision == "float32" else "tf32"
        rows = max(1, buffers.tiles.elements // self.c)
        self.each_atom = (triton.cdiv(self.n, rows),)
        self.elements = dict(CHANNELS=self.c, ROWS=rows)
        self.reflections = dict(REFLECTIONS=model.config.group == "O(3)")
        self.activation = dict(ACTIVATION="silu" if model.config.activation == "swish" else model.config.activation)

    def _multiply_parts(self, x: Tensor, matrices: Split, out: Tensor) -> None:
        options = self.tiles.product.options(self.c, self.c)
        blocks = triton.cdiv(self.n, options["ROWS"]) * (self.c // options["COLUMNS"])
        tf32_product.multiply_parts[(9 * blocks,)](
            x, matrices.big, matrices.small, out, self.n, CHANNELS=self.c, PRECISION=matrices.precision, **options
        )

    def _multiply(
        self, x: Tensor, matrix: Split, side: Tensor, out: Tensor, after: str, activation: str | None = None
    ) -> None:
        width, inner = matrix.big.shape
        options = self.tiles.product.options(inner, width)
        tf32_product.multiply[(triton.cdiv(self.n, options["ROWS"]), triton.cdiv(width, options["COLUMNS"]))](
            x, matrix.big, matrix.small, side, out, self.n, INNER=inner, WIDTH=width, PRECISION=matrix.precision,
            AFTER=after, ACTIVATION=activation or self.activation["ACTIVATION"], **options,
        )  # fmt: skip

    def forward(self, keep: bool) -> None:
        """Energies of the atoms. keep: also what the gradient needs."""
        if not self.n:
            return
        b, w, e, t, n = self.b, self.weights, self.edges, self.tiles, self.n
        edge_geometry.place_edges[(max(1, triton.cdiv(e.capacity, BLOCK)),)](
            self.positions, self.cell, self.system, e.row_ptr, e.source, e.target, e.shifts, w.stretch,
            b["knot"], b["place"], b["stretch"], n, w.num_intervals - 1, BLOCK=BLOCK,
        )  # fmt: skip
        walk = t.surroundings.options(self.c)
        embedding_sum.surroundings[(triton.cdiv(n, t.surroundings.rows), self.c // walk["SLICE"])](
            self.numbers, w.targets, w.sources, b["a"], w.table, w.own, e.row_ptr, e.source, b["knot"], b["place"], n,
            CHANNELS=self.c, DEGREE=w.degree, **walk,
        )  # fmt: skip
        norms, mixed = b["features"], b["mixed" if keep else "p"]
        embedding.standardised_norms[self.each_atom](
            b["a"], w.gate_scale, w.gate_offset, norms, n, self.epsilons[0], WIDTH=w.width, **self.elements
        )
        self._multiply(norms, self.split.gate_in, w.gate_in_bias, b["hidden"], "bias", activation="none")
        self._multiply(b["hidden"], self.split.gate_out, w.gate_out_bias, b["gate"], "bias")
        self._multiply_parts(b["a"], self.split.mix, mixed)
        embedding.gated[self.each_atom](
            mixed, b["gate"], b["x0"], b["inverse0"], n, LAST=not w.layers, **self.activation, **self.elements
        )
        x = b["x0"]
        for i in range(len(w.layers)):
            x = self._layer(i, x, keep)
        self._read(x, keep)

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b, w, e, t, n = self.b, self.weights.layers[i], self.edges, self.tiles, self.n
        # Without a gradient to come, every layer works in the buffers of the first.
        slot, after = (i, i + 1) if self.buffers.with_forces else (0, (i + 1) % 2)
        y, p, out = b[f"y{slot}"], b["p"], b[f"x{after}"]
        self._multiply_parts(x, self.split.mix_in[i], y)
        walk = t.messages.options(self.c)
        messages.messages[(triton.cdiv(n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, b[f"m{i}"] if keep else y, p, self.charge, self.system, w.table, w.own, e.row_ptr, e.source, b["knot"],
            b["place"], n, CHANNELS=self.c, DEGREE=self.weights.degree, SLICES_FIRST=t.slices_first, KEEP=keep,
            **self.reflections, **walk,
        )  # fmt: skip
        d = b[f"d{i}"] if keep else y
        self._multiply_parts(p, self.split.mix_out[i], d)
        interaction.update[self.each_atom](
            d, x, self.charge, self.system, out, b.get(f"inverse{i + 1}", b["inverse0"]), n,
            LAST=i == len(self.weights.layers) - 1, **self.elements,
        )  # fmt: skip
        return out

    def _read(self, x: Tensor, keep: bool) -> None:
        b, w, t, n = self.b, self.weights, self.tiles, self.n
        norms = b["norms" if keep else "gate"]
        readout.read_norms[self.each_atom](
            x, w.read_scale, w.read_offset, norms, n, self.epsilons[1], WIDTH=w.width, **self.elements
        )
        self._multiply(norms, self.split.read, w.read_bias, b["features"], "bias", activation="none")
        readout.read_energies[(triton.cdiv(n, ATOMS),)](
            b["features"], b.get("gfeatures", b["features"]), w.head_in, w.head_bias, w.head_out, w.constants,
            w.references, self.numbers, self.buffers.energies, n, HEAD=w.head, GRADIENT=keep,
            CHANNELS=self.c, ATOMS=ATOMS, STEP=min(32, self.c), PRECISION=self.head_precision, **self.activation,
            num_warps=t.head_warps,
        )  # fmt: skip

    def backward(self, virial: bool) -> None:
        """Forces, and each atom's share of the virial, from what the forward pass kept."""
        if not self.n:
            return
        b, w, e, t, n = self.b, self.weights, self.edges, self.tiles, self.n
        last = len(w.layers)
        self._read_gradient(last)
        for i in reversed(range(last)):
            self._layer_gradient(i, first=i == last - 1)
        self._multiply(b["gate"], self.split.gate_out_back, b["hidden"], b["hidden"], "slope")
        self._multiply(b["hidden"], self.split.gate_in_back, w.gate_scale, b["features"], "scale")
        self._multiply_parts(b["g"], self.split.mix_back, b["p"])
        embedding.surroundings_mix_gradient[self.each_atom](
            b["p"], b["a"], b["features"], n, self.epsilons[0], WIDTH=w.width, **self.elements
        )
        walk = t.surroundings_gradient.options(self.c)
        del walk["SLICE"]
        embedding_sum.surroundings_gradient[(triton.cdiv(n, walk["ROWS"]),)](
            self.numbers, w.targets, w.sources, b["p"], w.table, e.row_ptr, e.source, b["knot"], b["place"],
            b["stretch"], b["pull"], b["half"], n, e.capacity, CHANNELS=self.c, DEGREE=w.degree,
            SLICES=len(b["pull"]), **walk,
        )  # fmt: skip
        force_kernels.forces[(n,)](
            e.row_ptr, e.source, e.shifts, b["knot"], b["place"], b["stretch"], b["half"], self.buffers.forces,
            b["virials"], self.system, self.buffers.energies, w.shift, self.buffers.energy, n, VIRIAL=virial,
            EDGES=t.force_edges, CANDIDATES=t.force_candidates, AT_ONCE=False, SUM=0,
        )  # fmt: skip

    def _read_gradient(self, last: int) -> None:
        b, w, n = self.b, self.weights, self.n
        self._multiply(b["gfeatures"], self.split.read_back, w.read_scale, b["norms"], "scale")
        readout.read_features_gradient[self.each_atom](
            b["norms"], b[f"x{last}"], b["g"], *self._made_by(last), n, self.epsilons[1], WIDTH=w.width,
            EMBEDDING=last == 0, **self.activation, **self.elements,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, w, e, t, n = self.b, self.weights.layers[i], self.edges, self.tiles, self.n
        y, gm, gy = b[f"y{i}"], b[f"m{i}"], b["p"]
        self._multiply_parts(b[f"d{i}"], self.split.mix_out_back[i], gy)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, n, **self.reflections, **self.elements
        )
        walk = t.messages_gradient.options(self.c)
        messages.messages_gradient[(triton.cdiv(n, t.messages_gradient.rows) * len(b["pull"]),)](
            y, gm, gy, w.table, w.own, e.row_ptr, e.source, b["knot"], b["place"], b["pull"], n, e.capacity,
            CHANNELS=self.c, DEGREE=self.weights.degree, FIRST=first, SLICES_FIRST=t.slices_first, **walk,
        )  # fmt: skip
        # Y has been read for the last time: its place holds what comes through it.
        self._multiply_parts(gy, self.split.mix_in_back[i], y)
        interaction.mix_in_gradient[self.each_atom](
            y, b[f"x{i}"], b[f"inverse{i}"], b["g"], *self._made_by(i), n,
            EMBEDDING=i == 0, **self.activation, **self.elements,
        )  # fmt: skip

    def _made_by(self, i: int) -> tuple[Tensor, ...]:
        """Buffers of what made the tensors x_i: a layer, or the embedding; and the charges."""
        mixed = self.b["mixed"]
        return self.b[f"d{i - 1}"] if i else mixed, mixed, self.b["gate"], self.charge, self.system

    def total(self, virial: bool) -> None:
        """Sums over systems."""
        out = self.buffers
        if out.num_systems:
            force_kernels.sum_systems[(out.num_systems,)](
                self.system, out.energies, self.weights.shift, self.b.get("virials", out.virial), out.energy,
                out.virial, self.n, VIRIAL=virial, BLOCK=SUM_BLOCK, SEARCH=SUM_BLOCK,
            )  # fmt: skip
