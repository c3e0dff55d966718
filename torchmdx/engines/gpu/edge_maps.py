"""The maps of TensorNet2's filters and their gradient by warps that specialise: sm90/edge_maps.cu, sm_90 only.

It evaluates both maps of an edge in one kernel on an H100 or H200, for the usual network (`serves.edge_maps` of
engines/plan).
A warp of each block copies matrices while others multiply, and blocks in clusters of two share what they copy.

Matrices are packed as the kernel reads them (`pack_forward`, `pack_backward`): in stages of STAGE bytes, half for the
rounded numbers and half for the remainders (fp16_parts.py), each in blocks of 64 inner columns, whose rows of 128
bytes have their eight pieces of 16 bytes in the swizzled order of tensor cores.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import CHANNELS
from torchmdx.runtime.cuda_kernel import ClusterKernel
from torchmdx.runtime.cuda_source import cubins
from torchmdx.runtime.once import once

if TYPE_CHECKING:
    from torchmdx.engines.gpu.charged_weights import FilterWeights
    from torchmdx.engines.gpu.fp16_parts import HalfParts
    from torchmdx.engines.gpu.one_launch import ClusterLauncher
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

SOURCES = Path(__file__).with_name("sm90")
MAIN = "edge_maps.cu"
FILES = (MAIN, "edge_maps_machine.cuh", "warpgroup_products.cuh")
ARCHITECTURE = "sm_90a"
CLUSTER, THREADS, ROWS = 2, 384, 128  # blocks of a cluster; threads and edges of a block
STAGE, BARRIERS = 32768, 256  # bytes
# The forward pass may keep the slopes of z₂'s activation, so that the backward pass does not evaluate z₂ again.
FORWARD, WITH_SLOPES = "maps_forward", "maps_forward_with_slopes"
BACKWARD, BY_SLOPES = "maps_backward", "maps_backward_by_slopes"
_FORWARD_BYTES, _BACKWARD_BYTES = 6 * STAGE + BARRIERS, 5 * STAGE + BARRIERS + 256 * 64 * 4
CALLED = {
    FORWARD: "forward<false>",
    WITH_SLOPES: "forward<true>",
    BACKWARD: "backward<false>",
    BY_SLOPES: "backward<true>",
}
SHARED_BYTES = {
    FORWARD: _FORWARD_BYTES,
    WITH_SLOPES: _FORWARD_BYTES,
    BACKWARD: _BACKWARD_BYTES,
    BY_SLOPES: _BACKWARD_BYTES,
}


class EdgeMapsStruct(ctypes.Structure):
    """`struct Params` of edge_maps.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("z1", "z3", "slopes", "matrices", "middle_bias", "last_bias")),
        ("row_ptr", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("num_atoms", "rows")),
        *((name, ctypes.c_float) for name in ("middle_unit", "last_unit")),
    )


def _ordered(size: int) -> Tensor:
    """Columns of memory in the order of a product's.

    Of 16 columns a thread t of four has the pairs 2t and 8 + 2t; in memory these are adjacent.
    """
    position = torch.arange(size, device="cpu")
    pair, thread, which = position // 8 % 2, position % 8 // 2, position % 2
    return position // 16 * 16 + 4 * thread + 2 * pair + which


def _blocks(matrix: Tensor) -> Tensor:
    """A matrix [outputs,inner] in half precision as blocks of 64 inner columns, swizzled."""
    outputs, inner = matrix.shape
    pieces = matrix.reshape(outputs, inner // 64, 8, 8).transpose(0, 1)
    place = torch.arange(8, device=matrix.device)[None, :] ^ (torch.arange(outputs, device=matrix.device) % 8)[:, None]
    return torch.gather(pieces, 2, place[None, :, :, None].expand_as(pieces)).flatten()


def _stage(parts: HalfParts, rows: Tensor, columns: Tensor, *, turned: bool = False) -> Tensor:
    """One stage: these rows and columns of a matrix, or of the transposed one."""
    both = (parts.big.cpu(), parts.small.cpu())
    return torch.cat([_blocks((part.T if turned else part)[rows[:, None], columns[None, :]]) for part in both])


def pack_forward(middle: HalfParts, last: HalfParts) -> Tensor:
    """[stages,16384] half precision, of the matrices [2C,C] and [3C,2C]: 64 outputs and C inputs in each stage."""
    two, three, one = _ordered(2 * CHANNELS), _ordered(3 * CHANNELS), _ordered(CHANNELS)
    first = [_stage(middle, two[n : n + 64], one) for n in range(0, 2 * CHANNELS, 64)]
    halves = (two[:CHANNELS], two[CHANNELS:])
    second = [_stage(last, three[n : n + 64], half) for n in range(0, 3 * CHANNELS, 64) for half in halves]
    return torch.stack(first + second).to(middle.big.device)


def pack_backward(middle: HalfParts, last: HalfParts, *, slopes: bool) -> Tensor:
    """[stages,16384] half precision: for each half of z₂, its gradient, its values, and what it adds to that in z₁.

    C outputs and 64 inputs in each stage. slopes: without the values.
    """
    two, three, one = _ordered(2 * CHANNELS), _ordered(3 * CHANNELS), _ordered(CHANNELS)
    stages = []
    for half in (two[:CHANNELS], two[CHANNELS:]):
        stages += [_stage(last, half, three[k : k + 64], turned=True) for k in range(0, 3 * CHANNELS, 64)]
        if not slopes:
            stages += [_stage(middle, half, one[k : k + 64]) for k in (0, 64)]
        stages += [_stage(middle, one, half[k : k + 64], turned=True) for k in (0, 64)]
    return torch.stack(stages).to(middle.big.device)


def code() -> dict[str, bytes]:
    """Each kernel, compiled by NVRTC or from the cache. Raises CompileError or CacheError."""
    files = {name: (SOURCES / name).read_text() for name in FILES}
    return cubins(MAIN, files, ARCHITECTURE, CALLED)


@once
def launchers(device: torch.device) -> Mapping[str, ClusterLauncher]:
    """The kernels on a device, compiled once by NVRTC and kept in the cache.

    Raises CompileError, CacheError or DriverError.
    """
    shape = dict(threads=THREADS, cluster=CLUSTER)
    return {
        name: ClusterKernel(made, name, device, most_shared_bytes=SHARED_BYTES[name], together=False, **shape)
        for name, made in code().items()
    }


class EdgeMaps:
    """The kernels on one device with the matrices of every layer.

    Args:
        most_clusters: To launch; each block takes ROWS edges at a time, or half of them.
    """

    def __init__(
        self, filters: Sequence[FilterWeights], kernels: Mapping[str, ClusterLauncher], most_clusters: int
    ) -> None:
        self.filters, self.kernels, self.most_clusters = filters, kernels, most_clusters
        self.matrices = [self._packed(w.middle_parts, w.last_parts) for w in filters]

    @classmethod
    def made(cls, model: FastTensorNet2) -> EdgeMaps:
        """The kernels for a model. Raises ValueError if they do not serve it, and as `launchers` does."""
        if (reason := serves.edge_maps(model.config, model.machine)) is not None:
            raise ValueError(f"maps of edges in one kernel do not serve this network: {reason}")
        device, most = model.device, model.machine.multiprocessors // CLUSTER
        return cls(model.charged.filters, launchers(device), most)

    @staticmethod
    def _packed(middle: HalfParts, last: HalfParts) -> dict[str, Tensor]:
        forward = pack_forward(middle, last)
        return {
            FORWARD: forward,
            WITH_SLOPES: forward,
            BACKWARD: pack_backward(middle, last, slopes=False),
            BY_SLOPES: pack_backward(middle, last, slopes=True),
        }

    def forth(self, layer: int, z1: Tensor, z3: Tensor, row_ptr: Tensor, slopes: Tensor | None = None) -> None:
        """z₃ [rows,3,C] of z₁ [rows,C]; row_ptr [N+1] tells how many rows there are.

        Args:
            slopes ([rows,2C]): If given, becomes the slopes of z₂'s activation.
        """
        self._launch(FORWARD if slopes is None else WITH_SLOPES, layer, z1, z3, row_ptr, slopes)

    def back(self, layer: int, z1: Tensor, g3: Tensor, row_ptr: Tensor, slopes: Tensor | None = None) -> None:
        """Overwrites z₁ with its gradient, from that in z₃ [rows,3,C]. slopes: as `forth` has left them, if it has."""
        self._launch(BACKWARD if slopes is None else BY_SLOPES, layer, z1, g3, row_ptr, slopes)

    def _launch(self, name: str, layer: int, z1: Tensor, z3: Tensor, row_ptr: Tensor, slopes: Tensor | None) -> None:
        w, rows, matrices = self.filters[layer], len(z1), self.matrices[layer][name]
        params = EdgeMapsStruct(
            z1=z1.data_ptr(),
            z3=z3.data_ptr(),
            slopes=None if slopes is None else slopes.data_ptr(),
            matrices=matrices.data_ptr(),
            middle_bias=w.middle_bias.data_ptr(),
            last_bias=w.last_bias.data_ptr(),
            row_ptr=row_ptr.data_ptr(),
            num_atoms=len(row_ptr) - 1,
            rows=rows,
            middle_unit=w.middle_parts.unit,
            last_unit=w.last_parts.unit,
        )
        self.kernels[name].launch(
            min(self.most_clusters, -(-rows // (CLUSTER * ROWS // 2))), SHARED_BYTES[name], params
        )
