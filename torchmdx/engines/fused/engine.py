"""The fused GPU kernels as an engine."""

from __future__ import annotations

import logging
from dataclasses import replace

from torch import Tensor

from torchmdx.domain import Domain
from torchmdx.engines.engine import Outputs
from torchmdx.engines.filter_table import table_of
from torchmdx.engines.fused.launch_sizes import FEW_ATOMS, TILE_ATOMS, Tiles
from torchmdx.engines.fused.tensornet import FastTensorNet
from torchmdx.engines.fused.tensornet2 import FastTensorNet2
from torchmdx.evaluate import per_volume
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.compile_cache import CacheError, CompileError
from torchmdx.runtime.cuda_kernel import DriverError
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.system import Batch

log = logging.getLogger(__name__)


def kernels_for(potential: Potential) -> type[FastTensorNet]:
    """The class of kernels for this type of network; its `why_not` tells whether they support the potential."""
    return FastTensorNet2 if isinstance(potential.network, TensorNet2) else FastTensorNet


def make_kernels(potential: Potential, precision: str, *, priors: bool) -> FastTensorNet:
    """A potential's kernels. priors: leave them out; otherwise a potential with priors is refused."""
    kind = kernels_for(potential)
    table = table_of(potential.network, kind.tabulated)
    return kind(potential, precision=precision, table=table, priors=priors)


def allocate(model: FastTensorNet, batch: Batch, capacity: int) -> None:
    """Allocates kernels for a batch. Only kernels for many atoms evaluate a part of the atoms, as of a domain."""
    if isinstance(batch, Domain):  # its atoms are counted on the device, so kernels take all of them at once
        tiles = replace(model.choose_tiles(max(batch.num_atoms, FEW_ATOMS + 1)), piece=0)
    else:
        tiles = model.choose_tiles(batch.num_atoms)
    elements = batch.atomic_numbers.unique().tolist()
    if isinstance(model, FastTensorNet2):
        _take_edge_maps(model, tiles)
    model.allocate(batch.num_atoms, batch.num_systems, capacity, tiles=tiles, elements=elements)
    if isinstance(model, FastTensorNet2):
        _take_clusters(model)
    _take_tiles(model, batch.num_atoms)


def _take_edge_maps(model: FastTensorNet2, tiles: Tiles) -> None:
    """Takes the kernels for the network of edges by warps that specialise, where they serve."""
    from torchmdx.engines.fused.edge_maps import why_not  # needs Triton

    if tiles.two_maps is None or why_not(model) is not None:
        return
    try:
        model.use_edge_maps()
    except (CompileError, CacheError, DriverError) as error:
        log.warning("the network of edges is evaluated by Triton's kernels: %s", error)


def _take_clusters(model: FastTensorNet2) -> None:
    """Takes the kernels of few atoms by clusters of blocks, where they serve."""
    from torchmdx.engines.fused.charged_cluster import serves  # needs Triton

    assert model.buffers is not None
    sizes = model.buffers.sizes
    if not sizes.one_program_per_atom or not serves(model, sizes.num_atoms, sizes.slots):
        return
    try:
        model.use_clusters()
    except (CompileError, CacheError, DriverError) as error:
        log.warning("few atoms are evaluated by Triton's kernels: %s", error)


def _take_tiles(model: FastTensorNet, num_atoms: int) -> None:
    """Takes the kernels for tiles of atoms where they serve and are faster: fewer tiles leave part of the chip idle."""
    from torchmdx.engines.fused.atom_tiles import served  # needs Triton

    assert model.buffers is not None
    if num_atoms < TILE_ATOMS or model.buffers.sizes.lean or not served(model):
        return
    try:
        model.use_tiles()
    except (CompileError, CacheError, DriverError) as error:
        log.warning("products with weights are launched one by one: %s", error)


def within_of(batch: Batch) -> Tensor | None:
    """The numbers of atoms by hops of a domain; None of another batch."""
    return batch.within if isinstance(batch, Domain) else None


class KernelEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, forward and backward.

    alone: no other engine runs at the same time, so few atoms may take the kernel of one_launch.py, whose blocks wait
    for each other.
    """

    alone = False

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool, precision: str) -> None:
        self.model = make_kernels(potential, precision, priors=False)
        self.name, self.table_error = f"kernels, {precision}", self.model.table.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        allocate(self.model, self.batch, capacity)
        self.name = f"kernels, {self.model.precision_used}"
        if self.alone and not self.stress and not isinstance(self.batch, Domain):
            self._use_one_launch()

    def _use_one_launch(self) -> None:
        """Takes one launch where it is faster; the name tells, also of why a machine cannot."""
        from torchmdx.engines.fused.one_launch import is_faster  # needs Triton

        if not is_faster(self.model, self.batch.num_atoms):
            return
        try:
            self.model.use_one_launch()
        except (ValueError, CompileError, CacheError, DriverError) as error:
            log.warning("few atoms are evaluated in several launches: %s", error)
            self.name += f", several launches: {error}"
        else:
            self.name += ", one launch"

    def gave_up(self) -> bool:
        """Whether a launch ended with NaN, because other work kept some of its blocks from starting; reads the device.

        Then the engine takes several launches from the next `reserve` on.
        """
        single = self.model.one_launch
        if single is None or not single.gave_up():
            return False
        self.alone = False
        return True

    def place_results(self, energy: Tensor, energies: Tensor, forces: Tensor) -> None:
        """Writes results into these tensors until the next `reserve`: [S] and [N] float64, [N,3] float32."""
        buffers = self.model.buffers
        assert buffers is not None
        buffers.energy, buffers.energies, buffers.forces = energy, energies, forces

    def share_scratch(self, other: KernelEngine) -> None:
        """Uses the other engine's scratch where shapes agree. The two must never run at the same time."""
        own, theirs = self.model.buffers, other.model.buffers
        assert own is not None
        assert theirs is not None
        own.scratch.share(theirs.scratch)

    @runs_on(device_of_positions)
    def run(self, positions: Tensor, cell: Tensor, edges: Edges, *, forces: bool = True) -> Outputs:
        batch = self.batch
        inputs = (positions, batch.atomic_numbers, batch.system_index, cell, batch.charge, edges)
        result = self.model.run(*inputs, forces=forces, virial=self.stress and forces, within=within_of(batch))
        stress = per_volume(result.virial, cell) if self.stress else None
        return Outputs(result.energy, result.energies, result.forces, stress)
