"""The launches of one evaluation of a TensorNet2: as `Chain`, with charges before every layer and a network of edges.

A layer, with W a product with weights and E one of every edge::

    charge_norms → W → W → W → equilibrate → shares → first_values → E → E → W → messages → W → update

and its gradient::

    W → update_gradient → messages_gradient → [E →] E → E → first_gradient → shares_gradient → equilibrate_gradient
    → W → W → W → W → charged_mix_in_gradient

How E is evaluated: charged_edges.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.engines.gpu.branches import in_branch
from torchmdx.engines.gpu.chain_walks import SUM_BLOCK
from torchmdx.engines.gpu.charged_edges import EdgeNetworkChain
from torchmdx.engines.gpu.triton import charge_equilibration, edge_mlp, interaction
from torchmdx.engines.plan.launch_sizes import SOME_ATOMS
from torchmdx.models.charge_equilibration import LEAST_SHARE
from torchmdx.neighbors.reverse import find_reverse

if TYPE_CHECKING:
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

OPPOSITE, READOUT = 1, 2  # numbers of branches
FEWEST_AT_ONCE, MOST_AT_ONCE = 16, 512  # atoms of a system, in the sums over it


class ChargedChain(EdgeNetworkChain):
    """One evaluation. Predicted charges add up to the charge of the system, which messages do not use."""

    def __init__(self, model: FastTensorNet2, *inputs: Any) -> None:
        super().__init__(model, *inputs)
        self.total_charge, self.charge = self.charge, model.neutral
        self.cutoff = model.table.stretch.cutoff
        systems, parts = self.sizes.num_systems, self.q.parts_sums.shape[1]
        each = triton.next_power_of_2(max(1, triton.cdiv(self.n, max(1, systems * parts))))
        self.parts = (systems, parts)
        self.sums = dict(
            K=self.charged.charges, BLOCK=min(MOST_AT_ONCE, max(FEWEST_AT_ONCE, each)), SEARCH=SUM_BLOCK, PARTS=parts,
            ALONE=systems == 1, num_warps=8,
        )  # fmt: skip

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

    def forward(self, keep: bool) -> None:
        """The opposite edges are found in parallel with the forward pass, which does not need them."""
        with in_branch(self.positions.device, OPPOSITE) as branch:
            if keep and self.n and self.weights.layers:
                branch.run(lambda: find_reverse(self.edges, self._reverse))
            super().forward(keep)

    @property
    def _reverse(self) -> Tensor:
        assert self.q.reverse is not None
        return self.q.reverse

    def _read(self, x: Tensor, keep: bool) -> None:
        """The energies and, in a branch, the last charges."""
        last = len(self.weights.layers)
        with in_branch(self.positions.device, READOUT) as branch:
            branch.run(lambda: self._read_out(x, keep))
            if self.last_charges:
                self._charges(last, last if self.sizes.with_forces else 0, x, keep)

    def _read_out(self, x: Tensor, keep: bool) -> None:
        """The energies and, if there are last charges, the gradient in the norms of the readout."""
        super()._read(x, keep)
        if keep and self.last_charges:
            self._multiply(
                self.gradient.features, self.split.read_back, self.weights.read_scale, self.norms(keep), "scale"
            )

    def norms(self, keep: bool) -> Tensor:
        return super().norms(keep) if self.q.read_norms is None else self.q.read_norms

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
        self._sum_parts(q.proposed[slot], q.charges[i], back=False)
        charge_equilibration.equilibrate[self.parts](
            q.proposed[slot], self.system, self.total_charge, q.charges[i], q.sums[slot], q.parts_sums, n, LEAST_SHARE,
            w.slack, **self.sums,
        )  # fmt: skip

    def _sum_parts(self, proposed: Tensor, gradient: Tensor, *, back: bool) -> None:
        """Sums over parts of systems of many atoms. gradient: in the charges; read only if `back`."""
        if self.parts[1] > 1:
            charge_equilibration.sum_parts[self.parts](
                proposed, gradient, self.system, self.q.parts_sums, self.n, LEAST_SHARE, BACK=back, **self.sums
            )

    def _read_gradient(self, last: int) -> None:
        b, g, w, n, read_norms = self.b, self.gradient, self.weights, self.n, self.q.read_norms
        if read_norms is None:
            super()._read_gradient(last)
            return
        if not self.pulled:
            self.norms_gradient(last)
            return
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
        self._multiply_parts(g.d[i], self.split.mix_out_back[i], gy)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, n, **self.reflections, **self.elements
        )
        walk = t.messages_gradient.options(self.c)
        grid = (triton.cdiv(n, t.messages_gradient.rows) * len(g.pull),)
        edge_mlp.messages_gradient[grid](
            y, gm, gy, q.z3[i], e.row_ptr, e.source, reverse, b.knot, b.stretch, g.pull, n, e.capacity, self.cutoff,
            CHANNELS=self.c, FIRST=first, **self.activation, **walk,
        )  # fmt: skip
        self._filters_gradient(i)
        edge_mlp.first_gradient[grid](
            self.q.z1[i], q.shares, self.weights.layers[i].table, e.row_ptr, e.source, reverse, b.knot, b.place,
            g.pull, n, e.capacity, CHANNELS=self.c, DEGREE=self.weights.degree, **walk,
        )  # fmt: skip
        self._charges_gradient(i)
        self._multiply_parts(gy, self.split.mix_in_back[i], y)
        charge_equilibration.charged_mix_in_gradient[self.each_atom](
            y, b.x[i], b.inverse[i], g.x, g.norms, *self._made_by(i), n,
            self.charged.equilibrations[i].epsilon, WIDTH=self.weights.width, EMBEDDING=i == 0, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _charges_gradient(self, i: int) -> None:
        """The gradient after the LayerNorm, in `norms`, from those in the charges and in their shares."""
        g, q, w, n = self.gradient, self.q, self.charged.equilibrations[i], self.n
        proposed, second, first, pull = q.proposed[i], q.second[i], q.first[i], self.pull_on(i)
        if i < len(self.weights.layers):
            rows = 1 if n < SOME_ATOMS else 4
            charge_equilibration.shares_gradient[(triton.cdiv(n, rows),)](
                q.shares, self.charged.filters[i].shares, pull, n, K=self.charged.charges, CHANNELS=self.c, ROWS=rows,
                ADD=self.pulled,
            )  # fmt: skip
        self._sum_parts(proposed, pull, back=True)
        charge_equilibration.equilibrate_gradient[self.parts](
            proposed, pull, self.system, q.sums[i], q.parts_sums, n, LEAST_SHARE, **self.sums
        )
        self._multiply(proposed, w.third_back, second, second, "slope")
        self._multiply(second, w.second_back, first, first, "slope")
        self._multiply(first, w.first_back, w.scale, g.norms, "scale")
