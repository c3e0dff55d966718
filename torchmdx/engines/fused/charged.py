"""The launches of one evaluation of a TensorNet2: as `Chain`, with charges before every layer and networks of edges.

A layer, with W a product with weights and E one of every edge:

    charge_norms → W → W → W → equilibrate → shares → first_values → E → E → W → messages → W → update

and back:

    W → update_gradient → messages_gradient → [E →] E → E → first_gradient → shares_gradient → equilibrate_gradient
    → W → W → W → W → charged_mix_in_gradient

With `two_maps`, E → E is one kernel forth. Back, z₁ is made again between them (first_values), or, where there are so
many edges that z₂ is, all three E are first_back → second_back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from torchmdx.engines.fused.kernels import (
    charge_equilibration,
    edge_mlp,
    edge_mlp_backward,
    edge_mlp_forward,
    interaction,
)
from torchmdx.engines.fused.kernels.tf32_product import Split
from torchmdx.engines.fused.many_atoms import SUM_BLOCK, Chain
from torchmdx.models.charge_equilibration import LEAST_SHARE
from torchmdx.neighbors.edges import Edges
from torchmdx.neighbors.reverse import find_reverse

if TYPE_CHECKING:
    from torchmdx.engines.fused.buffers import Buffers
    from torchmdx.engines.fused.tensornet2 import FastTensorNet2

FIRST_ROWS = 16  # of a program, of edges
MOST_ATOMS_AT_ONCE = 512  # of a system, in the sums over it


class ChargedChain(Chain):
    """One evaluation. Charges are those of a system that they add up to; messages see no total charge."""

    def __init__(
        self,
        model: FastTensorNet2,
        buffers: Buffers,
        positions: Tensor,
        atomic_numbers: Tensor,
        system_index: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
    ) -> None:
        super().__init__(model, buffers, positions, atomic_numbers, system_index, cell, model.neutral, edges)
        self.total_charge = charge
        self.last_charges = "read_norms" in buffers.tensors
        # Of an energy that is no part of the chain, in all charges [N,(L+1)K]; to be set before `backward`.
        self.pull_on_charges: Tensor | None = None
        self.charged = model.charged
        self.two_maps = buffers.tiles.two_maps if model.takes_half_parts else None
        self.splits_gradient = "units" in buffers.tensors
        self.rows = self.n + max(edges.capacity, 1)
        self.cutoff = model.table.stretch.cutoff
        each = triton.next_power_of_2(max(1, triton.cdiv(self.n, max(1, buffers.num_systems))))
        self.sums = dict(
            K=self.charged.charges, BLOCK=min(MOST_ATOMS_AT_ONCE, max(16, each)), SEARCH=SUM_BLOCK, num_warps=8
        )

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b, e, t, n = self.b, self.edges, self.tiles, self.n
        slot, after = (i, i + 1) if self.buffers.with_forces else (0, (i + 1) % 2)
        y, p, out = b[f"y{slot}"], b["p"], b[f"x{after}"]
        self._charges(i, slot, x, keep)
        self._shares(i)
        self._filters(i, slot)
        self._multiply_parts(x, self.split.mix_in[i], y)
        walk = t.messages.options(self.c)
        edge_mlp.messages[(triton.cdiv(n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, b[f"m{i}"] if keep else y, p, self.charge, self.system, b[f"z3_{slot}"], e.row_ptr, e.source, b["knot"],
            b["stretch"], n, self.cutoff, CHANNELS=self.c, KEEP=keep, **self.activation, **self.reflections, **walk,
        )  # fmt: skip
        d = b[f"d{i}"] if keep else y
        self._multiply_parts(p, self.split.mix_out[i], d)
        interaction.update[self.each_atom](
            d, x, self.charge, self.system, out, b.get(f"inverse{i + 1}", b["inverse0"]), n,
            LAST=i == len(self.weights.layers) - 1, **self.elements,
        )  # fmt: skip
        return out

    def _read(self, x: Tensor, keep: bool) -> None:
        if self.last_charges:
            last = len(self.weights.layers)
            self._charges(last, last if self.buffers.with_forces else 0, x, keep)
        super()._read(x, keep)

    def _charges(self, i: int, slot: int, x: Tensor, keep: bool) -> None:
        """Charges of the tensors x before layer i, or after the last."""
        b, w, n = self.b, self.charged.equilibrations[i], self.n
        norms = "norms" if keep else "gate"
        charge_equilibration.charge_norms[self.each_atom](
            x, b.get(f"inverse{i}", b["inverse0"]), w.scale, w.offset, b[norms], n, w.epsilon,
            WIDTH=self.weights.width, LAST=i == len(self.weights.layers), **self.elements,
        )  # fmt: skip
        self._multiply(b[norms], w.first, w.first_bias, b[f"first{slot}"], "bias", activation="none")
        self._multiply(b[f"first{slot}"], w.second, w.second_bias, b[f"second{slot}"], "bias")
        self._multiply(b[f"second{slot}"], w.third, w.third_bias, b[f"proposed{slot}"], "bias")
        charge_equilibration.equilibrate[(self.buffers.num_systems,)](
            b[f"proposed{slot}"], self.system, self.total_charge, b[f"q{i}"], b[f"sums{slot}"], n, LEAST_SHARE, w.slack,
            **self.sums,
        )  # fmt: skip

    def _filters(self, i: int, slot: int) -> None:
        b, w = self.b, self.charged.filters[i]
        z1, z3, kept = b.get(f"z1_{slot}"), b[f"z3_{slot}"], b.get(f"z2_{slot}")
        self._first_values(i, slot)
        if self.two_maps is not None:
            edge_mlp_forward.two_maps[(triton.cdiv(self.rows, self.two_maps.rows),)](
                z3 if z1 is None else z1, w.middle_parts.big, w.middle_parts.small, w.middle_bias, w.last_parts.big,
                w.last_parts.small, w.last_bias, z3 if kept is None else kept, z3, self.edges.row_ptr, self.n,
                w.middle_parts.unit, w.last_parts.unit, CHANNELS=self.c, STRIDE=self._stride(slot),
                KEEP=kept is not None, **self.activation, **self.two_maps.options(),
            )  # fmt: skip
            return
        assert z1 is not None
        for start, acted in self._pieces():
            rows = slice(start, start + len(acted))
            self._forth(z1[rows], w.middle, w.middle_bias, None if kept is None else kept[rows], acted, start)
            self._forth(acted, w.last, w.last_bias, z3[rows], None, start)

    def _first_values(self, i: int, slot: int) -> None:
        b, own, e = self.b, self.weights.layers[i], self.edges
        edge_mlp.first_values[(triton.cdiv(self.rows, FIRST_ROWS),)](
            b["shares"], own.table, own.own, e.row_ptr, e.source, e.target, b["knot"], b["place"],
            b.get(f"z1_{slot}", b[f"z3_{slot}"]), self.n, CHANNELS=self.c, STRIDE=self._stride(slot),
            DEGREE=self.weights.degree, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _stride(self, slot: int) -> int:
        """Of rows of z₁, which may lie in those of z₃."""
        return self.c if f"z1_{slot}" in self.b else 3 * self.c

    def _shares(self, i: int) -> None:
        """What the charges before layer i do to its filters."""
        charge_equilibration.shares[(triton.cdiv(self.n, FIRST_ROWS), 2)](
            self.b[f"q{i}"], self.charged.filters[i].shares, self.b["shares"], self.n, K=self.charged.charges,
            CHANNELS=self.c, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _filters_gradient(self, i: int) -> None:
        """From the gradient in z₃ those in z₂ and z₁, in their places."""
        b, w = self.b, self.charged.filters[i]
        z1, z3, kept = b.get(f"z1_{i}"), b[f"z3_{i}"], b.get(f"z2_{i}")
        if kept is not None:
            self._back(z3, w.last_back, kept, 0)
            if z1 is None:
                if i + 1 < len(self.weights.layers):  # else they are those of this layer
                    self._shares(i)
                self._first_values(i, i)
            self._back(kept, w.middle_back, z3.flatten(1) if z1 is None else z1, 0)
            return
        assert z1 is not None
        for start, z2 in self._pieces():
            rows = slice(start, start + len(z2))
            if self.splits_gradient:
                self._parts_back(i, z1[rows], z3[rows], b["units"][rows], z2, start)
            else:
                self._forth(z1[rows], w.middle, w.middle_bias, z2, None, start)
                self._back(z3[rows], w.last_back, z2, start)
                self._back(z2, w.middle_back, z1[rows], start)

    def _parts_back(self, i: int, z1: Tensor, z3: Tensor, units: Tensor, room: Tensor, start: int) -> None:
        """The same for some rows of a gradient that is split in parts. room: for that in z₂."""
        b, w, c = self.b, self.charged.filters[i], self.c
        middle, last, units2, parts2 = w.middle_parts, w.last_parts, b["units2"], room.view(torch.float16)
        assert self.two_maps is not None
        where, width = (self.edges.row_ptr, self.n, start, len(room)), c // units.shape[2]
        options = self.two_maps.options_back(width) | dict(CHANNELS=c) | self.activation
        blocks = triton.cdiv(len(room), self.two_maps.rows)
        edge_mlp_backward.first_back[(2 * blocks,)](
            z3.view(torch.float16), units, last.big, last.small, z1, middle.big, middle.small, w.middle_bias, parts2,
            units2, *where, middle.unit, last.unit, SLICE=width, **options,
        )  # fmt: skip
        edge_mlp_backward.second_back[(blocks,)](
            parts2, units2, middle.big, middle.small, z1, *where, middle.unit, **options
        )

    def _pieces(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, scratch [rows,2C]) of every piece of the rows."""
        scratch = self.b["scratch"]
        for start in range(0, self.rows, len(scratch)):
            yield start, scratch[: min(len(scratch), self.rows - start)]

    def _forth(
        self, x: Tensor, matrix: Split, bias: Tensor, out: Tensor | None, acted: Tensor | None, start: int
    ) -> None:
        """The product of rows, stored in `out` as it is and in `acted` activated; x is activated in the first map."""
        width, inner = matrix.big.shape
        options = self.tiles.edge_product.options(inner, width)
        grid = (triton.cdiv(len(x), options["ROWS"]) * (width // options["COLUMNS"]),)
        edge_mlp.multiply_rows[grid](
            x, matrix.big, matrix.small, bias, x if out is None else out, x if acted is None else acted,
            self.edges.row_ptr, self.n, start, len(x), INNER=inner, WIDTH=width, PRECISION=matrix.precision,
            BEFORE=inner == self.c, KEEP=out is not None, AFTER=acted is not None, **self.activation, **options,
        )  # fmt: skip

    def _back(self, x: Tensor, matrix: Split, out: Tensor, start: int) -> None:
        width, inner = matrix.big.shape
        options = self.tiles.edge_product.options(inner, width)
        grid = (triton.cdiv(len(x), options["ROWS"]) * (width // options["COLUMNS"]),)
        edge_mlp.multiply_rows_back[grid](
            x, matrix.big, matrix.small, out, self.edges.row_ptr, self.n, start, len(x), INNER=inner, WIDTH=width,
            STRIDE=out.stride(0), PRECISION=matrix.precision, **self.activation, **options,
        )  # fmt: skip

    def channels(self) -> Tensor:
        """Charges [N,(L+1)K] of embedding and layers, where the last are evaluated."""
        k = self.charged.num_charges
        return torch.cat([self.b[f"q{i}"][:, :k] for i in range(len(self.weights.layers) + 1)], dim=1)

    def _read_gradient(self, last: int) -> None:
        if self.pull_on_charges is None:
            super()._read_gradient(last)
            return
        b, w, n = self.b, self.weights, self.n
        self._multiply(b["gfeatures"], self.split.read_back, w.read_scale, b["read_norms"], "scale")
        self._charges_gradient(last)
        charge_equilibration.charged_read_gradient[self.each_atom](
            b["read_norms"], b["norms"], b[f"x{last}"], b["g"], *self._made_by(last), n, self.epsilons[1],
            self.charged.equilibrations[last].epsilon, WIDTH=w.width, EMBEDDING=last == 0, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, w, e, t, n = self.b, self.weights.layers[i], self.edges, self.tiles, self.n
        y, gm, gy = b[f"y{i}"], b[f"m{i}"], b["p"]
        if first:
            find_reverse(e, b["reverse"])
        self._multiply_parts(b[f"d{i}"], self.split.mix_out_back[i], gy)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, n, **self.reflections, **self.elements
        )
        walk = t.messages_gradient.options(self.c)
        grid = (triton.cdiv(n, t.messages_gradient.rows) * len(b["pull"]),)
        edge_mlp.messages_gradient[grid](
            y, gm, gy, b[f"z3_{i}"], b[f"z3_{i}"].view(torch.float16), b.get("units", b["pull"]), e.row_ptr, e.source,
            b["reverse"], b["knot"], b["stretch"], b["pull"], n, e.capacity, self.cutoff, CHANNELS=self.c, FIRST=first,
            SPLIT=self.splits_gradient, **self.activation, **walk,
        )  # fmt: skip
        self._filters_gradient(i)
        edge_mlp.first_gradient[grid](
            b.get(f"z1_{i}", b[f"z3_{i}"]), b["shares"], w.table, e.row_ptr, e.source, b["reverse"], b["knot"],
            b["place"], b["pull"], n, e.capacity, CHANNELS=self.c, STRIDE=self._stride(i), DEGREE=self.weights.degree,
            **walk,
        )  # fmt: skip
        self._charges_gradient(i)
        self._multiply_parts(gy, self.split.mix_in_back[i], y)
        charge_equilibration.charged_mix_in_gradient[self.each_atom](
            y, b[f"x{i}"], b[f"inverse{i}"], b["g"], b["norms"], *self._made_by(i), n,
            self.charged.equilibrations[i].epsilon, WIDTH=self.weights.width, EMBEDDING=i == 0, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _charges_gradient(self, i: int) -> None:
        """From the gradient in charges, and in their shares of filters, that behind the LayerNorm, in "norms"."""
        b, w, n = self.b, self.charged.equilibrations[i], self.n
        proposed, second, first = b[f"proposed{i}"], b[f"second{i}"], b[f"first{i}"]
        if self.pull_on_charges is not None:
            k = self.charged.num_charges
            b["gq"].zero_()[:, :k].copy_(self.pull_on_charges[:, i * k : (i + 1) * k])
        if i < len(self.weights.layers):
            charge_equilibration.shares_gradient[(triton.cdiv(n, 4),)](
                b["shares"], self.charged.filters[i].shares, b["gq"], n, K=self.charged.charges, CHANNELS=self.c,
                ROWS=4, ADD=self.pull_on_charges is not None,
            )  # fmt: skip
        charge_equilibration.equilibrate_gradient[(self.buffers.num_systems,)](
            proposed, b["gq"], self.system, b[f"sums{i}"], n, LEAST_SHARE, **self.sums
        )
        self._multiply(proposed, w.third_back, second, second, "slope")
        self._multiply(second, w.second_back, first, first, "slope")
        self._multiply(first, w.first_back, w.scale, b["norms"], "scale")
