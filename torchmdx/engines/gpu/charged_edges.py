"""The network of every edge in the evaluation of a TensorNet2, forward and backward: see charged.py, edge_mlp.py.

With `edge_maps`, on an H100 or H200, both maps are one kernel in each direction, and z₂ stands for the slopes of its
activation; if these are not kept, the backward pass evaluates z₂ again. Else every map is a product of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.triton import charge_equilibration, edge_mlp
from torchmdx.engines.gpu.triton.tf32_product import Split

if TYPE_CHECKING:
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

FIRST_ROWS = 16  # of a program, of edges


class EdgeNetworkChain(Chain):
    """A chain with the network of edges, whose values are in its scratch memory for charges."""

    def __init__(self, model: FastTensorNet2, *inputs: Any) -> None:
        super().__init__(model, *inputs)
        assert self.b.charged is not None
        self.q = self.b.charged
        self.charged = model.charged
        self.edge_maps = model.edge_maps if model.plan.edge_maps else None
        self.rows = self.n + max(self.edges.capacity, 1)
        self.last_charges = self.q.read_norms is not None
        self.pulled = False  # whether other energies depend on the charges

    def channels(self) -> Tensor:
        """Charges [N,(L+1)K] of embedding and layers, if the last are evaluated."""
        return self.q.charges[..., : self.charged.num_charges].transpose(0, 1).flatten(1)

    def take_pull(self, gradient: Tensor, *, add: bool = False) -> None:
        """Takes the gradient of other energies in all charges [N,(L+1)K], before `backward`. add: to what is there."""
        given, count = self.q.charges_gradient, self.charged.num_charges
        values = gradient.unflatten(1, (len(given), count)).transpose(0, 1)
        if add:
            given[..., :count].add_(values)
        else:
            given.zero_()[..., :count].copy_(values)
        self.pulled = True

    def pull_on(self, i: int) -> Tensor:
        """The gradient in the charges before layer i, of other energies if `pulled`."""
        return self.q.charges_gradient[i if self.pulled else 0]

    def _filters(self, i: int, slot: int) -> None:
        w = self.charged.filters[i]
        z1, z2, z3 = self._z(slot)
        self._first_values(i, slot)
        if self.edge_maps is not None:
            self.edge_maps.forth(i, z1, z3, self.edges.row_ptr, z2)
            return
        for start, acted in self._pieces():
            rows = slice(start, start + len(acted))
            self._forth(z1[rows], w.middle, w.middle_bias, None if z2 is None else z2[rows], acted, start)
            self._forth(acted, w.last, w.last_bias, z3[rows], None, start)

    def _first_values(self, i: int, slot: int) -> None:
        b, q, own, e = self.b, self.q, self.weights.layers[i], self.edges
        edge_mlp.first_values[(triton.cdiv(self.rows, FIRST_ROWS),)](
            q.shares, own.table, own.own, e.row_ptr, e.source, e.target, b.knot, b.place,
            q.z1[slot], self.n, CHANNELS=self.c, DEGREE=self.weights.degree, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _z(self, slot: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """z₁, z₂ and z₃ of a layer; None for z₂ without a buffer of its own."""
        q = self.q
        return q.z1[slot], q.z2[slot] if q.z2 else None, q.z3[slot]

    def _shares(self, i: int) -> None:
        """The shares of the charges before layer i in z₁ of its filters."""
        charge_equilibration.shares[(triton.cdiv(self.n, FIRST_ROWS), 2)](
            self.q.charges[i], self.charged.filters[i].shares, self.q.shares, self.n, K=self.charged.charges,
            CHANNELS=self.c, ROWS=FIRST_ROWS,
        )  # fmt: skip

    def _filters_gradient(self, i: int) -> None:
        """Gradients in z₂ and z₁ from that in z₃, in place."""
        w = self.charged.filters[i]
        z1, z2, z3 = self._z(i)
        if self.edge_maps is not None:
            self.edge_maps.back(i, z1, z3, self.edges.row_ptr, z2)
            return
        if z2 is not None:
            self._back(z3, w.last_back, z2, 0)
            self._back(z2, w.middle_back, z1, 0)
            return
        for start, piece in self._pieces():
            rows = slice(start, start + len(piece))
            self._forth(z1[rows], w.middle, w.middle_bias, piece, None, start)
            self._back(z3[rows], w.last_back, piece, start)
            self._back(piece, w.middle_back, z1[rows], start)

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
            self.edges.row_ptr, self.n, start, len(x), INNER=inner, WIDTH=width,
            BEFORE=inner == self.c, KEEP=out is not None, AFTER=acted is not None, **self.activation, **options,
        )  # fmt: skip

    def _back(self, x: Tensor, matrix: Split, out: Tensor, start: int) -> None:
        width, inner = matrix.big.shape
        options = self.tiles.edge_product.options(inner, width)
        grid = (triton.cdiv(len(x), options["ROWS"]) * (width // options["COLUMNS"]),)
        edge_mlp.multiply_rows_back[grid](
            x, matrix.big, matrix.small, out, self.edges.row_ptr, self.n, start, len(x), INNER=inner, WIDTH=width,
            **self.activation, **options,
        )  # fmt: skip
