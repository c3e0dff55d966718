"""The launches of one evaluation in slabs of atoms, so that only some slabs have tensors at any time.

Slabs have equal numbers of atoms, and follow each other along a direction (step/slab_order.py). The neighbours of an
atom are at most `reach` slabs away. The stages of the network pass through the structure one after the other, each
`reach` slabs behind the one before, since it gathers from the neighbours of its atoms what that one has made::

    embedding → layer 0 → ... → last layer and energies → gradient of the last layer → ... → gradient of layer 0

Nothing is computed twice except mix(A) and the hidden layer of the gate. Tensors are in windows (slab_windows.py) with
room for the atoms of some slabs, whatever the number of slabs. The gradients h_e of all edges are kept, and become
forces at the end.

`Chain` has the launches of a stage; on an H100 or H200 `TileChain` has some of them as kernels of CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.engines.gpu.atom_tiles import TileChain
from torchmdx.engines.gpu.chain_walks import BLOCK, ChainWalks
from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.slab_windows import SlabWindows, edges_of
from torchmdx.engines.gpu.triton import slab_edges

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.engines.gpu.tensornet import FastTensorNet


class SlabRows(Chain):
    """The stages of one slab, for a class of launches: `Chain`, or `TileChain` behind it in the order of bases."""

    windowed = True

    def __init__(self, model: FastTensorNet, whole: SlabSweep, windows: SlabWindows, slab: int) -> None:
        atoms = windows.shape.of(slab)
        given = (whole.positions, whole.numbers[atoms], whole.system[atoms], whole.cell, whole.charge)
        super().__init__(model, windows.buffers_of(slab, whole.buffers), *given, edges_of(whole.edges, atoms))
        self.all_numbers, self.windows, self.slab = whole.numbers, windows, slab
        self.last = len(self.weights.layers) - 1

    def _all_y(self, i: int, y: Tensor) -> Tensor:
        return self.windows.y[i]

    def _all_m(self, i: int, m: Tensor) -> Tensor:
        return self.windows.m[i]

    def _window(self, tensor: Tensor) -> tuple[int, int]:
        lowest = max(0, self.slab - self.windows.shape.reach) * self.windows.shape.rows
        return lowest // len(tensor) * len(tensor), len(tensor)

    def _keep_p(self) -> None:
        """From here on P is kept until the end; before, it is used within a stage."""
        window, rows = self.windows.p, len(self.windows.mixed)
        start = self.slab % (len(window) // rows) * rows
        self.b.p = window[start : start + self.n]

    def first(self) -> None:
        """Up to what the first layer sends."""
        self._sum_surroundings()
        self._gate()
        self._embed_and_send()

    def layer(self, i: int) -> None:
        """A layer but the last, up to what the next one sends."""
        self._messages_of(i, self.b.y[i], True)
        self._update_and_send(i)

    def end(self, keep: bool) -> None:
        """The last layer and energies; if `keep`, also the gradient up to that in its messages."""
        self._messages_of(self.last, self.b.y[self.last], True)
        self._update_and_read(keep)
        if keep:
            self._keep_p()
            self._gradient_of_reading()

    def back(self, i: int) -> None:
        """The gradient through the messages of layer i, up to that in the messages of the layer before, or at edges."""
        self._messages_gradient_of(i, first=i == self.last)
        if i:
            self._gradient_of_layer(i)
            return
        self._multiply_parts(self.b.a, self.split.mix, self.gradient.mixed)
        self._gradient_of_embedding()
        self._hidden_of_gate()
        self._gate_gradient()
        self._edge_gradients(self.b.p)

    def _before(self, i: int) -> tuple[Tensor, Tensor | None]:
        """X̂ of the embedding is evaluated again from mix(A) and the gate."""
        return (self.gradient.mixed, None) if i == 0 else super()._before(i)

    def _embed_and_send(self) -> None:
        self._first_tensors(self.gradient.mixed)
        self._send(0, self.b.x[0], self.b.y[0])

    def _update_and_send(self, i: int) -> None:
        b = self.b
        self._update(i, b.x[i], self.gradient.d[i], b.x[i + 1])
        self._send(i + 1, b.x[i + 1], b.y[i + 1])

    def _update_and_read(self, keep: bool) -> None:
        b, i = self.b, self.last
        self._update(i, b.x[i], self.gradient.d[i], b.x[i + 1])
        self._read(b.x[i + 1], True)

    def _gradient_of_reading(self) -> None:
        self._read_gradient(self.last + 1)
        self._received_gradient(self.last)

    def _gradient_of_layer(self, i: int) -> None:
        self._sent_gradient(i, self.windows.spare[: self.n])
        self._received_gradient(i - 1)

    def _gradient_of_embedding(self) -> None:
        self._sent_gradient(0, self.windows.spare[: self.n])
        self._multiply_parts(self.gradient.x, self.split.mix_back, self.b.p)


class SlabTiles(SlabRows, TileChain):
    """The same with kernels of CUDA C++."""

    def _embed_and_send(self) -> None:
        self._launch_embedded(None)

    def _update_and_send(self, i: int) -> None:
        b = self.b
        made = dict(out=b.x[i + 1], out_inverse=b.inverse_of(i + 1), result=b.y[i + 1])
        self._launch_next(i, {"sums": b.p, "x": b.x[i], "d": self.gradient.d[i], **made})

    def _update_and_read(self, keep: bool) -> None:
        self._launch_last(dict(sums=self.b.p, x=self.b.x[self.last], d=self.gradient.d[self.last]), True)

    def _gradient_of_reading(self) -> None:
        self._launch_last_gradient()

    def _gradient_of_layer(self, i: int) -> None:
        self._launch_next_gradient(i - 1)

    def _gradient_of_embedding(self) -> None:
        self._launch_embedded_gradient()


class SlabSweep(ChainWalks):
    """The whole evaluation; `buffers` have windows.

    Args:
        rows: The class of the launches of one slab.
    """

    def __init__(self, rows: type[SlabRows], model: FastTensorNet, buffers: Buffers, *inputs: Any) -> None:
        super().__init__(model, buffers, *inputs)
        assert isinstance(buffers.windows, SlabWindows)
        self.model, self.rows, self.windows = model, rows, buffers.windows

    def atoms(self, hops: int) -> int | Tensor:
        return self.n

    def forward(self, keep: bool) -> None:
        """Energies; if `keep`, also the gradients of edges."""
        if not self.n:
            return
        self._place_edges()
        self._check_reach()
        shape, stages = self.windows.shape, list(self._stages(keep))
        slabs = [self.rows(self.model, self, self.windows, slab) for slab in range(shape.count)]
        for front in range(shape.count + stages[-1][0]):
            for lag, run in stages:
                if 0 <= front - lag < shape.count:
                    run(slabs[front - lag])

    def _stages(self, keep: bool) -> Iterator[tuple[int, Callable[[SlabRows], None]]]:
        """By how many slabs each stage follows the first, and its launches."""
        lags, last = self.windows.lags, len(self.weights.layers) - 1
        yield 0, lambda slab: slab.first()
        for i in range(last):
            yield lags.layer(i), lambda slab, i=i: slab.layer(i)  # type: ignore[misc]
        yield lags.layer(last), lambda slab: slab.end(keep)
        for i in reversed(range(last + 1 if keep else 0)):
            yield lags.back(i), lambda slab, i=i: slab.back(i)  # type: ignore[misc]

    def _check_reach(self) -> None:
        w, e, b, shape = self.windows, self.edges, self.b, self.windows.shape
        w.far.zero_()
        slab_edges.check_reach[(max(1, triton.cdiv(e.capacity, BLOCK)),)](
            e.row_ptr, e.source, e.target, b.knot, b.place, w.far, self.n, shape.rows, shape.reach, BLOCK=BLOCK
        )

    def backward(self, virial: bool) -> None:
        """Forces, and each atom's part of the virial, from the gradients of edges."""
        if self.n:
            self._sum_forces(virial)
