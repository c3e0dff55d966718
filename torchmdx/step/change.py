"""Changes of a step between two evaluations: images and order, edge capacity, structure, engine.

A change may be interrupted at any line, or run out of memory. Each therefore sets a flag of `StepState` before it
begins, and clears it when it is complete.
"""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.engines.choose import exact_engine_for, forget_sums, sums_fit
from torchmdx.engines.gpu.engine import GpuEngine, left_slabs, slab_layout
from torchmdx.engines.gpu.with_priors import GpuPriorEngine
from torchmdx.neighbors.images import require_countable
from torchmdx.step.atom_order import choose_order
from torchmdx.step.buffer_storage import FAR, NEEDED, NOT_FINITE, OVERFLOW
from torchmdx.step.device_memory import memory_explained
from torchmdx.step.placement import place
from torchmdx.step.slab_order import slab_order
from torchmdx.step.state import StepState
from torchmdx.structures.domain import Domain
from torchmdx.structures.system import Batch

log = logging.getLogger("torchmdx.step.captured_step")


def refresh(step: StepState, kind: str) -> None:
    """Chooses images, origins and order for the positions in the input buffers.

    Args:
        kind: "host" or "device", where the positions came from.
    """
    buffers, batch, ordered = step.buffers, step.batch, step.ordered
    if kind == "host":
        buffers.copy_in()
    if not buffers.num_atoms:
        buffers.cell.copy_(buffers.inputs["cell"])
        return
    before, step.unsettled = step.unsettled, True
    buffers.refresh(batch, _order(step))
    _copy_atoms(batch, ordered, buffers.order.long())
    buffers.prepare(ordered.system_index)
    step.unsettled = before


def _order(step: StepState) -> Tensor | None:
    """The order of atoms for the positions in the input buffers; None: the one that they have."""
    positions, cell, batch = step.buffers.inputs["positions"], step.buffers.inputs["cell"], step.batch
    layout = slab_layout(getattr(step, "engine", None))
    if layout is None:
        return choose_order(batch, positions, cell)
    if not bool(torch.isfinite(positions).all() & torch.isfinite(cell).all()):
        return None
    return slab_order(positions, cell, batch.pbc, layout, float(step.potential.cutoff)).to(torch.int32)


def order_for_engine(step: StepState) -> None:
    """Orders the atoms as the engine that has just been chosen needs them, before it allocates."""
    if slab_layout(step.engine) is not None:
        refresh(step, "device")
        step.search.renew()


def repair(step: StepState, kind: str, flags: NDArray[np.int64]) -> bool:
    """Removes the cause of an evaluation's flags, if it can be removed; the caller then repeats the evaluation."""
    if flags[FAR] and not flags[NOT_FINITE]:
        refresh(step, kind)
    elif flags[OVERFLOW]:
        grow(step, int(flags[NEEDED]))
    elif flags[NOT_FINITE] and gave_up(step):
        settle(step, kind)
    else:
        return False
    return True


def gave_up(step: StepState) -> bool:
    """Whether results are not finite because blocks of one launch gave up waiting, or atoms have left their slabs.

    Then the engine takes several launches after the next `settle`, or other slabs.
    """
    if left_slabs(step.engine):
        log.info("neighbours have moved too many slabs apart: slabs are chosen again")
        return True
    if not (isinstance(step.engine, GpuEngine | GpuPriorEngine) and step.engine.gave_up()):
        return False
    log.warning("other work kept the blocks of one launch from running together: several launches are used from now on")
    return True


def settle(step: StepState, kind: str) -> None:
    """After an incomplete change or evaluation: rebuilds neighbour list, order, scratch memory and graphs."""
    step.unsettled = True  # until all of it is done
    kinds = step.policy.drop()
    step.search.renew()
    refresh(step, kind)
    _remake(step, kinds)


def grow(step: StepState, needed: int) -> None:
    """Enlarges the edge capacity; the caller then repeats the evaluation. Raises CapacityError.

    Not if the vectors of an Ewald sum are what does not fit: the next launch chooses others.
    """
    step.search.require_growable()
    before = step.search.capacity
    step.unsettled = True
    kinds = step.policy.drop()  # frees their memory, and the buffers to be replaced
    step.num_recoveries += 1
    if needed <= before and not sums_fit(step.engine, step.ordered):
        step.search.renew()
        forget_sums(step.engine)
        log.info("the cell has outgrown the vectors of an Ewald sum: new ones are chosen")
    else:
        step.search.grow()
        log.info("neighbour list needed %d edges, had %d: grown to %d", needed, before, step.search.capacity)
    _remake(step, kinds)


def take_over(step: StepState, given: Batch) -> None:
    """Takes another structure, on any device. Raises ValueError, and keeps the old one, if it does not fit.

    Checks, images and origins are worked out on the CPU for few atoms: an operation of a GPU takes longer than these.
    """
    if (sizes := (given.num_atoms, given.num_systems)) != (own := (step.batch.num_atoms, step.batch.num_systems)):
        raise ValueError(f"assign needs {own[0]} atoms in {own[1]} systems, got {sizes[0]} in {sizes[1]}")
    host = given if given.positions.device.type == "cpu" else given.to("cpu")
    step.potential.require_elements(host.atomic_numbers)
    require_countable(host.cell, host.pbc, step.search.radius)
    if bool(host.pbc.any()) and not step.periodic:
        raise ValueError("a step that was allocated without periodic directions can't take a periodic structure")
    step.batch.require_alike(given)
    placement = None if step.block is None else place(host, step.buffers.positions.dtype)
    before, step.assigning = step.assigning, True
    inconsistent = before or step.unsettled
    if step.block is not None and placement is not None:
        step.block.take(host, placement)
        step.buffers.fill(host, device=False)
        if step.search.backend == "triton_cell_list":  # its new buffers would depend on the cell
            step.buffers.prepare(step.ordered.system_index)
    else:
        step.batch.copy_(given)
        step.buffers.fill(host)
        for name in ("system_index", "pbc", "charge"):
            getattr(step.ordered, name).copy_(getattr(step.batch, name))
        refresh(step, "device")
    with memory_explained(step.batch, step.device):
        counts = np.bincount(host.system_index.numpy(), minlength=host.num_systems).tolist()
        if not step.search.assign(step.ordered, counts) or inconsistent:
            _remake(step, step.policy.drop())
    step.assigning = False


def fall_back(step: StepState, reason: str) -> None:
    """Switches to the exact model, after an audit found the fast path wrong; it has to pass an audit too."""
    step.policy.drop()
    stress = step.buffers.stress_wanted
    engine = exact_engine_for(step.potential, step.ordered, stress=stress, instead_of=step.engine)
    step.engine, step.audit_owed, step.fell_back = engine, True, True
    step.engine_why = step.policy.why = f"exact model, launched: {reason}"


def _remake(step: StepState, kinds: list[str]) -> None:
    """After the search has new buffers: reserves scratch memory and records the dropped graphs of these kinds."""
    step.unsettled = True
    step.engine.reserve(step.search.capacity)
    step.policy.record_again(kinds, lambda kind: lambda: step._launch(kind))
    step.audit_owed = step.audit_owed or bool(step.policy.graphs)
    step.unsettled = False


def _copy_atoms(batch: Batch, ordered: Batch, order: Tensor | slice) -> None:
    """Copies what a batch says of its atoms, in another order."""
    ordered.atomic_numbers.copy_(batch.atomic_numbers[order])
    if ordered.partial_charges is not None and batch.partial_charges is not None:
        ordered.partial_charges.copy_(batch.partial_charges[order])
    if isinstance(ordered, Domain) and isinstance(batch, Domain):
        ordered.hops.copy_(batch.hops[order])
        ordered.within.copy_(batch.within)
