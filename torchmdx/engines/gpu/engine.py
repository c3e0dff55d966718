"""The fused GPU kernels as an engine."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from torchmdx.engines.engine import Engine, Outputs
from torchmdx.engines.filter_table import table_of
from torchmdx.engines.gpu.slab_layout import SlabLayout
from torchmdx.engines.gpu.slab_windows import SlabShape
from torchmdx.engines.gpu.tensornet import FastTensorNet
from torchmdx.engines.gpu.tensornet2 import FastTensorNet2
from torchmdx.engines.plan import Plan, Workload
from torchmdx.engines.plan.kernels import SLABS
from torchmdx.models.potential import Potential
from torchmdx.models.tensornet2 import TensorNet2
from torchmdx.neighbors.edges import Edges
from torchmdx.runtime.compile_cache import CacheError, CompileError
from torchmdx.runtime.cuda_kernel import DriverError
from torchmdx.runtime.device_guard import device_of_positions, runs_on
from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

if TYPE_CHECKING:
    from torchmdx.engines.gpu.buffers import Buffers
    from torchmdx.engines.gpu.with_priors import GpuPriorEngine

log = logging.getLogger(__name__)

# What is raised where kernels of CUDA C++ cannot be had.
UNAVAILABLE: tuple[type[Exception], ...] = (CompileError, CacheError, DriverError)
SEVERAL = "few atoms are evaluated in several launches"


def kernels_for(potential: Potential) -> type[FastTensorNet]:
    """The class of kernels for this type of network; its `why_not` tells whether they support the potential."""
    return FastTensorNet2 if isinstance(potential.network, TensorNet2) else FastTensorNet


def make_kernels(potential: Potential, *, priors: bool) -> FastTensorNet:
    """A potential's kernels. priors: leave them out; otherwise a potential with priors is refused."""
    kind = kernels_for(potential)
    table = table_of(potential.network, kind.tabulated)
    return kind(potential, table=table, priors=priors)


def outputs_of(found: Buffers, stress: Tensor | None) -> Outputs:
    """The results of an evaluation."""
    given = (found.energy, found.energies, found.forces, stress)
    return Outputs(*given, last_inputs=found.last_inputs, uncertainties=found.uncertainties)


def workload_of(
    batch: Batch, capacity: int, elements: int, *, stress: bool, alone: bool, last_inputs: bool = False
) -> Workload:
    """What an engine evaluates."""
    return Workload(
        atoms=batch.num_atoms,
        systems=batch.num_systems,
        capacity=capacity,
        elements=elements,
        stress=stress,
        periodic=bool(batch.pbc.any()),
        alone=alone,
        domain=isinstance(batch, Domain),
        last_inputs=last_inputs,
    )


def allocate(model: FastTensorNet, batch: Batch, capacity: int, *, stress: bool, alone: bool = False) -> None:
    """Takes the kernels of the plan, and allocates for a batch. `model.outcomes` tells of what cannot be had.

    Args:
        alone: As for `Workload`.
    """
    elements = batch.atomic_numbers.unique().tolist()
    work = workload_of(
        batch, capacity, len(elements), stress=stress, alone=alone, last_inputs=model.uncertainty is not None
    )
    plan = model.planned(replace(work, memory=model.memory, ordered=model.layout.rows is not None))
    model.outcomes = []
    if isinstance(model, FastTensorNet2) and plan.edge_maps:
        _take(model, model.use_edge_maps, "the network of edges is evaluated by Triton's kernels")
    slabs = SlabShape.of_layout(batch.num_atoms, model.layout)
    model.allocate(batch.num_atoms, batch.num_systems, capacity, elements=elements, plan=plan, slabs=slabs)
    if plan.atom_tiles:
        _take(model, model.use_tiles, "products with weights are launched one by one, messages by Triton")
    if plan.one_launch:
        # Only the driver knows whether all blocks have room.
        use = functools.partial(model.use_one_launch, virials=stress)
        _take(model, use, SEVERAL, ValueError)
    if isinstance(model, FastTensorNet2) and plan.clusters is not None and model.single is None:
        _take(model, model.use_clusters, "few atoms are evaluated by Triton's kernels")


def _take(model: FastTensorNet, use: Callable[[], None], otherwise: str, *more: type[Exception]) -> None:
    """Takes kernels of CUDA C++, unless they cannot be compiled or loaded: then others do their work."""
    try:
        use()
    except UNAVAILABLE + more as error:
        log.warning("%s: %s", otherwise, error)
        model.outcomes.append(f"{otherwise}: {error}")


def planned_for(model: FastTensorNet, plan: Plan | None) -> Plan | None:
    """A plan with the kernels for the capacity of the last `allocate`."""
    return None if plan is None else plan.with_kernels(model.plan, model.capacity)


def launches_of(model: FastTensorNet) -> str:
    """For the name of an engine: whether its kernels are one launch, or why they are not, against the plan."""
    if model.single is not None:
        return ", one launch"
    reasons = [outcome for outcome in model.outcomes if outcome.startswith(SEVERAL)]
    return f", several launches: {reasons[0].partition(': ')[2]}" if reasons else ""


def gave_up(engine: GpuEngine | GpuPriorEngine) -> bool:
    """Whether blocks of one launch did not wait to the end. Then `alone` becomes False."""
    single = engine.model.single
    if single is None or not single.gave_up():
        return False
    engine.alone = False
    return True


def slab_layout(engine: Engine | None) -> SlabLayout | None:
    """How an engine's atoms are divided into slabs, which their order has to follow; None if they are not."""
    model = getattr(engine, "model", None)
    if engine is None or not isinstance(model, FastTensorNet) or engine.plan is None or engine.plan.kernels is None:
        return None
    if engine.plan.kernels.chain != SLABS:
        return None
    if model.layout.rows is None:
        model.layout.reach = engine.plan.kernels.reach
    return model.layout


def left_slabs(engine: Engine) -> bool:
    """Whether neighbours were too many slabs apart, so that results are NaN; reads the device.

    Then the next order of the atoms divides them anew.
    """
    if (layout := slab_layout(engine)) is None:
        return False
    windows = engine.model.buffers.windows  # type: ignore[attr-defined]
    if windows is None or not int(windows.far):
        return False
    layout.forget()
    return True


def within_of(batch: Batch) -> Tensor | None:
    """The numbers of atoms by hops of a domain; None of another batch."""
    return batch.within if isinstance(batch, Domain) else None


class GpuEngine:
    """TensorNet or TensorNet2 in fused kernels on a GPU, forward and backward.

    Attributes:
        alone: No other engine runs at the same time, so few atoms may take the kernel of one_launch.py, whose blocks
            wait for each other.
    """

    alone = False
    plan: Plan | None = None

    def __init__(self, potential: Potential, batch: Batch, *, stress: bool) -> None:
        self.model, self.potential = make_kernels(potential, priors=False), potential
        self.name, self.table_error = "kernels, float32", self.model.table.error
        self.batch, self.stress = batch, stress

    def reserve(self, capacity: int) -> None:
        allocate(self.model, self.batch, capacity, stress=self.stress, alone=self.alone)
        self.plan = planned_for(self.model, self.plan)
        self.name = f"kernels, float32{launches_of(self.model)}"

    def gave_up(self) -> bool:
        """Whether a launch ended with NaN, because other work kept some of its blocks from starting; reads the device.

        Then the engine takes several launches from the next `reserve` on.
        """
        return gave_up(self)

    def place_results(self, energy: Tensor, energies: Tensor, forces: Tensor) -> None:
        """Writes results into these tensors until the next `reserve`: [S] and [N] float64, [N,3] float32."""
        buffers = self.model.buffers
        assert buffers is not None
        buffers.energy, buffers.energies, buffers.forces = energy, energies, forces

    def share_scratch(self, other: GpuEngine) -> None:
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
        return outputs_of(result, result.stress if self.stress else None)
