"""What concerns atoms one by one in a TensorNet2 of few atoms, by clusters of blocks: sm90/charged_cluster.cu.

They replace `embed`, `layer`, `output_gradient` and `layer_gradient` of charged_rows.py on an H100 or H200, for the
usual network (`serves.charged_clusters` of engines/plan), where forces are wanted and `FastTensorNet2.use_clusters` has
been called. Blocks wait for those of their own cluster only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchmdx.engines.gpu import one_launch_weights as packing
from torchmdx.engines.gpu.one_launch import ARCHITECTURE, SOURCES, ClusterLauncher, OneLaunchStruct
from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import (
    CHANNELS,
    EDGE_FLOATS,
    MOST_SHARED_BYTES,
    SHARES,
    THREADS,
    WIDE,
    AtomClusters,
)
from torchmdx.engines.plan.serves import CLUSTER_CHARGES as CHARGES
from torchmdx.models.charge_equilibration import LEAST_SHARE
from torchmdx.runtime.cuda_kernel import ClusterKernel
from torchmdx.runtime.cuda_source import cubins, members
from torchmdx.runtime.once import once

if TYPE_CHECKING:
    from torchmdx.engines.gpu.charged_rows import ChargedRowChain
    from torchmdx.engines.gpu.charged_weights import ChargeWeights
    from torchmdx.engines.gpu.head_weights import HeadWeights
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2

MAIN, HEADER = "charged_cluster.cu", "charged_cluster_block.cuh"
HEADERS = ("one_launch*.cuh", "charged_*.cuh")
# What they begin and end with: charged_cluster.cu.
EMBED, MIDDLE, LAYER, LAST = "charged_embed", "charged_middle", "charged_layer", "charged_last"
OUTPUT, MIDDLE_GRADIENT, GRADIENT = "charged_output", "charged_middle_gradient", "charged_gradient"
CALLED = {
    EMBED: "embed",
    MIDDLE: "middle",
    LAYER: "layer",
    LAST: "last",
    OUTPUT: "middle_gradient<true>",
    MIDDLE_GRADIENT: "middle_gradient<false>",
    GRADIENT: "gradient",
}


class Charged(ctypes.Structure):
    """`struct Charged` of charged_cluster_block.cuh."""

    _fields_ = members((SOURCES / HEADER).read_text(), "Charged")


class GivenStruct(ctypes.Structure):
    """`struct Given`."""

    _fields_ = (("common", OneLaunchStruct), ("own", Charged))


SHAPE = dict(threads=THREADS, cluster=SHARES, most_shared_bytes=MOST_SHARED_BYTES)


def source(main: str) -> dict[str, str]:
    """A file with those that it includes."""
    paths = (SOURCES / main, *(path for pattern in HEADERS for path in sorted(SOURCES.glob(pattern))))
    return {path.name: path.read_text() for path in paths}


@once
def launchers(device: torch.device, constants: tuple[tuple[str, int], ...]) -> Mapping[str, ClusterKernel]:
    """The kernels on a device, compiled once with these constants by NVRTC, and kept in the cache.

    Raises CompileError, CacheError or DriverError.
    """
    code = cubins(MAIN, source(MAIN), ARCHITECTURE, CALLED, dict(constants))
    return {name: ClusterKernel(made, name, device, together=False, **SHAPE) for name, made in code.items()}


def pack_matrices(model: FastTensorNet2, k: int) -> Tensor:
    """[SHARES,F/4,THREADS,4]: the F weights of every thread, one product after the other, as in charged_cluster.cu.

    Args:
        k: Of the kernels around the tensors that go into layer k, or come out of the last. Each has the matrices of the
            embedding and of the readout; the charges after the last layer are in no kernel unless they are evaluated.
    """
    assert model.row_weights is not None
    w, layers = model.weights, model.weights.layers
    own = model.row_weights.charges[min(k, len(model.row_weights.charges) - 1)]
    before, layer = layers[max(k - 1, 0)], layers[min(k, len(layers) - 1)]
    third_back = torch.nn.functional.pad(own.third_back, (0, 0, 0, CHANNELS - len(own.third_back)))
    pieces = [
        packing.columns(w.gate_in, 2),
        packing.fragments(w.mix),
        packing.by_part(w.gate_out),
        packing.fragments(layer.mix_in),
        packing.columns(own.first, 1),
        packing.columns(own.second, 1),
        packing.whole(own.third),
        packing.fragments(before.mix_out),
        packing.columns(w.read.flatten(0, 1), 1),
        packing.whole(w.head.into),
        packing.whole(w.head.back),
        packing.by_part(w.read_back),
        packing.fragments(before.mix_out_back),
        packing.columns(third_back, 1),
        packing.columns(own.second_back, 1),
        packing.by_part(own.first_back.unflatten(1, (3, CHANNELS))),
        packing.fragments(layer.mix_in_back),
        packing.columns(w.gate_out_back.flatten(0, 1), 2),
        packing.fragments(w.mix_back),
        packing.columns(w.gate_in_back, 1),
    ]
    return torch.cat(pieces, 1).contiguous()


def pack_head(w: HeadWeights) -> Tensor:
    """[D-1,2,2,THREADS,4]: the matrices of hidden layers beyond the first, forward and back; every block has all."""
    pairs = [[packing.whole(matrix)[0] for matrix in pair] for pair in zip(w.more, w.more_back, strict=True)]
    return torch.stack([torch.stack(pair) for pair in pairs]) if pairs else w.bias.new_zeros(4)


def pack_vectors(w: ChargeWeights, first: Tensor) -> Tensor:
    """[SHARES,V]: the LayerNorm of the charges, sums for its gradient (one_launch_weights.pack_vectors), and biases."""
    wide = torch.float64
    scale, offset, matrix = w.scale.flatten().to(wide), w.offset.flatten().to(wide), first.to(wide)
    common = [scale, offset, scale @ matrix, w.first_bias.to(wide) + offset @ matrix, w.third_bias]
    rows = []
    for share in range(SHARES):
        mine = slice(WIDE * share, WIDE * (share + 1))
        rows.append(torch.cat([x.float() for x in (*common, w.first_bias[mine], w.second_bias[mine])]))
    return torch.stack(rows).contiguous()


class ChargedClusters:
    """The kernels with a model's weights, for one number of atoms and edge slots.

    Args:
        kernels: By name.
        plan: How atoms are divided.
    """

    def __init__(
        self,
        model: FastTensorNet2,
        kernels: Mapping[str, ClusterLauncher],
        plan: AtomClusters,
        num_atoms: int,
        slots: int,
    ) -> None:
        assert model.row_weights is not None
        w, new = model.weights, model.weights.own.new_zeros
        charges = model.charged.equilibrations
        stages = range(len(w.layers) + 1)
        self.plan, self.kernels = plan, kernels
        self.floats = plan.floats + plan.per * (3 * CHANNELS + 3 * WIDE) + 8 * CHANNELS + 2 * CHARGES + 2 * WIDE
        room = (MOST_SHARED_BYTES // 4 - self.floats) // EDGE_FLOATS // 4 * 4
        edge_room = min(room, -(-slots // 4) * 4)
        self.shared_bytes = 4 * (self.floats + EDGE_FLOATS * edge_room)
        self.memory = {
            "vectors": packing.pack_vectors(w, usual=True),
            "table": packing.pack_table(w.table),
            "stretch": w.stretch,
            "constants": w.head.constants,
            "references": w.references,
            "targets": w.targets,
            "sources": w.sources,
            "edges": new(SHARES, slots, 8),
            "pull": new(SHARES, slots),
        }
        self.own_memory = {"head_weights": pack_head(w.head), "head_biases": w.head.bias}
        # Of the kernels around the tensors that go into each layer, and come out of the last.
        self.weights = [pack_matrices(model, k) for k in stages]
        self.charge_vectors = [
            pack_vectors(charge, own.first) for charge, own in zip(charges, model.row_weights.charges, strict=True)
        ]
        self.statistics = [new(num_atoms, 4) for _ in stages]
        self.fixed = {"num_atoms": num_atoms, "num_systems": 1, "slots": slots, "edge_room": edge_room}
        self.fixed |= {"per": plan.per, "lanes": plan.lanes, "chunk": plan.chunk, "last_interval": w.num_intervals - 1}
        self.fixed |= {"gate_epsilon": model.epsilons[0], "read_epsilon": model.epsilons[1]}
        self.own_fixed = dict(charge_epsilon=charges[0].epsilon, least=LEAST_SHARE, slack=charges[0].slack)
        self.own_fixed |= {"more_head": w.head.num_layers - 1, "pull_parts": 1}

    @classmethod
    def made(cls, model: FastTensorNet2, num_atoms: int, slots: int) -> ChargedClusters:
        """The kernels for a model. Raises ValueError if its plan has none, and as `launchers` does."""
        plan = model.plan.clusters
        if (reason := serves.charged_clusters(model.config, model.machine)) is not None:
            raise ValueError(f"clusters of blocks do not serve this network: {reason}")
        if plan is None:
            raise ValueError(f"clusters of blocks serve few atoms, got {num_atoms} with {slots} edges")
        return cls(model, launchers(model.device, tuple(plan.constants.items())), plan, num_atoms, slots)

    def launch(self, name: str, chain: ChargedRowChain, k: int = 0) -> None:
        """One of the kernels, on the buffers of a chain, for the tensors that go into layer k, or out of the last."""
        given = GivenStruct(self.common(chain), self.stage(chain, k))
        self.kernels[name].launch(self.plan.clusters, self.shared_bytes, given)

    def common(self, chain: ChargedRowChain) -> OneLaunchStruct:
        e = chain.edges
        given: dict[str, Tensor] = dict(
            positions=chain.positions, cell=chain.cell, charge=chain.total_charge, numbers=chain.numbers,
            system=chain.system, row_ptr=e.row_ptr, source=e.source, target=e.target, shifts=e.shifts,
            energies=chain.buffers.energies, **self.memory,
        )  # fmt: skip
        if chain.buffers.last_inputs is not None:
            given["last_inputs"] = chain.buffers.last_inputs
        wide = {f"wide_{name}": given[name].dtype == torch.float64 for name in ("positions", "cell", "charge")}
        return OneLaunchStruct(**addresses(given), **self.fixed, **wide)

    def stage(self, chain: ChargedRowChain, k: int) -> Charged:
        b, g, q, before, last = chain.b, chain.gradient, chain.q, max(k - 1, 0), len(chain.b.x) - 1
        charged = min(k, len(self.charge_vectors) - 1, len(q.first) - 1)
        own: dict[str, Tensor] = dict(
            weights=self.weights[k], knot=b.knot, place=b.place, lengths=b.stretch, a=b.a, hidden=b.hidden,
            gate=b.gate, mixed=g.mixed, x=b.x[before], next_x=b.x[k], next_inverse=b.inverse_of(k),
            y=b.y[before], next_y=b.y[min(k, last - 1)], gy=b.p, gm=g.m[before], d=g.d[before], g=g.x,
            z3=q.z3[before], first=q.first[charged], second=q.second[charged], proposed=q.proposed[charged],
            gq=chain.pull_on(k), pull=g.pull, half=g.half, charge_vectors=self.charge_vectors[charged],
            statistics=self.statistics[k],
        )  # fmt: skip
        return Charged(**addresses(own | self.own_memory), **self.own_fixed, cutoff=chain.cutoff)


def addresses(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Where they lie, by the names of a structure's members."""
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}
