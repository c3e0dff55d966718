"""The launches of one evaluation, in order. Nothing here allocates or waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.models.kernels import embedding, geometry, interaction, messages, readout, surroundings
from torchmdx.models.kernels.tiles import Block
from torchmdx.neighbors.edges import Edges

if TYPE_CHECKING:
    from torchmdx.models.fast import Buffers, FastTensorNet

ATOMS = 16  # of one matrix product: the fewest rows a tensor core takes
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
        # Used only where warps share the components of a product; any buffer will do elsewhere.
        self.scratch = self.b.get("scratch", self.b["a"])
        self.blocks = triton.cdiv(self.n, ATOMS)
        self.precision = model.dot_precision
        self.reflections = dict(REFLECTIONS=model.config.group == "O(3)")
        self.activation = dict(ACTIVATION="silu" if model.config.activation == "swish" else model.config.activation)

    def _product(self, block: Block, split: bool = True) -> dict[str, Any]:
        """Options of a kernel that multiplies matrices."""
        options = block.options(self.c, split)
        return dict(CHANNELS=self.c, ATOMS=ATOMS, PRECISION=self.precision, **options)

    def _grid(self, block: Block, width: int) -> tuple[int, int]:
        return self.blocks, width // min(block.columns, self.c)

    def forward(self, keep: bool) -> None:
        """Energies of the atoms. keep: also what the gradient needs."""
        if not self.n:
            return
        b, w, e, t, n = self.b, self.weights, self.edges, self.tiles, self.n
        geometry.place_edges[(max(1, triton.cdiv(e.capacity, BLOCK)),)](
            self.positions, self.cell, self.system, e.row_ptr, e.source, e.target, e.shifts, w.stretch,
            b["knot"], b["place"], b["stretch"], n, w.num_intervals - 1, BLOCK=BLOCK,
        )  # fmt: skip
        walk = t.surroundings.options(self.c)
        surroundings.surroundings[(triton.cdiv(n, t.surroundings.rows), self.c // walk["SLICE"])](
            self.numbers, w.targets, w.sources, b["a"], w.table, w.own, e.row_ptr, e.source, b["knot"], b["place"], n,
            CHANNELS=self.c, DEGREE=w.degree, **walk,
        )  # fmt: skip
        embedding.gate_hidden[self._grid(t.norm, w.hidden)](
            b["a"], w.gate_scale, w.gate_offset, w.gate_in, w.gate_in_bias, b["hidden"], n, self.epsilons[0],
            WIDTH=w.width, HIDDEN_WIDTH=w.hidden, **self._product(t.norm, split=False),
        )  # fmt: skip
        embedding.gate[self._grid(t.single, 3 * self.c)](
            b["hidden"], w.gate_out, w.gate_out_bias, b["gate"], n, HIDDEN_WIDTH=w.hidden,
            **self.activation, **self._product(t.single),
        )  # fmt: skip
        embedding.mix_and_gate[self._grid(t.product, self.c)](
            b["a"], w.mix, b["gate"], b.get("mixed", b["a"]), b["x0"], b["inverse0"], self.scratch, n,
            KEEP=keep, LAST=not w.layers, **self.activation, **self._product(t.product),
        )  # fmt: skip
        x = b["x0"]
        for i in range(len(w.layers)):
            x = self._layer(i, x, keep)
        self._read(x, keep)

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b, w, e, t, n = self.b, self.weights.layers[i], self.edges, self.tiles, self.n
        # Without a gradient to come, every layer works in the buffers of the first.
        slot, after = (i, i + 1) if self.buffers.with_forces else (0, (i + 1) % 2)
        y, p, out = b[f"y{slot}"], b["p"], b[f"x{after}"]
        product, grid = self._product(t.product), self._grid(t.product, self.c)
        interaction.mix_in[grid](x, w.mix_in, y, self.scratch, n, **product)
        walk = t.messages.options(self.c)
        messages.messages[(triton.cdiv(n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, b[f"m{i}"] if keep else y, p, self.charge, self.system, w.table, w.own, e.row_ptr, e.source, b["knot"],
            b["place"], n, CHANNELS=self.c, DEGREE=self.weights.degree, SLICES_FIRST=t.slices_first, KEEP=keep,
            **self.reflections, **walk,
        )  # fmt: skip
        interaction.update[grid](
            p, w.mix_out, x, self.charge, self.system, b[f"d{i}"] if keep else p, out,
            b.get(f"inverse{i + 1}", b["inverse0"]), self.scratch, n,
            KEEP=keep, LAST=i == len(self.weights.layers) - 1, **product,
        )  # fmt: skip
        return out

    def _read(self, x: Tensor, keep: bool) -> None:
        b, w, t, n = self.b, self.weights, self.tiles, self.n
        readout.read_features[self._grid(t.norm, self.c)](
            x, w.read_scale, w.read_offset, w.read, w.read_bias, b["features"], n, self.epsilons[1],
            WIDTH=w.width, **self._product(t.norm, split=False),
        )  # fmt: skip
        options = self._product(t.head, split=False)
        del options["COLUMNS"]
        readout.read_energies[(self.blocks,)](
            b["features"], b.get("gfeatures", b["features"]), w.head_in, w.head_bias, w.head_out, w.constants,
            w.references, self.numbers, self.buffers.energies, n, HEAD=w.head, GRADIENT=keep,
            **self.activation, **options,
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
        product, grid = self._product(t.product), self._grid(t.product, self.c)
        wide = self._product(t.single)
        embedding.gate_hidden_gradient[self._grid(t.single, w.hidden)](
            b["gate"], b["hidden"], w.gate_out_back, n, HIDDEN_WIDTH=w.hidden, **self.activation, **wide
        )
        gnorm = b["features"]
        embedding.gate_norm_gradient[self._grid(t.single, self.c)](
            b["hidden"], w.gate_in_back, w.gate_scale, gnorm, n, HIDDEN_WIDTH=w.hidden,
            **self._product(t.single),
        )  # fmt: skip
        embedding.surroundings_mix_gradient[grid](
            b["g"], b["a"], gnorm, w.mix_back, b["p"], self.scratch, n, self.epsilons[0], WIDTH=w.width, **product
        )
        walk = t.surroundings_gradient.options(self.c)
        del walk["SLICE"]
        surroundings.surroundings_gradient[(triton.cdiv(n, walk["ROWS"]),)](
            self.numbers, w.targets, w.sources, b["p"], w.table, e.row_ptr, e.source, b["knot"], b["place"],
            b["stretch"], b["pull"], b["half"], n, e.capacity, CHANNELS=self.c, DEGREE=w.degree,
            SLICES=len(b["pull"]), **walk,
        )  # fmt: skip
        geometry.forces[(n,)](
            e.row_ptr, e.source, e.shifts, b["knot"], b["place"], b["stretch"], b["half"], self.buffers.forces,
            b["virials"], n, VIRIAL=virial, EDGES=t.force_edges, CANDIDATES=t.force_candidates,
        )  # fmt: skip

    def _read_gradient(self, last: int) -> None:
        b, w, t, n = self.b, self.weights, self.tiles, self.n
        gnorms = b["gnorms"]
        readout.read_norms_gradient[self._grid(t.single, 3 * self.c)](
            b["gfeatures"], w.read_back, w.read_scale, gnorms, n, **self._product(t.single)
        )
        readout.read_features_gradient[(self.blocks,)](
            gnorms, b[f"x{last}"], b["g"], *self._made_by(last), n, self.epsilons[1], WIDTH=w.width, CHANNELS=self.c,
            ATOMS=ATOMS, EMBEDDING=last == 0, num_warps=t.readout_warps, **self.activation,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, w, e, t, n = self.b, self.weights.layers[i], self.edges, self.tiles, self.n
        y, gm, gy = b[f"y{i}"], b[f"m{i}"], b["p"]
        interaction.update_gradient[self._grid(t.last, self.c)](
            b[f"d{i}"], w.mix_out_back, y, gm, self.charge, self.system, gy, self.scratch, n,
            **self.reflections, **self._product(t.last),
        )  # fmt: skip
        walk = t.messages_gradient.options(self.c)
        messages.messages_gradient[(triton.cdiv(n, t.messages_gradient.rows) * len(b["pull"]),)](
            y, gm, gy, w.table, w.own, e.row_ptr, e.source, b["knot"], b["place"], b["pull"], n, e.capacity,
            CHANNELS=self.c, DEGREE=self.weights.degree, FIRST=first, SLICES_FIRST=t.slices_first, **walk,
        )  # fmt: skip
        interaction.mix_in_gradient[self._grid(t.product, self.c)](
            gy, w.mix_in_back, b[f"x{i}"], b[f"inverse{i}"], b["g"], *self._made_by(i), self.scratch, n,
            EMBEDDING=i == 0, **self.activation, **self._product(t.product),
        )  # fmt: skip

    def _made_by(self, i: int) -> tuple[Tensor, ...]:
        """Buffers of what made the tensors x_i: a layer, or the embedding; and the charges."""
        mixed = self.b["mixed"]
        return self.b[f"d{i - 1}"] if i else mixed, mixed, self.b["gate"], self.charge, self.system

    def total(self, virial: bool) -> None:
        """Sums over systems."""
        out = self.buffers
        if out.num_systems:
            geometry.sum_systems[(out.num_systems,)](
                self.system, out.energies, self.weights.shift, self.b.get("virials", out.virial), out.energy,
                out.virial, self.n, VIRIAL=virial, BLOCK=SUM_BLOCK, SEARCH=SUM_BLOCK,
            )  # fmt: skip
