"""The launches of one evaluation of few atoms: as `Chain`, in a few kernels with one program per atom."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.triton import forces as force_kernels
from torchmdx.engines.gpu.triton import one_atom

SUM_BLOCK = 512


class RowChain(Chain):
    """The same function and the same buffers as `Chain`, for networks of at least one layer."""

    _summed = False  # whether the kernel of the forces has summed over systems

    @property
    def work(self) -> Tensor:
        """Memory of the programs."""
        assert self.b.work is not None
        return self.b.work

    def _options(self) -> dict[str, Any]:
        assert self.tiles.row is not None
        return dict(
            WIDTH=self.weights.width,
            CHANNELS=self.c,
            DEGREE=self.weights.degree,
            WORK_WIDTH=self.work.shape[1],
            **self.activation,
            **self.tiles.row.options(self.c),
        )

    def _list(self) -> tuple[Any, ...]:
        """The arguments of a walk along a row."""
        return self.edges.row_ptr, self.edges.source, self.b.knot, self.b.place

    def forward(self, keep: bool) -> None:
        if not self.n:
            return
        b, w, e = self.b, self.weights, self.edges
        one_atom.embed[(self.n,)](
            self.positions, self.cell, self.system, e.shifts, w.stretch, b.stretch, w.num_intervals - 1,
            self.numbers, w.targets, w.sources, w.table, w.own, *self._list(),
            w.gate_scale, w.gate_offset, w.gate_in, w.gate_in_bias, w.gate_out, w.gate_out_bias, w.mix,
            w.layers[0].mix_in, b.a, b.hidden, b.gate, b.a if b.gradient is None else b.gradient.mixed,
            b.x[0], b.inverse[0], b.y[0], self.work, self.epsilons[0], HIDDEN_WIDTH=w.hidden, KEEP=keep,
            **self._options(),
        )  # fmt: skip
        for i in range(len(w.layers)):
            self._forward_layer(i, keep)

    def _forward_layer(self, i: int, keep: bool) -> None:
        b, w, h = self.b, self.weights, self.weights.head
        # Without a backward pass, layers take turns in two sets of buffers.
        own, after = (i, i + 1) if self.sizes.with_forces else (i % 2, (i + 1) % 2)
        here, y, last = w.layers[i], b.y[own], i == len(w.layers) - 1
        following = here if last else w.layers[i + 1]
        one_atom.layer[(self.n,)](
            y, self.gradient.m[i] if keep else y, self.charge, self.system, here.table, here.own, self.edges.row_ptr,
            self.senders, b.knot, b.place, here.mix_out, b.x[own], self.gradient.d[i] if keep else y, b.x[after],
            b.inverse_of(after), following.mix_in, y if last else b.y[after],
            here.mix_out_back, y if b.gradient is None else b.gradient.x, b.p,
            w.read_scale, w.read_offset, w.read, w.read_bias, w.read_back, h.into, h.bias, h.last,
            h.back, h.more, h.more_back, h.constants, w.references, self.numbers, self.buffers.energies,
            self.buffers.last_inputs, self.work, self.epsilons[1], HEAD=h.width, LAYERS=h.num_layers, GATED=h.gated,
            READOUT=self.readout, KEEP=keep, LAST=last, INPUT_WIDTH=self.buffers.input_width, **self.reflections,
            **self._options(),
        )  # fmt: skip

    def backward(self, virial: bool) -> None:
        if not self.n:
            return
        b, g, w = self.b, self.gradient, self.weights
        for i in reversed(range(len(w.layers))):
            here, before = w.layers[i], max(i - 1, 0)
            one_atom.layer_gradient[(self.n,)](
                b.y[i], g.m[i], b.p, here.table, here.own, self.senders, *self._list(), b.stretch, g.pull,
                g.half, here.mix_in_back, b.x[i], b.inverse[i], g.x, self.charge, self.system,
                g.d[before], w.layers[before].mix_out_back, b.y[before], g.m[before],
                b.a, b.hidden, b.gate, g.mixed, w.gate_scale, w.gate_in_back, w.gate_out_back, w.mix_back,
                w.table, self.numbers, w.targets, w.sources, self.work, self.epsilons[0],
                HIDDEN_WIDTH=w.hidden, FIRST=i == len(w.layers) - 1, EMBEDDING=i == 0,
                **self.reflections, **self._options(),
            )  # fmt: skip
        self._row_forces(virial)

    def _row_forces(self, virial: bool, reverse: Tensor | None = None) -> None:
        """Forces from the gradients of edges. reverse [E]: slots of the opposite edges, if they are known."""
        b, g, w, e, t = self.b, self.gradient, self.weights, self.edges, self.tiles
        # Virials can be summed only after all forces; energies need not wait.
        systems = 0 if virial else self.sizes.num_systems
        self.before_forces()
        force_kernels.forces[(self.n + systems,)](
            e.row_ptr, e.source, e.shifts, b.knot, b.place, b.stretch, reverse, g.half, *self.others,
            self.buffers.forces, g.virials, self.system, self.buffers.energies, w.shift, self.buffers.energy, self.n,
            self.n, VIRIAL=virial, EDGES=t.force_edges, CANDIDATES=t.force_candidates, AT_ONCE=True,
            SUM=SUM_BLOCK if systems else 0, num_warps=t.force_warps,
        )  # fmt: skip
        self._summed = systems > 0

    def total(self, virial: bool) -> None:
        if not self._summed:
            super().total(virial)
