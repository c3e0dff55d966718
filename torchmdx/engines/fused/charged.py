"""The launches of one evaluation of a TensorNet2: as `Chain`, with charges before every layer and a network of edges.

A layer, with W a product with weights and E one of every edge:

    charge_norms → W → W → W → equilibrate → shares → first_values → E → E → W → messages → W → update

and its gradient:

    W → update_gradient → messages_gradient → [E →] E → E → first_gradient → shares_gradient → equilibrate_gradient
    → W → W → W → W → charged_mix_in_gradient

With `two_maps`, E → E is one kernel of the forward pass. The backward pass evaluates z₁ again between them
(first_values) or, if z₂ is evaluated again, replaces all three E by first_back → second_back.
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
    """One evaluation. Predicted charges add up to the charge of the system, which messages do not use."""

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
        assert buffers.scratch.charged is not None
        self.q = buffers.scratch.charged
        self.last_charges = self.q.read_norms is not None
        # Gradient of other energies in all charges [N,(L+1)K]; to be set before `backward`.
        self.pull_on_charges: Tensor | None = None
        self.charged = model.charged
        self.two_maps = self.tiles.two_maps if model.takes_half_parts else None
        self.rows = self.n + max(edges.capacity, 1)
        self.cutoff = model.table.stretch.cutoff
        each = triton.next_power_of_2(max(1, triton.cdiv(self.n, max(1, self.sizes.num_systems))))
        self.sums = dict(
            K=self.charged.charges, BLOCK=min(MOST_ATOMS_AT_ONCE, max(16, each)), SEARCH=SUM_BLOCK, num_warps=8
        )

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b, q, e, t, n = self.b, self.q, self.edges, self.tiles, self.n
        slot, after = (i, i + 1) if self.sizes.with_forces else (0, (i + 1) % 2)
        y, p, out = b.y[slot], b.p, b.x[after]
        self._charges(i, slot, x, keep)
        self._shares(i)
        self._filters(i, slot)
        self._multiply_parts(x, self.split.mix_in[i], y)
        walk = t.messages.options(self.c)
        edge_mlp.messages[(triton.cdiv(n, t.messages.rows) * (self.c // walk["SLICE"]),)](
            y, self.gradient.m[i] if keep else y, p, self.charge, self.system, q.z3[slot], e.row_ptr, e.source, b.knot,
            b.stretch, n, self.cutoff, CHANNELS=self.c, KEEP=keep, **self.activation, **self.reflections, **walk,
        )  # fmt: skip
        d = self.gradient.d[i] if keep else y
        self._multiply_parts(p, self.split.mix_out[i], d)
        interaction.update[self.each_atom](
            d, x, self.charge, self.system, out, b.inverse_of(i + 1), n,
            LAST=i == len(self.weights.layers) - 1, **self.elements,
        )  # fmt: skip
        return out

    def _read(self, x: Tensor, keep: bool) -> None:
        if self.last_charges:
            last = len(self.weights.layers)
            self._charges(last, last if self.sizes.with_forces else 0, x, keep)
        super()._read(x, keep)

    def _charges(self, i: int, slot: int, x: Tensor, keep: bool) -> None:
        """Charges of the tensors x before layer i, or after the last."""
        b, q, w, n = self.b, self.q, self.charged.equilibrations[i], self.n
        norms = self.gradient.norms if keep else b.gate
        charge_equilibration.charge_norms[self.each_atom](
            x, b.inverse_of(i), w.scale, w.offset, norms, n, w.epsilon,
            WIDTH=self.weights.width, LAST=i == len(self.weights.layers), **self.elements,
        )  # fmt: skip
        self._multiply(norms, w.first, w.first_bias, q.first[slot], "bias", activation="none")
        self._multiply(q.first[slot], w.second, w.second_bias, q.second[slot], "bias")
        self._multiply(q.second[slot], w.third, w.third_bias, q.proposed[slot], "bias")
        charge_equilibration.equilibrate[(self.sizes.num_systems,)](
            q.proposed[slot], self.system, self.total_charge, q.charges[i], q.sums[slot], n, LEAST_SHARE, w.slack,
            **self.sums,
        )  # fmt: skip

    def _filters(self, i: int, slot: int) -> None:
        w = self.charged.filters[i]
        z1, z2, z3 = self._z(slot)
        self._first_values(i, slot)
        if self.two_maps is not None:
            edge_mlp_forward.two_maps[(triton.cdiv(self.rows, self.two_maps.rows),)](
                z3 if z1 is None else z1, w.middle_parts.big, w.middle_parts.small, w.middle_bias, w.last_parts.big,
                w.last_parts.small, w.last_bias, z3 if z2 is None else z2, z3, self.edges.row_ptr, self.n,
                w.middle_parts.unit, w.last_parts.unit, CHANNELS=self.c, STRIDE=self._stride(),
                KEEP=z2 is not None, **self.activation, **self.two_maps.options(),
            )  # fmt: skip
            return
        assert z1 is not None
        for start, acted in self._pieces():
            rows = slice(start, start + len(acted))
            self._forth(z1[rows], w.middle, w.middle_bias, None if z2 is None else z2[rows], acted, start)
            self._forth(acted, w.last, w.last_bias, z3[rows], None, start)

    def _first_values(self, i: int, slot: int) -> None:
        b, q, own, e = self.b, self.q, self.weights.layers[i], self.edges
        edge_mlp.first_values[(triton.cdiv(self.rows, FIRST_ROWS),)](
            q.shares, own.table, own.own, e.row_ptr, e.source, e.target, b.knot, b.place,
            self._z1(slot), self.n, CHANNELS=self.c, STRIDE=self._stride(),
            DEGREE=self.weights.degree, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _z(self, slot: int) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """z₁, z₂ and z₃ of a layer; None for those without a buffer of their own."""
        q = self.q
        return q.z1[slot] if q.z1 else None, q.z2[slot] if q.z2 else None, q.z3[slot]

    def _z1(self, slot: int) -> Tensor:
        """The buffer of z₁, which may be that of z₃."""
        return self.q.z1[slot] if self.q.z1 else self.q.z3[slot]

    def _stride(self) -> int:
        """Distance of rows of z₁."""
        return self.c if self.q.z1 else 3 * self.c

    def _shares(self, i: int) -> None:
        """The shares of the charges before layer i in z₁ of its filters."""
        charge_equilibration.shares[(triton.cdiv(self.n, FIRST_ROWS), 2)](
            self.q.charges[i], self.charged.filters[i].shares, self.q.shares, self.n, K=self.charged.charges,
            CHANNELS=self.c, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _filters_gradient(self, i: int) -> None:
        """Gradients in z₂ and z₁ from that in z₃, in place."""
        w, units = self.charged.filters[i], self.q.units
        z1, z2, z3 = self._z(i)
        if z2 is not None:
            self._back(z3, w.last_back, z2, 0)
            if z1 is None:
                if i + 1 < len(self.weights.layers):  # else they are those of this layer
                    self._shares(i)
                self._first_values(i, i)
            self._back(z2, w.middle_back, z3.flatten(1) if z1 is None else z1, 0)
            return
        assert z1 is not None
        for start, piece in self._pieces():
            rows = slice(start, start + len(piece))
            if units is not None:
                self._parts_back(i, z1[rows], z3[rows], units[rows], piece, start)
            else:
                self._forth(z1[rows], w.middle, w.middle_bias, piece, None, start)
                self._back(z3[rows], w.last_back, piece, start)
                self._back(piece, w.middle_back, z1[rows], start)

    def _parts_back(self, i: int, z1: Tensor, z3: Tensor, units: Tensor, room: Tensor, start: int) -> None:
        """The same for some rows of a gradient in half-precision parts. room: scratch for the gradient in z₂."""
        w, c, units2 = self.charged.filters[i], self.c, self.q.units2
        middle, last, parts2 = w.middle_parts, w.last_parts, room.view(torch.float16)
        assert self.two_maps is not None
        assert units2 is not None
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
        scratch = self.q.piece
        assert scratch is not None
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
        """Charges [N,(L+1)K] of embedding and layers, if the last are evaluated."""
        k = self.charged.num_charges
        return torch.cat([self.q.charges[i][:, :k] for i in range(len(self.weights.layers) + 1)], dim=1)

    def _read_gradient(self, last: int) -> None:
        if self.pull_on_charges is None:
            super()._read_gradient(last)
            return
        b, g, w, n, read_norms = self.b, self.gradient, self.weights, self.n, self.q.read_norms
        assert read_norms is not None
        self._multiply(g.features, self.split.read_back, w.read_scale, read_norms, "scale")
        self._charges_gradient(last)
        charge_equilibration.charged_read_gradient[self.each_atom](
            read_norms, g.norms, b.x[last], g.x, *self._made_by(last), n, self.epsilons[1],
            self.charged.equilibrations[last].epsilon, WIDTH=w.width, EMBEDDING=last == 0, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, g, q, e, t, n = self.b, self.gradient, self.q, self.edges, self.tiles, self.n
        y, gm, gy, reverse = b.y[i], g.m[i], b.p, q.reverse
        assert reverse is not None
        if first:
            find_reverse(e, reverse)
        self._multiply_parts(g.d[i], self.split.mix_out_back[i], gy)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, gm, n, 1.0, **self.reflections, **self.elements
        )
        walk = t.messages_gradient.options(self.c)
        grid = (triton.cdiv(n, t.messages_gradient.rows) * len(g.pull),)
        edge_mlp.messages_gradient[grid](
            y, gm, gy, q.z3[i], q.z3[i].view(torch.float16), g.pull if q.units is None else q.units, e.row_ptr,
            e.source, reverse, b.knot, b.stretch, g.pull, n, e.capacity, self.cutoff, CHANNELS=self.c, FIRST=first,
            SPLIT=q.units is not None, **self.activation, **walk,
        )  # fmt: skip
        self._filters_gradient(i)
        edge_mlp.first_gradient[grid](
            self._z1(i), q.shares, self.weights.layers[i].table, e.row_ptr, e.source, reverse, b.knot, b.place,
            g.pull, n, e.capacity, CHANNELS=self.c, STRIDE=self._stride(), DEGREE=self.weights.degree, **walk,
        )  # fmt: skip
        self._charges_gradient(i)
        self._multiply_parts(gy, self.split.mix_in_back[i], y)
        charge_equilibration.charged_mix_in_gradient[self.each_atom](
            y, b.x[i], b.inverse[i], g.x, g.norms, *self._made_by(i), n,
            self.charged.equilibrations[i].epsilon, WIDTH=self.weights.width, EMBEDDING=i == 0, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _charges_gradient(self, i: int) -> None:
        """The gradient behind the LayerNorm, in `norms`, from those in the charges and in their shares."""
        g, q, w, n = self.gradient, self.q, self.charged.equilibrations[i], self.n
        proposed, second, first = q.proposed[i], q.second[i], q.first[i]
        if self.pull_on_charges is not None:
            k = self.charged.num_charges
            q.charges_gradient.zero_()[:, :k].copy_(self.pull_on_charges[:, i * k : (i + 1) * k])
        if i < len(self.weights.layers):
            charge_equilibration.shares_gradient[(triton.cdiv(n, 4),)](
                q.shares, self.charged.filters[i].shares, q.charges_gradient, n, K=self.charged.charges,
                CHANNELS=self.c, ROWS=4, ADD=self.pull_on_charges is not None,
            )  # fmt: skip
        charge_equilibration.equilibrate_gradient[(self.sizes.num_systems,)](
            proposed, q.charges_gradient, self.system, q.sums[i], n, LEAST_SHARE, **self.sums
        )
        self._multiply(proposed, w.third_back, second, second, "slope")
        self._multiply(second, w.second_back, first, first, "slope")
        self._multiply(first, w.first_back, w.scale, g.norms, "scale")
