"""TrainStep: from a batch to changed weights, in fixed shapes and without reading the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchmdx.engines.pairs import energy as pair_energy
from torchmdx.engines.pairs.near_list import NearList
from torchmdx.evaluate import Result, differentiate
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.cpu_memory import keep_freed_memory
from torchmdx.runtime.device_guard import methods_on_own_device
from torchmdx.training.config import LossSection, OptimizerSection
from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.loss import total, used_terms, weighted_sum
from torchmdx.training.optimizer import AdamW, FlatParameters
from torchmdx.training.recorder import Graphs, Recorder

# What a step returns: losses, the gradient's norm, mean absolute errors, and, where not 0, that a list
# overflowed and that a process was asked to stop.
VALUES = (
    "loss",
    "energy_loss",
    "forces_loss",
    "stress_loss",
    "gradient_norm",
    "energy",
    "forces",
    "stress",
    "overflow",
    "stop",
)
NORM, OVERFLOW, STOP = (VALUES.index(name) for name in ("gradient_norm", "overflow", "stop"))


# Slots beyond those that a batch needs, for others with more edges: a share of them, and so many. Sums of many systems
# vary less: so many standard deviations of a sum do too, where there are systems enough to tell, and a smaller share.
HEAD_ROOM, LEAST_ROOM = 0.06, 64
DEVIATIONS, SYSTEMS_TO_TELL, LEAST_SHARE = 5.0, 16, 0.005
# Systems of fewer atoms are searched pair by pair: that search takes other systems in the buffers it has.
LARGE_SYSTEM = 1500


@dataclass(eq=False)
class Slot:
    """Buffers of one shape: the batch that steps read, its list, and the network's own where priors see farther."""

    labelled: LabelledBatch
    search: EdgeSearch
    near: NearList | None
    layout: tuple[bytes, bytes] | None
    graphs: Graphs = field(default_factory=dict)


@methods_on_own_device("__init__", "__call__", "load", "compute", "apply", "evaluate", "grow")
class TrainStep:
    """One step after another: `step(labelled)` is load, compute, reduce, apply.

    load copies a batch into the buffers of its shape and may look at it; compute and apply read nothing on the host
    and keep every shape and buffer, so that a CUDA graph can hold them. reduce sums flat.buffer over processes.

    Where a neighbour list has overflowed, or the gradient is not finite, in any process, apply changes nothing; who
    reads the values sees it, calls `grow` for the first, and does the step again.
    """

    def __init__(
        self,
        potential: Potential,
        loss: LossSection,
        optimizer: OptimizerSection,
        *,
        bf16: bool = False,
        reduce: Callable[[Tensor], None] | None = None,
        capacities: dict[str, int] | None = None,
        record: bool = True,
    ) -> None:
        self.potential, self.device = potential, potential.device
        self.loss, self.bf16, self.reduce = loss, bf16, reduce
        self.terms = used_terms(loss)
        named = [(name, weight) for name, weight in potential.named_parameters() if weight.requires_grad]
        self.flat = FlatParameters(named, extra=len(VALUES))
        self.optimizer = AdamW(self.flat, potential, optimizer)
        self.pairwise = pair_energy.serves(potential)
        self.recorder = Recorder() if record and self.device.type == "cuda" else None
        self.weights = self.flat.values.new_zeros(3)
        self.stop = self.flat.values.new_zeros(())
        self._capacities = dict(capacities or {})
        self._slots: dict[str, Slot] = {}
        if self.device.type == "cpu":
            keep_freed_memory()

    def __call__(self, labelled: LabelledBatch) -> Tensor:
        """Values of VALUES, on the device."""
        slot = self.load(labelled)
        if self.reduce is None:
            return self._run(slot, "step", lambda: self._whole(slot))
        self._run(slot, "compute", lambda: self.compute(slot))
        self.reduce(self.flat.buffer)
        return self.apply()

    def _whole(self, slot: Slot) -> Tensor:
        self.compute(slot)
        return self.apply()

    def _run(self, slot: Slot, kind: str, work: Callable[[], Tensor]) -> Tensor:
        """Work on a slot's buffers: launched, or after a few times replayed."""
        return work() if self.recorder is None else self.recorder.run(slot.graphs, kind, work)

    def set_rates(self, learning_rate: float, weights: Sequence[float]) -> None:
        """Learning rate and the weights of the terms, for the steps that follow."""
        self.optimizer.learning_rate.fill_(learning_rate)
        for k, weight in enumerate(weights):
            self.weights[k].fill_(weight)

    def load(self, labelled: LabelledBatch) -> Slot:
        """The slot of its shape, holding the batch."""
        key = _key(labelled)
        layout = labelled.layout
        slot = self._slots.get(key)
        if slot is None:
            own = labelled.map(Tensor.clone)
            search = self._search(own, self._capacities.get(key))
            slot = Slot(own, search, self._near(self._capacities.get(_near(key))), layout)
            self._make_room(slot)
            self._slots[key] = slot
            return slot
        for name, buffer in slot.labelled.tensors().items():
            buffer.copy_(labelled.tensors()[name])
        if slot.layout != layout:
            slot.layout = None  # until the list is the new layout's
            if not slot.search.assign(slot.labelled.batch, labelled.counts()):
                slot.graphs.clear()  # they hold buffers that were replaced
            slot.layout = layout
        return slot

    def _search(self, labelled: LabelledBatch, capacity: int | None) -> EdgeSearch:
        """A list for the batch. Room costs time: everything that belongs to pairs is computed for empty slots too."""
        largest = max(np.frombuffer(labelled.layout[0], np.int64), default=0)
        small = labelled.forces.is_cuda and largest < LARGE_SYSTEM
        backend = "triton_brute_force" if small and importlib.util.find_spec("triton") else "auto"
        search = EdgeSearch(self.potential.cutoff, backend=backend, reverse=self.pairwise)
        if capacity is None:
            needed = int(search.allocate(labelled.batch, 1).needed)
            search.allocate(labelled.batch, needed + room(needed, None) + LEAST_ROOM)
            capacity = _capacity(search, labelled)
        search.allocate(labelled.batch, capacity)
        return search

    def _near(self, capacity: int | None) -> NearList | None:
        cutoff = float(self.potential.config.cutoff)
        return NearList(cutoff, capacity) if self.pairwise and self.potential.cutoff > cutoff else None

    def _make_room(self, slot: Slot) -> None:
        """Slots of the near part for the batch that is there, where they are not chosen yet. Reads the device."""
        if slot.near is not None and slot.near.capacity is None:
            assert slot.search.reverse is not None
            needed = slot.near.count(slot.labelled.batch, slot.search.edges, slot.search.reverse)
            slot.near.capacity = needed + room(needed, None) + LEAST_ROOM

    def compute(self, slot: Slot) -> Tensor:
        """Gradient and values of the slot's batch into flat.buffer, whose values are returned."""
        with torch.enable_grad():
            result, overflow = self._predict(slot, create_graph=True)
            values, errors = self._losses(result, slot.labelled)
            loss = total(values, self.weights)
            gradients = torch.autograd.grad(loss, self.flat.parameters, allow_unused=True)
        self.flat.set_gradients(gradients)
        return self.flat.extra.copy_(self._values(loss, values, errors, overflow))

    def apply(self) -> Tensor:
        """The optimizer's step with what flat.buffer holds; the values, with the gradient's norm."""
        values = self.flat.extra.clone()
        good = (values[OVERFLOW] == 0) & torch.isfinite(values[0])
        values[NORM].copy_(self.optimizer.apply(good))
        return values

    def evaluate(self, labelled: LabelledBatch) -> Tensor:
        """Values of a batch, without a step; the norm is 0."""
        slot = self.load(labelled)
        found = self._run(slot, "evaluate", lambda: self._evaluate(slot))
        if self.reduce is not None:
            self.reduce(found)
        return found

    def _evaluate(self, slot: Slot) -> Tensor:
        result, overflow = self._predict(slot, create_graph=False)
        with torch.no_grad():
            values, errors = self._losses(result, slot.labelled)
            return self._values(total(values, self.weights), values, errors, overflow)

    def grow(self, labelled: LabelledBatch) -> None:
        """Room for the batch of this shape that overflowed, if it did here. Reads the device."""
        slot = self._slots[_key(labelled)]
        if bool(slot.search.edges.overflow):
            slot.search.grow()
            edges = slot.search.update(slot.labelled.batch.positions, slot.labelled.batch.cell)
            if not bool(edges.overflow):  # else its cell is such that no list holds its neighbours
                slot.search.allocate(slot.labelled.batch, _capacity(slot.search, labelled))
            slot.graphs.clear()
            if slot.near is not None:
                slot.search.update(slot.labelled.batch.positions, slot.labelled.batch.cell)
                slot.near.capacity = None
                self._make_room(slot)

    def capacities(self) -> dict[str, int]:
        """Slots of each shape's list. Rounding depends on them, so that a resumed run takes them over."""
        near = {_near(key): slot.near.capacity for key, slot in self._slots.items() if slot.near and slot.near.capacity}
        return self._capacities | {key: slot.search.capacity for key, slot in self._slots.items()} | near

    def _predict(self, slot: Slot, create_graph: bool) -> tuple[Result, Tensor]:
        batch = slot.labelled.batch
        edges = slot.search.update(batch.positions, batch.cell)
        forces, stress = "forces" in self.terms, "stress" in self.terms
        with self._mixed(batch.positions.device):
            if self.pairwise:
                reverse = slot.search.reverse
                assert reverse is not None
                near = None if slot.near is None else slot.near.pairs(batch, edges, reverse)
                result = pair_energy.differentiate_pairwise(
                    self.potential, batch, edges, reverse,
                    forces=forces, stress=stress, create_graph=create_graph, near=near,
                )  # fmt: skip
            else:
                result = differentiate(
                    self.potential, batch, edges, forces=forces, stress=stress, create_graph=create_graph
                )
        return result, edges.overflow

    def _mixed(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()

    def _losses(self, result: Result, labelled: LabelledBatch) -> tuple[list[Tensor], list[Tensor]]:
        """Losses and mean absolute errors of the three terms; 0 for those left out."""
        dtype = labelled.forces.dtype
        zero = labelled.forces.new_zeros(())
        found = {}
        if "energy" in self.terms:
            # Total energies are long numbers, their errors short ones: subtracted in float64.
            errors = (result.energy - labelled.energy).to(dtype) / labelled.count
            found["energy"] = weighted_sum(errors, labelled.energy_weight, self.loss.energy)
        if result.forces is not None:
            found["forces"] = weighted_sum(result.forces - labelled.forces, labelled.force_weight, self.loss.forces)
        if result.stress is not None:
            found["stress"] = weighted_sum(result.stress - labelled.stress, labelled.stress_weight, self.loss.stress)
        pairs = [found.get(name, (zero, zero)) for name in ("energy", "forces", "stress")]
        return [loss for loss, _ in pairs], [error for _, error in pairs]

    def _values(self, loss: Tensor, values: list[Tensor], errors: list[Tensor], overflow: Tensor) -> Tensor:
        rest = torch.zeros_like(loss), *errors, overflow.to(loss.dtype), self.stop
        return torch.stack([loss, *values, *rest]).detach()


def room(needed: int, of_systems: NDArray[np.int64] | None) -> int:
    """Slots to spare for batches like one that needs `needed`, of_systems [S] of them for each of its systems."""
    most = int(HEAD_ROOM * needed)
    if of_systems is None or len(of_systems) < SYSTEMS_TO_TELL:
        return most
    spread = DEVIATIONS * float(of_systems.std()) * len(of_systems) ** 0.5
    return min(most, int(max(spread, LEAST_SHARE * needed)))


def _capacity(search: EdgeSearch, labelled: LabelledBatch) -> int:
    """For a list that holds the batch. Reads the device."""
    ends = np.cumsum(np.frombuffer(labelled.layout[0], np.int64))
    starts = search.edges.row_ptr.cpu().numpy()[np.concatenate([[0], ends])].astype(np.int64)
    return int(search.edges.num_edges) + room(int(search.edges.num_edges), np.diff(starts)) + LEAST_ROOM


def _key(labelled: LabelledBatch) -> str:
    return "{}x{}".format(*labelled.shape)


def _near(key: str) -> str:
    """What the capacity of the near part of a shape's list is called."""
    return f"{key} near"
