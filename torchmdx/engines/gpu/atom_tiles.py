"""The work within atoms in kernels of CUDA C++, sm90/atom_tiles.cu, for an H100 or H200: fewer ways through memory.

Between sums over neighbours an atom's nine components pass one or two products with weights and element-wise maps. The
chain of many_atoms.py has a kernel for each; here a block does all of them for a tile of atoms in shared memory::

    W → gated → W                              embedded
    W → update → W                             next_layer
    W → update → read_norms                    last_layer
    read_features_gradient → W → update_gradient         last_layer_gradient
    W → mix_in_gradient → W → update_gradient            next_layer_gradient
    W → mix_in_gradient → W                              embedded_gradient

Products take rows and matrices as two halves each, in units of powers of two (fp16_parts.py), with float32 sums of
every 16 channels. Each of two warpgroups makes 64 outputs for the rows of a part, 5, 3 or 1 components of 16 atoms:
matrices come from registers, rows from shared memory. The kernels serve the usual network in float32
(`serves.atom_tiles` of engines/plan), in memory for all tensors; messages are those of row_messages.py. Of a domain, a
kernel reads on the device how many atoms it evaluates, as those of `Chain` do; blocks beyond return.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import triton
from torch import Tensor

from torchmdx.engines.gpu.fp16_parts import HalfParts
from torchmdx.engines.gpu.row_messages import GridLauncher, RowMessages
from torchmdx.engines.gpu.row_messages import launchers as message_launchers
from torchmdx.engines.gpu.weights import Weights
from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import CHANNELS
from torchmdx.models.tensornet import TensorNet
from torchmdx.runtime.cuda_kernel import GridKernel
from torchmdx.runtime.cuda_source import cubins, members
from torchmdx.runtime.once import once

if TYPE_CHECKING:
    from torchmdx.engines.gpu.tensornet import FastTensorNet

SOURCES = Path(__file__).with_name("sm90")
MAIN = "atom_tiles.cu"
FILES = (
    MAIN, "atom_tiles.cuh", "atom_tiles_machine.cuh", "quads.cuh", "one_launch_nine.cuh", "one_launch_machine.cuh",
    "warpgroup_products.cuh",
)  # fmt: skip
ARCHITECTURE = "sm_90a"
KERNELS = (
    "embedded", "next_layer", "last_layer", "last_layer_gradient", "next_layer_gradient", "embedded_gradient",
)  # fmt: skip
# What the kernels are compiled for: atoms of a tile, blocks of a multiprocessor, and how many steps of 16 inner
# channels weights are read before their use.
SIZES = dict(ATOMS=16, BLOCKS=2, AHEAD=4)
ATOMS, THREADS = SIZES["ATOMS"], 256
SHARED_BYTES = 4 * ATOMS * (9 * CHANNELS + 1)


class AtomTilesStruct(ctypes.Structure):
    """`struct Params` of atom_tiles.cuh."""

    _fields_ = members((SOURCES / "atom_tiles.cuh").read_text(), "Params")


def packed(matrices: Tensor) -> tuple[Tensor, float]:
    """Matrices [3,outputs,inputs] as halves in the order in which threads read them, and their unit."""
    parts = HalfParts.of(matrices.flip(0))  # the last part is the first product
    # [big or small, matrix, 64 outputs, warp, eight of 16 outputs, output, step, eight of 16 inputs, pair, input]
    halves = torch.stack([parts.big, parts.small]).view(2, 3, 2, 4, 2, 8, 8, 2, 4, 2)
    return halves.permute(1, 6, 2, 0, 3, 5, 8, 7, 4, 9).contiguous(), parts.unit


@dataclass(frozen=True, eq=False)
class TileMatrices:
    """The matrices of a network for these kernels, each with its unit; `_back` those of the backward pass."""

    mix: tuple[Tensor, float]
    mix_back: tuple[Tensor, float]
    mix_in: list[tuple[Tensor, float]]
    mix_in_back: list[tuple[Tensor, float]]
    mix_out: list[tuple[Tensor, float]]
    mix_out_back: list[tuple[Tensor, float]]

    @classmethod
    def of(cls, w: Weights) -> TileMatrices:
        """Matrices of `Weights` transposed: [outputs,inputs]."""
        return cls(
            mix=packed(w.mix_back),
            mix_back=packed(w.mix),
            mix_in=[packed(layer.mix_in_back) for layer in w.layers],
            mix_in_back=[packed(layer.mix_in) for layer in w.layers],
            mix_out=[packed(layer.mix_out_back) for layer in w.layers],
            mix_out_back=[packed(layer.mix_out) for layer in w.layers],
        )


def code() -> dict[str, bytes]:
    """Each kernel, compiled by NVRTC or from the cache. Raises CompileError or CacheError."""
    files = {name: (SOURCES / name).read_text() for name in FILES}
    return cubins(MAIN, files, ARCHITECTURE, {f"{name}_kernel": name for name in KERNELS}, SIZES)


@once
def launchers(device: torch.device) -> Mapping[str, GridLauncher]:
    """The kernels on a device. Raises CompileError, CacheError or DriverError."""
    made, shape = code(), dict(threads=THREADS, shared_bytes=SHARED_BYTES)
    names = {name: f"{name}_kernel" for name in KERNELS}
    return {name: GridKernel(made[known], known, device, **shape) for name, known in names.items()}


class TileKernels:
    """The kernels with a model's matrices, and those of row_messages.py."""

    def __init__(self, model: FastTensorNet, kernels: Mapping[str, GridLauncher]) -> None:
        self.kernels, self.matrices = kernels, TileMatrices.of(model.weights)

    @classmethod
    def made(cls, model: FastTensorNet) -> TileKernels:
        """The kernels for a model. Raises ValueError if they do not serve it, and as `launchers` does."""
        if model.network_type is not TensorNet:
            raise ValueError(f"tiles of atoms need a TensorNet, got {model.network_type.__name__}")
        if (reason := serves.atom_tiles(model.config)) is not None:
            raise ValueError(f"tiles of atoms do not serve this network: {reason}")
        return cls(model, {**launchers(model.device), **message_launchers(model.device)})


class TileChain(RowMessages):
    """The same function as `Chain`; the model has `tile_kernels`."""

    def __init__(self, model: FastTensorNet, *inputs: Any) -> None:
        super().__init__(model, *inputs)
        assert model.tile_kernels is not None
        self.kernels, self.matrices = model.tile_kernels.kernels, model.tile_kernels.matrices

    def _launch(
        self,
        name: str,
        tensors: Mapping[str, Tensor | None],
        first: tuple[Tensor, float] | None = None,
        second: tuple[Tensor, float] | None = None,
        *,
        hops: int,
        received: int | None = None,
    ) -> None:
        """tensors: what `struct Params` names. first, second: matrices of the products.

        Args:
            hops: As for `atoms`; received: of the atoms that have a gradient in X already.
        """
        given: dict[str, Any] = {key: None if value is None else value.data_ptr() for key, value in tensors.items()}
        if self.within is not None:
            given["count"] = cast(Tensor, self.atoms(hops)).data_ptr()
            given["received"] = None if received is None else cast(Tensor, self.atoms(received)).data_ptr()
        for key, matrices in (("first", first), ("second", second)):
            if matrices is not None:
                given |= {key: matrices[0].data_ptr(), f"{key}_unit": matrices[1]}
        given |= {"charge": self.charge.data_ptr(), "wide_charge": self.charge.dtype == torch.float64}
        given |= {"system": self.system.data_ptr(), "epsilon": self.epsilons[1], "num_atoms": self.n}
        self.kernels[name].launch(triton.cdiv(self.n, ATOMS), AtomTilesStruct(**given))

    def forward(self, keep: bool) -> None:
        if not self.n:
            return
        b, own, last = self.b, self.sizes.with_forces, len(self.weights.layers) - 1
        self._surroundings()
        self._gate()
        self._launch_embedded(self.gradient.mixed if keep else None)
        for i in range(last + 1):
            # Without buffers of the backward pass, layers take turns in those of the first.
            now, after, slot = (i, i + 1, i) if own else (i % 2, (i + 1) % 2, 0)
            self._messages_of(i, b.y[slot], keep)
            taken = dict(sums=b.p, x=b.x[now], d=self.gradient.d[i] if keep else None)
            if i < last:
                made = dict(out=b.x[after], out_inverse=b.inverse_of(after), result=b.y[i + 1 if own else 0])
                self._launch_next(i, {**taken, **made})
            else:
                self._launch_last(taken, keep)

    def backward(self, virial: bool) -> None:
        if not self.n:
            return
        last = len(self.weights.layers) - 1
        self._launch_last_gradient()
        for i in reversed(range(last + 1)):
            self._messages_gradient_of(i, first=i == last)
            if i:
                self._launch_next_gradient(i - 1)
        self._launch_embedded_gradient()
        self._gate_gradient()
        self._forces(self.b.p, virial)

    def _launch_embedded(self, mixed: Tensor | None) -> None:
        """X̂ of the embedding and what the first layer sends; mixed: memory of mix(A), None if it is not kept."""
        b, m, reach = self.b, self.matrices, len(self.weights.layers)
        made = dict(sums=b.a, gate=b.gate, mixed=mixed, out=b.x[0], out_inverse=b.inverse[0], result=b.y[0])
        self._launch("embedded", made, m.mix, m.mix_in[0], hops=reach)

    def _launch_next(self, i: int, tensors: dict[str, Tensor | None]) -> None:
        """X̂ after layer i, and what the next one sends."""
        m, updated = self.matrices, len(self.weights.layers) - 1 - i
        self._launch("next_layer", tensors, m.mix_out[i], m.mix_in[i + 1], hops=updated)

    def _launch_last(self, taken: dict[str, Tensor | None], keep: bool) -> None:
        """Energies after the last layer."""
        w, norms = self.weights, self.norms(keep)
        made = dict(scale=w.read_scale, offset=w.read_offset, norms=norms)
        self._launch("last_layer", {**taken, **made}, self.matrices.mix_out[-1], hops=0)
        self._multiply(norms, self.split.read, w.read_bias, self.b.features, "bias", activation="none")
        self._head(keep, slice(0, self.n))

    def _launch_last_gradient(self) -> None:
        """From the gradient in the features to those in the messages of the last layer and in its Y."""
        b, g, last = self.b, self.gradient, len(self.weights.layers) - 1
        self._multiply(g.features, self.split.read_back, self.weights.read_scale, g.norms, "scale")
        made = dict(gradient=g.x, d=g.d[last], y=b.y[last], m=g.m[last], result=b.p, x=b.x[last], norms=g.norms)
        self._launch("last_layer_gradient", made, second=self.matrices.mix_out_back[last], hops=0)

    def _launch_next_gradient(self, i: int) -> None:
        """The same for layer i, from the gradient in Y of the layer after it."""
        b, g, m, updated = self.b, self.gradient, self.matrices, len(self.weights.layers) - 1 - i
        made = dict(gradient=g.x, d=g.d[i], y=b.y[i], m=g.m[i], result=b.p)
        made |= dict(sums=b.p, x=b.x[i + 1], inverse=b.inverse[i + 1])
        hops = dict(hops=updated, received=updated - 1)
        self._launch("next_layer_gradient", made, m.mix_in_back[i + 1], m.mix_out_back[i], **hops)

    def _launch_embedded_gradient(self) -> None:
        """The gradient in the sums of the embedding, without the part through the gate."""
        b, g, m, reach = self.b, self.gradient, self.matrices, len(self.weights.layers)
        made = dict(sums=b.p, gradient=g.x, mixed=g.mixed, gate=b.gate, result=b.p)
        self._launch("embedded_gradient", made, m.mix_in_back[0], m.mix_back, hops=reach, received=reach - 1)
