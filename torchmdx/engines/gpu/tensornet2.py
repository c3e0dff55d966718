"""TensorNet2's energy and forces in a fixed chain of kernels, float32, for a GPU.

As `FastTensorNet`, but filters depend on the charges of both atoms. The part of their network that depends on the
distance is read from a table; the rest is evaluated for every edge on tensor cores, exact to float32
(triton/edge_mlp.py). The backward pass reads z₁ and the values z₃ before the last activation. For few rows it also
reads z₂; for more rows it evaluates z₂ again, some rows at a time. On an H100 or H200 other kernels do this
(edge_maps.py): without pieces, and with the slopes of z₂'s activation in place of z₂.

Few atoms of one system take fewer kernels, with one program per atom (charged_rows.py). On an H100 or H200, clusters of
blocks do the same for networks of the usual width (charged_cluster.py, `FastTensorNet2.use_clusters`), or everything in
one launch, with Coulomb energies of the charges (charged_launch.py); with more edges, the network of edges is evaluated
as for many atoms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from torchmdx.engines.filter_table import BOUND, RadialShares, TabulatedFilters
from torchmdx.engines.gpu.buffers import Buffers
from torchmdx.engines.gpu.charge_buffers import ChargeScratch
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.plan import KernelPlan
from torchmdx.engines.plan.decide import between_passes
from torchmdx.engines.plan.launch_sizes import Tiles
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet2 import TensorNet2

if TYPE_CHECKING:
    from torchmdx.engines.gpu.charged_cluster import ChargedClusters
    from torchmdx.engines.gpu.charged_launch import ChargedLaunch
    from torchmdx.engines.gpu.charged_weights import RowWeights
    from torchmdx.engines.gpu.edge_maps import EdgeMaps
    from torchmdx.engines.gpu.slab_windows import SlabShape
    from torchmdx.engines.gpu.triton.coulomb import DirectCoulomb


class FastTensorNet2(FastTensorNet):
    """A TensorNet2 potential's energy and forces by kernels. See FastTensorNet."""

    network_type: type[nn.Module] = TensorNet2

    def __init__(
        self,
        potential: Potential,
        *,
        bound: float = BOUND,
        table: TabulatedFilters | None = None,
        priors: bool = False,
    ) -> None:
        """priors: leave them out, and evaluate the charges after the last layer for them."""
        super().__init__(potential, bound=bound, table=table, priors=priors)
        from torchmdx.engines.gpu.charged_weights import ChargedWeights

        self.last_charges = priors
        self.charged = ChargedWeights.pack(potential.network, self.weights.channels)
        self.edge_maps: EdgeMaps | None = None
        self.row_weights: RowWeights | None = None
        self.clusters: ChargedClusters | None = None
        self.charged_launch: ChargedLaunch | None = None
        self.between = priors and between_passes("TensorNet2", potential.prior_configs)
        self.coulomb: DirectCoulomb | None = None  # that of a single launch, from who evaluates priors

    @property
    def single(self) -> ChargedLaunch | None:
        return self.charged_launch

    def use_one_launch(self, *, virials: bool = False) -> None:
        from torchmdx.engines.gpu.charged_launch import ChargedLaunch

        if self.buffers is None:
            raise RuntimeError("allocate must be called before use_one_launch")
        if virials or (self.priors and self.coulomb is None):
            raise ValueError("one launch of a TensorNet2 has no virials, and no priors but one of Coulomb energies")
        self.charged_launch = ChargedLaunch.made_for(self, self.buffers, self.coulomb)

    def use_edge_maps(self) -> None:
        """Makes `run` of many edges take the kernels of edge_maps.py from the next `allocate` on.

        Raises ValueError if they do not serve this network or its device; CompileError, CacheError or DriverError.
        """
        from torchmdx.engines.gpu.edge_maps import EdgeMaps  # needs Triton

        self.edge_maps = self.edge_maps or EdgeMaps.made(self)

    def use_clusters(self) -> None:
        """Makes `run` take the kernels of charged_cluster.py, in buffers of the last `allocate`.

        Raises ValueError if they do not serve this network, these buffers or this GPU; CompileError, CacheError or
        DriverError.
        """
        from torchmdx.engines.gpu.charged_cluster import ChargedClusters  # needs Triton

        if self.buffers is None:
            raise RuntimeError("allocate must be called before use_clusters")
        sizes = self.buffers.sizes
        if not sizes.one_program_per_atom or not sizes.with_forces:
            raise ValueError("clusters of blocks need buffers of few atoms with forces")
        self.clusters = ChargedClusters.made(self, sizes.num_atoms, sizes.slots)

    @staticmethod
    def tabulated(network: nn.Module) -> nn.Module:
        assert isinstance(network, TensorNet2)
        return RadialShares(network)

    def allocate(
        self,
        num_atoms: int,
        num_systems: int,
        capacity: int,
        *,
        forces: bool = True,
        tiles: Tiles | None = None,
        elements: Sequence[int] = (),
        plan: KernelPlan | None = None,
        slabs: SlabShape | None = None,
    ) -> Buffers:
        """elements, slabs: not used. Sums by elements cancel, and tensor cores round them too coarsely for charges."""
        buffers = super().allocate(num_atoms, num_systems, capacity, forces=forces, tiles=tiles, plan=plan)
        self.clusters = self.charged_launch = None
        if buffers.sizes.one_program_per_atom:
            self._pack_rows()
        self.neutral = buffers.sizes.new(max(num_systems, 1))  # the total charge that messages see
        buffers.scratch.charged = ChargeScratch.allocate(
            buffers.sizes,
            self.charged.charges,
            last_charges=self.last_charges,
            edge_maps=self.plan.edge_maps and self.edge_maps is not None,
            keeps_slopes=self.plan.keeps_slopes,
            piece=self.plan.piece,
        )
        return buffers

    def _pack_rows(self) -> None:
        from torchmdx.engines.gpu.charged_weights import RowWeights  # needs Triton

        self.row_weights = self.row_weights or RowWeights.of(self.charged)

    def chain_type(self, buffers: Buffers) -> type:
        from torchmdx.engines.gpu.charged import ChargedChain
        from torchmdx.engines.gpu.charged_rows import ChargedRowChain

        return ChargedRowChain if buffers.sizes.one_program_per_atom else ChargedChain
