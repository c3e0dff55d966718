"""The launches of one evaluation of a TensorNet2 for few atoms of one system: see triton/charged_atom.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.engines.gpu.branches import in_branch
from torchmdx.engines.gpu.charged import FEWEST_AT_ONCE, MOST_AT_ONCE, OPPOSITE
from torchmdx.engines.gpu.charged_cluster import (
    EMBED,
    GRADIENT,
    LAST,
    LAYER,
    MIDDLE,
    MIDDLE_GRADIENT,
    OUTPUT,
    ChargedClusters,
)
from torchmdx.engines.gpu.charged_edges import EdgeNetworkChain
from torchmdx.engines.gpu.few_atoms import RowChain
from torchmdx.engines.gpu.triton import charge_equilibration, charged_atom, charged_atom_gradient, edge_mlp
from torchmdx.engines.plan.launch_sizes import ProductBlock
from torchmdx.models.charge_equilibration import LEAST_SHARE
from torchmdx.neighbors.reverse import find_reverse

if TYPE_CHECKING:
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

# Rows and columns of z₂ that a program makes, and channels of z₁ at a time; the other products of edges.
FIRST, EDGES = ProductBlock(16, 64, 32, 8), ProductBlock(columns=32)


class ChargedRowChain(EdgeNetworkChain, RowChain):
    """The same function and the same buffers as `ChargedChain`, for one system and networks of at least one layer."""

    def __init__(self, model: FastTensorNet2, *inputs: Any) -> None:
        super().__init__(model, *inputs)
        assert model.row_weights is not None
        self.own, self.model_clusters = model.row_weights, model.clusters
        self.clusters: ChargedClusters | None = None
        self.total_charge, self.charge = self.charge, model.neutral
        self.tiles = replace(self.tiles, edge_product=EDGES)
        self.cutoff = model.table.stretch.cutoff
        at_once = min(MOST_AT_ONCE, max(FEWEST_AT_ONCE, triton.next_power_of_2(self.n)))
        self.sums = dict(K=self.charged.charges, BLOCK=at_once)

    def _charges_of(self, i: int) -> tuple[Any, ...]:
        """The arguments of the charges' network before layer i."""
        q, w, own = self.q, self.charged.equilibrations[i], self.own.charges[i]
        slot = i if self.sizes.with_forces else 0
        return (
            w.scale, w.offset, own.first, w.first_bias, own.second, w.second_bias, own.third, w.third_bias,
            q.first[slot], q.second[slot], q.proposed[slot], w.epsilon,
        )  # fmt: skip

    def forward(self, keep: bool) -> None:
        if not self.n:
            return
        self.clusters = self.model_clusters if keep else None
        with in_branch(self.positions.device, OPPOSITE) as branch:
            reverse = self.q.reverse
            if keep and self.edge_maps is not None and reverse is not None:
                branch.run(lambda: find_reverse(self.edges, reverse))
            self._forward(keep)

    def _forward(self, keep: bool) -> None:
        if self.clusters is not None:
            self.clusters.launch(EMBED, self)
        else:
            self._embed(keep)
        self._equilibrate(0)
        for i in range(len(self.weights.layers)):
            self._forward_layer(i, keep)

    def _embed(self, keep: bool) -> None:
        b, w, e = self.b, self.weights, self.edges
        charged_atom.embed[(self.n,)](
            self.positions, self.cell, self.system, e.shifts, w.stretch, b.stretch, w.num_intervals - 1,
            self.numbers, w.targets, w.sources, w.table, w.own, *self._list(),
            w.gate_scale, w.gate_offset, w.gate_in, w.gate_in_bias, w.gate_out, w.gate_out_bias, w.mix,
            b.a, b.hidden, b.gate, b.a if b.gradient is None else b.gradient.mixed,
            b.x[0], b.inverse[0], self.work, self.epsilons[0], *self._charges_of(0),
            HIDDEN_WIDTH=w.hidden, K=self.charged.charges, KEEP=keep, **self._options(),
        )  # fmt: skip

    def _equilibrate(self, i: int) -> None:
        """Charges after layer i, of those before it too if what these are made of has been kept, for other energies."""
        q, keeps, last = self.q, self.sizes.with_forces, i == len(self.weights.layers)
        if not self.last_charges or (keeps and not last):
            return
        charges = q.charges if keeps else q.charges[i]
        charge_equilibration.equilibrate_alone[(len(q.charges) if keeps else 1,)](
            q.proposed, self.total_charge, charges, self.n, LEAST_SHARE, self.charged.equilibrations[i].slack,
            num_warps=8, **self.sums,
        )  # fmt: skip

    def _forward_layer(self, i: int, keep: bool) -> None:
        b, w, h, q, e = self.b, self.weights, self.weights.head, self.q, self.edges
        # Without a backward pass, layers take turns in two sets of buffers of atoms.
        own, after = (i, i + 1) if self.sizes.with_forces else (i % 2, (i + 1) % 2)
        slot = i if self.sizes.with_forces else 0
        y, last = b.y[own], i == len(w.layers) - 1
        charges = not last or self.last_charges
        self._maps(i, slot, y, keep)
        if self.clusters is not None:
            self.clusters.launch(MIDDLE if not last else LAST if charges else LAYER, self, i + 1)
            self._equilibrate(i + 1)
            return
        options = self._options()
        del options["DEGREE"]
        charged_atom.layer[(self.n,)](
            y, self.gradient.m[i] if keep else y, self.charge, self.system, q.z3[slot], e.row_ptr, e.source,
            b.knot, b.stretch, self.n, self.cutoff,
            w.layers[i].mix_out, b.x[own], self.gradient.d[i] if keep else y, b.x[after],
            b.inverse_of(after), None if self.last_charges else w.layers[i].mix_out_back,
            y if b.gradient is None else b.gradient.x, b.p,
            w.read_scale, w.read_offset, w.read, w.read_bias, w.read_back, h.into, h.bias, h.last,
            h.back, h.more, h.more_back, h.constants, w.references, self.numbers, self.buffers.energies,
            self.buffers.last_inputs, self.work, self.epsilons[1], *self._charges_of(i + 1 if charges else i),
            HEAD=h.width, LAYERS=h.num_layers, K=self.charged.charges, READOUT=self.readout, KEEP=keep, LAST=last,
            CHARGES=charges, INPUT_WIDTH=self.buffers.input_width, **self.reflections, **options,
        )  # fmt: skip
        if charges:
            self._equilibrate(i + 1)

    def _maps(self, i: int, slot: int, y: Tensor, keep: bool) -> None:
        """z₁, z₂ and z₃; Y of all atoms; and if `keep` the opposite edges."""
        b, q, e, w, filters = self.b, self.q, self.edges, self.weights.layers[i], self.charged.filters[i]
        x = b.x[i if self.sizes.with_forces else i % 2]
        if self.edge_maps is not None:
            charge_equilibration.equilibrate_alone[(1,)](
                q.proposed[slot], self.total_charge, q.charges[i], self.n, LEAST_SHARE,
                self.charged.equilibrations[i].slack, num_warps=8, **self.sums,
            )  # fmt: skip
            self._shares(i)
            self._filters(i, slot)
            self._multiply_parts(x, self.split.mix_in[i], y)
            return
        z1, z2, _ = self._z(slot)
        block = FIRST.options(self.c, 2 * self.c)
        programs = (1 + keep) * self.n + triton.cdiv(self.rows, block["ROWS"]) * (2 * self.c // block["COLUMNS"])
        charged_atom.first_maps[(programs,)](
            q.proposed[slot], self.total_charge, self.own.shares[i], w.table, w.own, e.row_ptr, e.source, e.target,
            e.shifts, b.knot, b.place, self.own.middle[i], filters.middle_bias, z1, z1 if z2 is None else z2,
            q.piece, x, w.mix_in, y, self.work, q.reverse, self.n, LEAST_SHARE, self.charged.equilibrations[i].slack,
            CHANNELS=self.c, DEGREE=self.weights.degree, KEEP=keep, **self._row, **self.sums, **self.activation,
            **block,
        )  # fmt: skip
        assert q.piece is not None
        self._forth(q.piece, filters.last, filters.last_bias, q.z3[slot], None, 0)

    def backward(self, virial: bool) -> None:
        if not self.n:
            return
        if self.last_charges:
            self._output_gradient()
        for i in reversed(range(len(self.weights.layers))):
            self._backward_layer(i, first=i == len(self.weights.layers) - 1)
        self._row_forces(virial, self.q.reverse)

    def _through_charges(self, i: int) -> tuple[Any, ...]:
        """The arguments of the gradient through the charges before layer i."""
        q, w, own = self.q, self.charged.equilibrations[i], self.own.charges[i]
        return (
            q.proposed[i], self.pull_on(i), self.total_charge, q.first[i], q.second[i], w.scale,
            own.first_back, own.second_back, own.third_back, self.n, LEAST_SHARE, w.slack, w.epsilon,
        )  # fmt: skip

    def _output_gradient(self) -> None:
        """Gradients in messages and Y of the last layer, where there are charges after it."""
        b, g, w, last = self.b, self.gradient, self.weights, len(self.weights.layers)
        if not self.pulled:
            self.pull_on(last).zero_()
        if self.clusters is not None:
            self.clusters.launch(OUTPUT, self, last)
            return
        options = self._options()
        del options["DEGREE"], options["DEPTH"]
        charged_atom_gradient.output_gradient[(self.n,)](
            b.y[last - 1], g.m[last - 1], self.charge, self.system, g.d[last - 1], b.x[last],
            w.layers[last - 1].mix_out_back, g.x, b.p, self.work, *self._through_charges(last),
            **self.sums, **self.reflections, **options,
        )  # fmt: skip

    def _backward_layer(self, i: int, first: bool) -> None:
        self._messages_gradient(i)
        self._maps_gradient(i)
        self._charges_gradient(i, first)
        if self.clusters is not None:
            self.clusters.launch(MIDDLE_GRADIENT if i else GRADIENT, self, i)
        else:
            self._atoms_gradient(i)

    def _messages_gradient(self, i: int) -> None:
        """Gradients in z₃ and, through messages, in Y."""
        b, g, q, e, n = self.b, self.gradient, self.q, self.edges, self.n
        reverse, pulls, z3 = q.reverse, q.pull, q.z3[i]
        assert reverse is not None
        assert pulls is not None
        edge_mlp.messages_gradient[(n * len(pulls),)](
            b.y[i], g.m[i], b.p, z3, e.row_ptr, e.source, reverse, b.knot, b.stretch, pulls, n, e.capacity,
            self.cutoff, CHANNELS=self.c, FIRST=True, **self.activation,
            **self.tiles.messages_gradient.options(self.c),
        )  # fmt: skip

    def _charges_gradient(self, i: int, first: bool) -> None:
        """The gradient in the charges before layer i, and that in the distances of edges."""
        b, q, e, w, depth = self.b, self.q, self.edges, self.weights, self._options()["DEPTH"]
        assert q.pull is not None
        charged_atom_gradient.charges_gradient[(self.n,)](
            q.z1[i], self.own.shares[i], w.layers[i].table, e.row_ptr, e.source, q.reverse, b.knot, b.place, q.pull,
            self.gradient.pull, self.pull_on(i), self.n, e.capacity, CHANNELS=self.c, K=self.charged.charges,
            DEGREE=w.degree, DEPTH=depth, SLICES=len(q.pull), FIRST=first, ADD=self.pulled, num_warps=depth,
        )  # fmt: skip

    def _maps_gradient(self, i: int) -> None:
        """Gradients in z₂, z₁ and, through Y, X̂."""
        b, g, w = self.b, self.gradient, self.charged.filters[i]
        if self.edge_maps is not None:
            self._filters_gradient(i)
            self._multiply_parts(b.p, self.split.mix_in_back[i], g.d[i])
            return
        z1, z2, z3 = self._z(i)
        assert z2 is not None
        width, inner = w.last_back.big.shape
        options, row = self.tiles.edge_product.options(inner, width), self._row
        programs = triton.cdiv(self.rows, options["ROWS"]) * (width // options["COLUMNS"])
        charged_atom_gradient.last_map_gradient[(programs + self.n,)](
            z3, w.last_back.big, w.last_back.small, z2, self.edges.row_ptr, self.n, self.rows, programs, b.p,
            self.weights.layers[i].mix_in_back, g.d[i], self.work, INNER=inner, WIDTH=width, CHANNELS=self.c,
            **row, **self.activation, **options,
        )  # fmt: skip
        self._back(z2, w.middle_back, z1, 0)

    @property
    def _row(self) -> dict[str, Any]:
        """Launch options of a product of one atom, apart from warps."""
        assert self.tiles.row is not None
        options = self.tiles.row.options(self.c)
        return dict(WORK_WIDTH=self.work.shape[1], **{name: options[name] for name in ("GROUPS", "UNROLL", "APART")})

    def _atoms_gradient(self, i: int) -> None:
        b, g, w, before = self.b, self.gradient, self.weights, max(i - 1, 0)
        charged_atom_gradient.layer_gradient[(self.n,)](
            g.d[i], b.p, *self._list(), b.stretch, g.pull, g.half, b.x[i], b.inverse[i], g.x,
            self.charge, self.system, g.d[before], w.layers[before].mix_out_back, b.y[before], g.m[before],
            b.a, b.hidden, b.gate, g.mixed, w.gate_scale, w.gate_in_back, w.gate_out_back, w.mix_back,
            w.table, self.numbers, w.targets, w.sources, self.work, self.epsilons[0],
            *self._through_charges(i),
            HIDDEN_WIDTH=w.hidden, EMBEDDING=i == 0, **self.sums, **self.reflections, **self._options(),
        )  # fmt: skip
