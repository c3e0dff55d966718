"""The launches of one evaluation, in order, without allocation or synchronisation.

A new kernel is a function in triton/, its buffers in buffers.py, and its launch here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
from torch import Tensor

from torchmdx.engines.gpu.chain_walks import ChainWalks
from torchmdx.engines.gpu.triton import embedding, gated_head, interaction, readout
from torchmdx.engines.plan.settings import activation_of

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.engines.gpu.tensornet import FastTensorNet

ATOMS = 16  # per program of the head: the fewest rows of a tensor core product


class Chain(ChainWalks):
    """One evaluation: the model's weights, its buffers and the caller's tensors."""

    def __init__(self, model: FastTensorNet, buffers: Buffers, *inputs: Any) -> None:
        """inputs: as for `ChainWalks`."""
        super().__init__(model, buffers, *inputs)
        rows = max(1, buffers.sizes.tiles.elements // self.c)
        self.each_atom, self.elements = (triton.cdiv(self.n, rows),), dict(CHANNELS=self.c, ROWS=rows)
        activation = activation_of(model.config)
        self.activation = dict(ACTIVATION=activation)
        self.readout = activation if model.config.readout_activation else "none"  # of the features

    def atoms(self, hops: int) -> int | Tensor:
        """Number of atoms that a kernel evaluates; of a domain those with at most `hops` hops, counted on the device.

        Energies are those of owned atoms, and a layer reads the neighbours of the atoms that it updates. So layer i of
        L updates atoms with at most L-1-i hops, the embedding those with at most L; owned ones if layers read no other.
        """
        first = hops if self.gathers else 0
        return self.n if self.within is None else self.within[first : first + 1]

    def forward(self, keep: bool) -> None:
        """Energies of the atoms. keep: also stores what the backward pass reads."""
        if not self.n:
            return
        w = self.weights
        self._surroundings()
        self._gate()
        self._first_tensors(self.gradient.mixed if keep else self.b.p)
        x = self.b.x[0]
        for i in range(len(w.layers)):
            x = self._layer(i, x, keep)
        self._read(x, keep)

    def _first_tensors(self, mixed: Tensor) -> None:
        """X of the embedding from its sums over neighbours and the gate; mixed: memory of mix(A)."""
        b, reach = self.b, len(self.weights.layers)
        self._multiply_parts(b.a, self.split.mix, mixed, hops=reach)
        embedding.gated[self.each_atom](
            mixed, b.gate, b.x[0], b.inverse[0], self.atoms(reach), LAST=not reach, **self.activation, **self.elements
        )

    def _gate(self) -> None:
        """The gate before its second activation."""
        self._hidden_of_gate()
        b, w, reach = self.b, self.weights, len(self.weights.layers)
        self._multiply(b.hidden, self.split.gate_out, w.gate_out_bias, b.gate, "bias", hops=reach)

    def _hidden_of_gate(self) -> None:
        """Its hidden layer before the first activation."""
        b, w, norms, reach = self.b, self.weights, self.b.features, len(self.weights.layers)
        embedding.standardised_norms[self.each_atom](
            b.a, w.gate_scale, w.gate_offset, norms, self.atoms(reach), self.epsilons[0], WIDTH=w.width, **self.elements
        )
        self._multiply(norms, self.split.gate_in, w.gate_in_bias, b.hidden, "bias", activation="none", hops=reach)

    def _surroundings(self) -> None:
        """The edges, and the sums over neighbours of the embedding."""
        if self.within is not None:
            self.buffers.energies.zero_()  # those of other atoms than the owned are not written
            if self.buffers.last_inputs is not None:
                self.buffers.last_inputs.zero_()
        self._place_edges()
        self._sum_surroundings()

    def _layer(self, i: int, x: Tensor, keep: bool) -> Tensor:
        b = self.b
        # Without a backward pass, all layers use the buffers of the first.
        slot, after = (i, i + 1) if self.sizes.with_forces else (0, (i + 1) % 2)
        y, out = b.y[slot], b.x[after]
        self._send(i, x, y)
        self._messages_of(i, y, keep)
        self._update(i, x, self.gradient.d[i] if keep else y, out)
        return out

    def _send(self, i: int, x: Tensor, y: Tensor) -> None:
        """What layer i sends to neighbours, Y from X̂."""
        hops = len(self.weights.layers) - i
        self._multiply_parts(x, self.split.mix_in[i], y, hops=hops)

    def _messages_of(self, i: int, y: Tensor, keep: bool) -> None:
        """The product P̂ of each atom's Y and its messages."""
        self._walk_messages(i, y, self.gradient.m[i] if keep else y, self.b.p, keep)

    def _update(self, i: int, x: Tensor, d: Tensor, out: Tensor) -> None:
        """X after layer i in `out`, from X̂ before it and P̂."""
        updated, last = len(self.weights.layers) - 1 - i, i == len(self.weights.layers) - 1
        self._multiply_parts(self.b.p, self.split.mix_out[i], d, hops=updated)
        interaction.update[self.each_atom](
            d, x, self.charge, self.system, out, self.b.inverse_of(i + 1), self.atoms(updated), LAST=last,
            **self.elements,
        )  # fmt: skip

    def _read(self, x: Tensor, keep: bool) -> None:
        b, w = self.b, self.weights
        norms = self.norms(keep)
        readout.read_norms[self.each_atom](
            x, None, self.charge, self.system, w.read_scale, w.read_offset, norms, self.atoms(0), self.epsilons[1],
            WIDTH=w.width, **self.elements,
        )  # fmt: skip
        self._multiply(norms, self.split.read, w.read_bias, b.features, "bias", activation="none")
        self._head(keep, slice(0, self.n))

    def norms(self, keep: bool) -> Tensor:
        """The buffer of the standardised norms of the readout, then of their gradient."""
        return self.gradient.norms if keep else self.b.gate

    def _head(self, keep: bool, rows: slice) -> None:
        """Energies of some atoms from their features, and the gradient of the features if `keep`."""
        b, w, h, count = self.b, self.weights, self.weights.head, rows.stop - rows.start
        numbers, energies, inputs = self.numbers[rows], self.buffers.energies[rows], self.buffers.last_inputs
        inputs = None if inputs is None else inputs[rows]
        atoms = count if self.within is None else self.atoms(0)
        if h.gated:
            self._gated_head(keep, numbers, energies, inputs, atoms)
            return
        readout.read_energies[(triton.cdiv(count, ATOMS),)](
            b.features, b.features if b.gradient is None else b.gradient.features, b.head, h.into, h.more, h.bias,
            h.last, h.constants, w.references, numbers, energies, inputs, atoms, HEAD=h.width, LAYERS=h.num_layers,
            GRADIENT=keep, INPUT_WIDTH=self.buffers.input_width, CHANNELS=self.c, ATOMS=ATOMS, STEP=min(32, self.c),
            READOUT=self.readout, **self.activation, num_warps=self.tiles.head_warps,
        )  # fmt: skip

    def _gated_head(
        self, keep: bool, numbers: Tensor, energies: Tensor, inputs: Tensor | None, atoms: int | Tensor
    ) -> None:
        """`_head` of a gated head."""
        b, h, z = self.b, self.weights.head, self.b.head
        self._multiply(b.features, self.split.head[0], h.bias[0], z[0], "bias", activation=self.readout)
        for k in range(1, h.num_layers):
            self._multiply_halves(z[k - 1], self.split.head[k], h.bias[k], z[k], atoms, back=False)
        gated_head.gated_energies[(triton.cdiv(len(numbers), ATOMS),)](
            z[-1], h.last, h.constants, self.weights.references, numbers, energies, inputs, atoms,
            CHANNELS=self.c, ATOMS=ATOMS, GRADIENT=keep, INPUT_WIDTH=self.buffers.input_width, **self.activation,
        )  # fmt: skip
        if keep:
            for k in reversed(range(1, h.num_layers)):
                self._multiply_halves(z[k], self.split.head_back[k], z[k - 1], z[k - 1], atoms, back=True)
            self._multiply(
                z[0], self.split.head_back[0], b.features, self.gradient.features, "slope", activation=self.readout
            )

    def backward(self, virial: bool) -> None:
        """Forces, and each atom's part of the virial, from the values stored by the forward pass."""
        if not self.n:
            return
        b, g, w = self.b, self.gradient, self.weights
        last = reach = len(w.layers)
        self._read_gradient(last)
        for i in reversed(range(last)):
            self._layer_gradient(i, first=i == last - 1)
        self._multiply_parts(g.x, self.split.mix_back, b.p, hops=reach)
        self._gate_gradient()
        self._forces(b.p, virial)

    def _gate_gradient(self) -> None:
        """Adds to the gradient in A what came through the gate."""
        b, w, reach = self.b, self.weights, len(self.weights.layers)
        self._multiply(b.gate, self.split.gate_out_back, b.hidden, b.hidden, "slope", hops=reach)
        self._multiply(b.hidden, self.split.gate_in_back, w.gate_scale, b.features, "scale", hops=reach)
        embedding.surroundings_mix_gradient[self.each_atom](
            b.p, b.a, b.features, self.atoms(reach), self.epsilons[0], WIDTH=w.width, **self.elements
        )

    def _forces(self, gradient: Tensor, virial: bool) -> None:
        """Forces from the gradient in the sums over neighbours and from what messages left at the edges."""
        self._edge_gradients(gradient)
        self._sum_forces(virial)

    def _read_gradient(self, last: int) -> None:
        self._multiply(self.gradient.features, self.split.read_back, self.weights.read_scale, self.norms(True), "scale")
        self.norms_gradient(last)

    def norms_gradient(self, last: int) -> None:
        """The gradient in the last tensors from that in their norms."""
        b, g, w = self.b, self.gradient, self.weights
        readout.read_features_gradient[self.each_atom](
            self.norms(True), b.x[last], g.x, *self._made_by(last), self.atoms(0), self.epsilons[1], WIDTH=w.width,
            EMBEDDING=last == 0, UPDATED=True, **self.activation, **self.elements,
        )  # fmt: skip

    def _layer_gradient(self, i: int, first: bool) -> None:
        self._received_gradient(i)
        self._messages_gradient_of(i, first)
        # The gradient in D is not read any more: its buffer takes the gradient through Y.
        self._sent_gradient(i, self.gradient.d[i])

    def _received_gradient(self, i: int) -> None:
        """The gradient in M, in its place, and in Y, without the part through messages, from that in D."""
        b, g, updated = self.b, self.gradient, len(self.weights.layers) - 1 - i
        self._multiply_parts(g.d[i], self.split.mix_out_back[i], b.p, hops=updated)
        interaction.update_gradient[self.each_atom](
            b.p, b.y[i], g.m[i], self.charge, self.system, self.atoms(updated),
            **self.reflections, **self.elements,
        )  # fmt: skip

    def _messages_gradient_of(self, i: int, first: bool) -> None:
        self._walk_messages_gradient(i, self.b.y[i], self.gradient.m[i], self.b.p, first)

    def _sent_gradient(self, i: int, through: Tensor) -> None:
        """The gradient in X before layer i, from that in Y. through: memory of one tensor."""
        b, g, updated = self.b, self.gradient, len(self.weights.layers) - 1 - i
        self._multiply_parts(b.p, self.split.mix_in_back[i], through, hops=updated + 1)
        interaction.mix_in_gradient[self.each_atom](
            through, *self._before(i), g.x, *self._made_by(i), self.atoms(updated + 1), self.atoms(updated),
            EMBEDDING=i == 0, **self.activation, **self.elements,
        )  # fmt: skip

    def _before(self, i: int) -> tuple[Tensor, Tensor | None]:
        """X̂ before layer i and 1 / (|X|² + 1); None for the latter if both are evaluated again."""
        return self.b.x[i], self.b.inverse[i]

    def _made_by(self, i: int) -> tuple[Tensor, ...]:
        """Buffers of the layer, or the embedding, that computed the tensors x_i; and the charges."""
        g = self.gradient
        return g.d[i - 1] if i else g.mixed, g.mixed, self.b.gate, self.charge, self.system
