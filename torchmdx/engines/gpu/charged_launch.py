"""TensorNet2 of few atoms in one launch, with Coulomb energies of its charges: sm90/charged_launch.cu.

The stages of charged_cluster.py and the network of edges, with barriers of all blocks between them, in the buffers of
charged_rows.py, which evaluates energies alone. As in one_launch.py, all blocks must run at the same time: a
cooperative launch starts them together, and blocks that wait in vain make energies and forces NaN.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchmdx.engines.gpu import one_launch
from torchmdx.engines.gpu.charged_cluster import SHAPE, Charged, ChargedClusters, addresses, source
from torchmdx.engines.gpu.charged_weights import whole
from torchmdx.engines.gpu.one_launch import ARCHITECTURE, SOURCES, ClusterLauncher, OneLaunchStruct
from torchmdx.engines.plan import serves
from torchmdx.engines.plan.clusters import CHANNELS, EDGE_FLOATS, MOST_SHARED_BYTES, NINE, SHARES, WIDE, AtomClusters
from torchmdx.engines.plan.serves import CLUSTER_CHARGES as CHARGES
from torchmdx.engines.plan.serves import ONE_LAUNCH_LAYERS as MOST_LAYERS
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.cuda_kernel import ClusterKernel
from torchmdx.runtime.cuda_source import cubin, members

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.engines.gpu.charged_rows import ChargedRowChain
    from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
    from torchmdx.engines.gpu.triton.coulomb import DirectCoulomb

MAIN, HEADER, NAME = "charged_launch.cu", "charged_launch_edges.cuh", "charged_launch"
# Floats of a row of the network of edges in a block's shared memory: in two rooms and what is pushed to them.
ROOMS, STAGES = (SHARES * (3 * WIDE + 8), SHARES * (2 * WIDE + 8)), 5 * WIDE + 16
SCRATCH, FEWEST_ROWS = 16 * 16 * (WIDE + 4), 8  # floats of its products; rows at a time


class MapsOf(ctypes.Structure):
    """`struct MapsOf` of charged_launch_edges.cuh."""

    _fields_ = members((SOURCES / HEADER).read_text(), "MapsOf")


class LaunchStruct(ctypes.Structure):
    """`struct Launch`."""

    _fields_ = (
        *members((SOURCES / HEADER).read_text(), "Launched"),
        ("common", OneLaunchStruct),
        ("own", Charged * (MOST_LAYERS + 1)),
        ("maps", MapsOf * MOST_LAYERS),
    )


@functools.cache
def launcher(device: torch.device, constants: tuple[tuple[str, int], ...]) -> ClusterKernel:
    """The kernel on a device, compiled as by `charged_cluster.launchers`, which raises the same."""
    code = cubin(MAIN, source(MAIN), ARCHITECTURE, dict(constants))
    return ClusterKernel(code, NAME, device, together=True, **SHAPE)


def floats_of_rows(rows: int, per: int) -> int:
    """Of a block for this number of rows, in addition to the tensors of `per` atoms, whose memory is used as well."""
    return STAGES * rows + sum(max(0, floats * rows - per * 9 * CHANNELS) for floats in ROOMS)


def fragments(matrix: Tensor, tiles: int) -> Tensor:
    """[SHARES,F,4] of a matrix [K,SHARES·tiles·16] from inputs to the outputs of all blocks, as `map_rows` reads it.

    A warp has one of the block's `tiles` of outputs and a part of the inputs, eight at a time. Its thread 4 i + j has
    outputs i and i + 8 of input 2 j, then of input 2 j + 1.
    """
    groups = {1: 16, 2: 8, 3: 4}[tiles]
    split = matrix.reshape(groups, -1, 4, 2, SHARES, tiles, 2, 8)
    return split.permute(4, 1, 5, 0, 7, 2, 3, 6).reshape(SHARES, -1, 4)


def pack_maps(model: FastTensorNet2, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices, vectors and table of a layer's network of edges: see `struct MapsOf`."""
    assert model.row_weights is not None
    own, w, radial = model.row_weights, model.charged.filters[layer], model.weights.layers[layer]
    middle, last = own.middle[layer], whole(w.last).unflatten(0, (3, SHARES, WIDE))
    by_share = last.transpose(0, 1).flatten(0, 2)  # outputs: those of a block's channels together
    maps = [fragments(middle.T, 2), fragments(by_share.T, 3), fragments(by_share, 2), fragments(middle, 1)]
    vectors = []
    for share in range(SHARES):
        mine, hidden = (slice(k * WIDE * share, k * WIDE * (share + 1)) for k in (1, 2))
        parts = (own.shares[layer][mine].T, radial.own[0, mine], w.middle_bias[hidden], w.last_bias[:, mine])
        vectors.append(torch.cat([part.flatten() for part in parts]))
    table = torch.nn.functional.pad(radial.table[:, :, 0], (0, 0, 0, 8 - radial.table.shape[1]))
    return (
        torch.cat(maps, 1).contiguous(),
        torch.stack(vectors).contiguous(),
        table.unflatten(1, (2, 4)).transpose(2, 3).contiguous(),
    )


class ChargedLaunch(ChargedClusters):
    """The kernel with a model's weights, for buffers of one number of atoms and edge slots.

    Args:
        coulomb: Of predicted charges, of one system without periodic directions; None: there are no other energies.
    """

    virials, needs_forces, has_uncertainties = False, True, False

    def __init__(
        self,
        model: FastTensorNet2,
        buffers: Buffers,
        plan: AtomClusters,
        kernel: ClusterLauncher,
        coulomb: DirectCoulomb | None = None,
    ) -> None:
        sizes = buffers.sizes
        n, slots, new = sizes.num_atoms, sizes.slots, sizes.new
        super().__init__(model, {NAME: kernel}, plan, n, slots)
        self.model, self.buffers = model, buffers
        layers, blocks = sizes.layers, plan.clusters * SHARES
        sets = layers + (coulomb is not None)
        floats = self.floats + max(0, SCRATCH - max(16 * plan.chunk, plan.lanes * plan.per) * NINE)
        floats += sets * CHARGES * (n + plan.per + 2) + 2 * WIDE * (n + plan.per + CHARGES + 3)
        edge_room = -(-min(slots, plan.per * n) // 4) * 4
        floats += EDGE_FLOATS * edge_room
        rows = max(FEWEST_ROWS, plan.per * n)
        while 4 * (floats + floats_of_rows(rows, plan.per)) > MOST_SHARED_BYTES:
            rows -= 1
        if rows < FEWEST_ROWS:
            raise ValueError(f"one launch has no room for {n} atoms in {plan.clusters} clusters")
        self.shared_bytes = 4 * (floats + floats_of_rows(rows, plan.per))
        self.fixed |= {"edge_room": edge_room, "patience": one_launch.PATIENCE}
        self.own_fixed["pull_parts"] = SHARES
        self.memory |= {"counters": new(3, dtype=torch.int64), "shift": model.weights.shift}
        self.own_memory["pull"] = self.memory["pull"]
        self.launched: dict[str, Tensor] = {
            "reverse": new(slots, dtype=torch.int32),
            "forces": new(n, 3),
            "arrived": new(1, dtype=torch.int64),
        }
        self.numbers: dict[str, Any] = {"layers": layers, "rows": rows}
        if coulomb is not None:
            self.launched["charge_weights"] = coulomb.weights
            lower, upper, switched = (coulomb.distances[name] for name in ("LOWER", "UPPER", "SWITCH"))
            self.numbers |= {"lower": lower, "upper": upper, "switched": switched}
            self.numbers["strength"] = coulomb.channels["STRENGTH"]
        self.maps = []
        for layer in range(layers):
            named = dict(zip(("maps", "vectors", "table"), pack_maps(model, layer), strict=True))
            # Each layer has its own: a cluster may begin with the next one while others still read.
            sums = dict(as_target=new(n, SHARES, CHARGES), as_source=new(slots, SHARES, CHARGES))
            self.maps.append(named | sums | {"sums": new(blocks, CHARGES, dtype=torch.float64)})

    @classmethod
    def made_for(cls, model: FastTensorNet2, buffers: Buffers, coulomb: DirectCoulomb | None) -> ChargedLaunch:
        """The kernel for a model and these buffers.

        Raises:
            ValueError: If it does not serve them, or has no room on this GPU; and as `launcher`.
        """
        sizes, plan = buffers.sizes, serves.atom_clusters(buffers.sizes.num_atoms)
        if (reason := serves.charged_launch(model.config, model.machine)) is not None:
            raise ValueError(f"one launch does not serve this network: {reason}")
        if plan is None or not sizes.one_program_per_atom or not sizes.with_forces or sizes.slots > serves.MOST_SLOTS:
            raise ValueError(f"one launch needs forces of few atoms, got {sizes.num_atoms} with {sizes.slots} edges")
        if coulomb is not None and (coulomb.periodic or not coulomb.prior.sees_all_pairs):
            raise ValueError("one launch has Coulomb energies of all pairs, got a cutoff")
        constants = tuple(plan.constants.items())
        kernel = launcher(model.device, constants)
        made = cls(model, buffers, plan, kernel, coulomb)
        if kernel.most_clusters(made.shared_bytes) < plan.clusters:
            raise ValueError(f"one launch has no room for {plan.clusters} clusters")
        return made

    def gave_up(self) -> bool:
        """Whether blocks of a launch did not wait to the end. Reads the device."""
        return bool(self.memory["counters"][1])

    def run(
        self,
        positions: Tensor,
        numbers: Tensor,
        system: Tensor,
        cell: Tensor,
        charge: Tensor,
        edges: Edges,
        *,
        forces: bool = True,
    ) -> None:
        """Computes energies and forces into the buffers: one launch on the current stream."""
        assert forces
        inputs = (positions, numbers, system, cell, charge, edges)
        chain = self.model.chain_type(self.buffers)(self.model, self.buffers, *inputs)
        self.kernels[NAME].launch(self.plan.clusters, self.shared_bytes, self.given(chain))

    def given(self, chain: ChargedRowChain) -> LaunchStruct:
        layers, out = range(len(self.maps)), self.buffers
        common = self.common(chain)
        common.energy, common.forces = out.energy.data_ptr(), out.forces.data_ptr()
        own = (Charged * (MOST_LAYERS + 1))(*(self.stage(chain, k) for k in range(len(layers) + 1)))
        maps = (MapsOf * MOST_LAYERS)(*(MapsOf(**addresses(self._maps(chain, k))) for k in layers))
        return LaunchStruct(**addresses(self.launched), **self.numbers, common=common, own=own, maps=maps)

    def _maps(self, chain: ChargedRowChain, layer: int) -> dict[str, Tensor]:
        return self.maps[layer] | {"z1": chain.q.z1[layer], "z2": chain.q.z2[layer]}
