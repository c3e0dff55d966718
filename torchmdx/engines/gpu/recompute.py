"""The launches of one evaluation of many atoms in little memory: as `Chain`, with most tensors computed twice.

The forward pass keeps A, and D and M of every layer. One buffer holds X̂ of one layer after the other, another one Y.
The backward pass computes again what it reads, before the gradient of layer i replaces D of the layer before::

    mix(A) → gated → X̂₀ → update by D₀ ... D of layer i-2 → X̂ of layer i-1 → W → Y of layer i-1

Products of nine components write to the tensors that they read where a program makes all columns of its rows. Networks
that see one atom at a time, of the gate and of the energies, take `piece` atoms at a time, forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
from torch import Tensor

from torchmdx.engines.gpu.many_atoms import Chain
from torchmdx.engines.gpu.triton import embedding, interaction, readout


class LeanChain(Chain):
    """The same function as `Chain`, for networks of at least one layer and buffers with a backward pass."""

    @property
    def sent(self) -> Tensor:
        """[L+1,N,9,C]: M of every layer, and Y of the last."""
        assert self.gradient.sent is not None
        return self.gradient.sent

    def _pieces(self) -> Iterator[slice]:
        """Rows of atoms that are taken together; those of a domain are counted on the device, and taken all at once."""
        step = self.sizes.piece if self.within is None else self.n
        for start in range(0, self.n, step):
            yield slice(start, min(start + step, self.n))

    def _of(self, rows: slice, hops: int) -> tuple[tuple[int], int | Tensor]:
        """The grid of kernels that work on these atoms one by one, and their number."""
        count = rows.stop - rows.start
        grid = (triton.cdiv(count, self.elements["ROWS"]),)
        return grid, count if self.within is None else self.atoms(hops)

    def forward(self, keep: bool) -> None:
        if not self.n:
            return
        b, w, x, d = self.b, self.weights, self.b.x[0], self.gradient.d
        last = len(w.layers) - 1
        self._surroundings()
        for rows in self._pieces():
            hidden = self._gate_values(rows)
            self._multiply(hidden, self.split.gate_out, w.gate_out_bias, b.gate[rows], "bias", hops=last + 1)
        self._multiply_parts(b.a, self.split.mix, d[0], hops=last + 1)
        self._gated(d[0], x)
        for i in range(last + 1):
            y, p = self.sent[-1], d[i] if self.sizes.in_place else b.p
            self._send(i, x, y)
            self._walk_messages(i, y, self.sent[i], p, keep)
            self._multiply_parts(p, self.split.mix_out[i], d[i], hops=last - i)
            if i < last:
                self._updated(i, x)
        for rows in self._pieces():
            self._read_rows(rows, keep)

    def _gate_values(self, rows: slice) -> Tensor:
        """The hidden layer of the gate of some atoms, before its activation."""
        b, w, reach = self.b, self.weights, len(self.weights.layers)
        grid, count = self._of(rows, reach)
        norms, hidden = b.features[: rows.stop - rows.start], b.hidden[: rows.stop - rows.start]
        embedding.standardised_norms[grid](
            b.a[rows], w.gate_scale, w.gate_offset, norms, count, self.epsilons[0], WIDTH=w.width, **self.elements
        )
        self._multiply(norms, self.split.gate_in, w.gate_in_bias, hidden, "bias", activation="none", hops=reach)
        return hidden

    def _gated(self, mixed: Tensor, x: Tensor) -> None:
        """X̂₀ from mix(A), which it may replace."""
        embedding.gated[self.each_atom](
            mixed, self.b.gate, x, None, self.atoms(len(self.weights.layers)), LAST=False, **self.activation,
            **self.elements,
        )  # fmt: skip

    def _updated(self, i: int, x: Tensor) -> None:
        """X̂ after layer i from X̂ before it, in place."""
        interaction.update[self.each_atom](
            self.gradient.d[i], x, self.charge, self.system, x, None, self.atoms(len(self.weights.layers) - 1 - i),
            LAST=False, **self.elements,
        )  # fmt: skip

    def _read_rows(self, rows: slice, keep: bool) -> None:
        """Energies of some atoms, and if `keep` the gradients in X and D of the last layer, in place."""
        b, g, w, reals = self.b, self.gradient, self.weights, rows.stop - rows.start
        grid, count = self._of(rows, 0)
        tensors = b.x[0][rows], g.d[-1][rows]
        of_system, norms, features = (self.charge, self.system[rows]), g.norms[:reals], b.features[:reals]
        readout.read_norms[grid](
            *tensors, *of_system, w.read_scale, w.read_offset, norms, count, self.epsilons[1], WIDTH=w.width,
            **self.elements,
        )  # fmt: skip
        self._multiply(norms, self.split.read, w.read_bias, features, "bias", activation="none")
        self._head(keep, rows)
        if not keep:
            return
        self._multiply(g.features[:reals], self.split.read_back, w.read_scale, norms, "scale")
        readout.read_features_gradient[grid](
            norms, tensors[0], *tensors, tensors[0], norms, *of_system, count, self.epsilons[1], WIDTH=w.width,
            EMBEDDING=False, UPDATED=False, **self.activation, **self.elements,
        )  # fmt: skip

    def backward(self, virial: bool) -> None:
        if not self.n:
            return
        b, w, x, reach = self.b, self.weights, self.b.x[0], len(self.weights.layers)
        for i in reversed(range(reach)):
            self._layer_gradient(i, first=i == reach - 1)
        gradient = x if self.sizes.in_place else b.p
        self._multiply_parts(x, self.split.mix_back, gradient, hops=reach)
        for rows in self._pieces():
            hidden, norms = self._gate_values(rows), b.features[: rows.stop - rows.start]
            self._multiply(b.gate[rows], self.split.gate_out_back, hidden, hidden, "slope", hops=reach)
            self._multiply(hidden, self.split.gate_in_back, w.gate_scale, norms, "scale", hops=reach)
            grid, count = self._of(rows, reach)
            embedding.surroundings_mix_gradient[grid](
                gradient[rows], b.a[rows], norms, count, self.epsilons[0], WIDTH=w.width, **self.elements
            )
        self._forces(gradient, virial)

    def _layer_gradient(self, i: int, first: bool) -> None:
        b, d = self.b, self.gradient.d
        updated = len(self.weights.layers) - 1 - i  # hops
        received, sent = self.atoms(updated), self.atoms(updated + 1)
        y = self.sent[-1] if first else self._y(i)
        gm, gy = self.sent[i], d[i] if self.sizes.in_place else b.p
        self._multiply_parts(d[i], self.split.mix_out_back[i], gy, hops=updated)
        interaction.update_gradient[self.each_atom](
            gy, y, gm, self.charge, self.system, received, **self.reflections, **self.elements
        )
        self._walk_messages_gradient(i, y, gm, gy, first)
        self._multiply_parts(gy, self.split.mix_in_back[i], d[i], hops=updated + 1)
        # mix(A) of the last layer is kept where Y of that layer was.
        mixed = self.sent[-1]
        if first:
            self._multiply_parts(b.a, self.split.mix, mixed, hops=len(self.weights.layers))
        before = mixed if i == 0 else self._tensors_before(i, mixed)
        interaction.mix_in_gradient[self.each_atom](
            d[i], before, None, b.x[0], d[max(i - 1, 0)], mixed, b.gate, self.charge, self.system, sent, received,
            EMBEDDING=i == 0, **self.activation, **self.elements,
        )  # fmt: skip
        if i:
            self._send(i - 1, before, self._y(i - 1))

    def _y(self, i: int) -> Tensor:
        """The buffer of Y of a layer but the last: the gradients of the layer after it have been used."""
        return self.gradient.d[i + 1]

    def _tensors_before(self, i: int, mixed: Tensor) -> Tensor:
        """X̂ before layer i-1, evaluated again, where M of layer i was."""
        x = self.sent[i]
        self._gated(mixed, x)
        for j in range(i - 1):
            self._updated(j, x)
        return x
