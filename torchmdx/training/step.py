"""TrainStep: one optimizer step on a batch, with fixed shapes and without reading the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchmdx.engines.pairs import energy as pair_energy
from torchmdx.engines.pairs.near_list import NearList
from torchmdx.engines.plan import Network
from torchmdx.evaluation.derivatives import Result, differentiate
from torchmdx.models.heads import one_head, select_heads
from torchmdx.models.potential import Potential
from torchmdx.neighbors.search import EdgeSearch
from torchmdx.runtime.cpu_memory import keep_freed_memory
from torchmdx.runtime.device_guard import methods_on_own_device
from torchmdx.runtime.isolation import EXACT, TF32, float32_products
from torchmdx.training.config import OptimizerSection
from torchmdx.training.labelled import LabelledBatch
from torchmdx.training.lattice_sums import LatticeSums
from torchmdx.training.loss import total, used_terms, weighted_sum
from torchmdx.training.loss_section import TERMS, LossSection
from torchmdx.training.optimizer import AdamW, FlatParameters
from torchmdx.training.spare_slots import LEAST_ROOM, capacity_of, room
from torchmdx.training.step_graphs import Graphs, StepGraphs

# The values a step returns: losses, norm of the gradient, mean absolute and mean square errors; overflow and stop are
# not 0 if a list overflowed or a process received a signal.
LOSSES, SQUARES = ([f"{name}_{kind}" for name in TERMS] for kind in ("loss", "square"))
VALUES = ("loss", *LOSSES, "gradient_norm", *TERMS, *SQUARES, "overflow", "stop")
NORM, OVERFLOW, STOP = (VALUES.index(name) for name in ("gradient_norm", "overflow", "stop"))

# Systems of fewer atoms use the all-pairs search, which accepts other systems in its existing buffers.
LARGE_SYSTEM = 1500
LossHook = Callable[[Result, LabelledBatch], Tensor]


@dataclass(eq=False)
class Slot:
    """Buffers of one shape: the batch, its list, a shorter one if priors have a longer cutoff, and Ewald sums."""

    labelled: LabelledBatch
    search: EdgeSearch
    near: NearList | None
    sums: LatticeSums
    layout: tuple[bytes, bytes] | None
    graphs: Graphs = field(default_factory=dict)


@methods_on_own_device("__init__", "load", "apply", "grow")
@methods_on_own_device("__call__", "compute", "evaluate", exact=False)
class TrainStep:
    """Training steps: `step(labelled)` is load, compute, reduce, apply.

    load copies a batch into the buffers of its shape, and may read the device; compute and apply read nothing on the
    host and keep all shapes and buffers, so that they can be captured. reduce sums flat.buffer over processes.
    If a neighbour list has overflowed, or the gradient is not finite, in any process, apply changes nothing. The values
    report it; after an overflow, the caller calls `grow` and repeats the step. bf16, tf32: of matrix products.

    Args:
        loss_hook: Gives a scalar that is added to the loss of steps.
    """

    def __init__(
        self,
        potential: Potential,
        loss: LossSection,
        optimizer: OptimizerSection,
        *,
        bf16: bool = False,
        tf32: bool = False,
        reduce: Callable[[Tensor], None] | None = None,
        capacities: dict[str, int] | None = None,
        record: bool = True,
        loss_hook: LossHook | None = None,
    ) -> None:
        self.loss_hook, self.potential, self.device = loss_hook, potential, potential.device
        self.loss, self.bf16, self.tf32, self.reduce = loss, bf16, tf32, reduce
        self.terms = used_terms(loss)
        named = [(name, weight) for name, weight in potential.named_parameters() if weight.requires_grad]
        self.flat = FlatParameters(named, extra=len(VALUES))
        self.optimizer = AdamW(self.flat, potential, optimizer)
        self.pairwise = Network.of(one_head(potential)).has_pairs
        self.graphs = StepGraphs() if record and self.device.type == "cuda" else None
        self.weights, self.stop = self.flat.values.new_zeros(len(TERMS)), self.flat.values.new_zeros(())
        self._capacities = dict(capacities or {})
        self._slots: dict[str, Slot] = {}
        if self.device.type == "cpu":
            keep_freed_memory()

    def __call__(self, labelled: LabelledBatch) -> Tensor:
        """Takes a step; returns the values named in VALUES, on the device."""
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
        """Runs work on the buffers of a slot, from a CUDA graph once it is captured."""
        if self.graphs is None or not slot.sums.fixed:
            return work()
        return self.graphs.run(slot.graphs, kind, work)

    def set_rates(self, learning_rate: float, weights: Sequence[float]) -> None:
        """Sets the learning rate and the weights of the following steps, in the order of TERMS; others stay as set."""
        self.optimizer.learning_rate.fill_(learning_rate)
        for k, weight in enumerate(weights):
            self.weights[k].fill_(weight)

    def load(self, labelled: LabelledBatch) -> Slot:
        """Copies the batch into the slot of its shape, which is returned."""
        key = _key(labelled)
        layout = labelled.layout
        slot = self._slots.get(key)
        if slot is None:
            own = labelled.map(Tensor.clone)
            search = self._search(own, self._capacities.get(key))
            near, sums = (
                self._near(self._capacities.get(_near(key))),
                LatticeSums(self.potential, key, self._capacities),
            )
            slot = Slot(own, search, near, sums, layout)
            slot.sums.load(labelled)
            self._make_room(slot)
            self._slots[key] = slot
            return slot
        for name, buffer in slot.labelled.tensors().items():
            buffer.copy_(labelled.tensors()[name])
        if slot.layout != layout:
            slot.layout = None  # invalid until the list fits the new layout
            if not slot.search.assign(slot.labelled.batch, labelled.counts()):
                slot.graphs.clear()  # they use buffers that were replaced
            slot.layout = layout
        if not slot.sums.load(labelled):
            slot.graphs.clear()
        return slot

    def _search(self, labelled: LabelledBatch, capacity: int | None) -> EdgeSearch:
        """A list for the batch. Spare slots cost time, because pair quantities are computed for empty slots too."""
        largest = max(np.frombuffer(labelled.layout[0], np.int64), default=0)
        small = labelled.forces.is_cuda and largest < LARGE_SYSTEM
        backend = "triton_brute_force" if small and importlib.util.find_spec("triton") else "auto"
        search = EdgeSearch(self.potential.cutoff, backend=backend, reverse=self.pairwise)
        if capacity is None:
            needed = int(search.allocate(labelled.batch, 1).needed)
            search.allocate(labelled.batch, needed + room(needed, None) + LEAST_ROOM)
            capacity = capacity_of(search, labelled)
        search.allocate(labelled.batch, capacity)
        return search

    def _near(self, capacity: int | None) -> NearList | None:
        cutoff = float(self.potential.config.cutoff)
        return NearList(cutoff, capacity) if self.pairwise and self.potential.cutoff > cutoff else None

    def _make_room(self, slot: Slot) -> None:
        """Chooses the capacity of the shorter list for the current batch, if it has none. Reads the device."""
        if slot.near is not None and slot.near.capacity is None:
            assert slot.search.reverse is not None
            needed = slot.near.count(slot.labelled.batch, slot.search.edges, slot.search.reverse)
            slot.near.capacity = needed + room(needed, None) + LEAST_ROOM

    def compute(self, slot: Slot) -> Tensor:
        """Computes gradient and values of the batch of the slot into flat.buffer; returns the values."""
        # In one thread: each numbers its own operations, so that with two the order of theirs, in which gradients are
        # added, would depend on what ran before.
        with self._products(), torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
            result, overflow = self._predict(slot, create_graph=True)
            values, errors = self._losses(result, slot.labelled)
            loss = total(values, self.weights)
            if self.loss_hook is not None:
                loss = loss + self.loss_hook(result, slot.labelled)
            gradients = torch.autograd.grad(loss, self.flat.parameters, allow_unused=True)
        self.flat.set_gradients(gradients)
        return self.flat.extra.copy_(self._values(loss, values, errors, overflow))

    def apply(self) -> Tensor:
        """Takes the optimizer step from flat.buffer; returns the values, with the norm of the gradient."""
        values = self.flat.extra.clone()
        good = (values[OVERFLOW] == 0) & torch.isfinite(values[0])
        values[NORM].copy_(self.optimizer.apply(good))
        return values

    def evaluate(self, labelled: LabelledBatch) -> Tensor:
        """Values of a batch, without an optimizer step; the norm is 0."""
        slot = self.load(labelled)
        found = self._run(slot, "evaluate", lambda: self._evaluate(slot))
        if self.reduce is not None:
            self.reduce(found)
        return found

    def _evaluate(self, slot: Slot) -> Tensor:
        with self._products():
            result, overflow = self._predict(slot, create_graph=False)
        with torch.no_grad():
            values, errors = self._losses(result, slot.labelled)
            return self._values(total(values, self.weights), values, errors, overflow)

    def grow(self, labelled: LabelledBatch) -> None:
        """Enlarges the list of this shape if it overflowed in this process. Reads the device."""
        slot = self._slots[_key(labelled)]
        if bool(slot.search.edges.overflow):
            slot.search.grow()
            edges = slot.search.update(slot.labelled.batch.positions, slot.labelled.batch.cell)
            if not bool(edges.overflow):  # overflow after growing: an invalid cell, for which no capacity suffices
                slot.search.allocate(slot.labelled.batch, capacity_of(slot.search, labelled))
            slot.graphs.clear()
            if slot.near is not None:
                slot.search.update(slot.labelled.batch.positions, slot.labelled.batch.cell)
                slot.near.capacity = None
                self._make_room(slot)

    def capacities(self) -> dict[str, int]:
        """Capacities of the lists by shape. Rounding depends on them, so a resumed run reuses them."""
        found = self._capacities | {key: slot.search.capacity for key, slot in self._slots.items()}
        for key, slot in self._slots.items():
            found |= slot.sums.capacities()
            found |= {_near(key): slot.near.capacity} if slot.near and slot.near.capacity else {}
        return found

    def _predict(self, slot: Slot, create_graph: bool) -> tuple[Result, Tensor]:
        batch = slot.labelled.batch
        select_heads(self.potential, slot.labelled.head, batch)
        edges = slot.search.update(batch.positions, batch.cell)
        forces, stress = "forces" in self.terms, "stress" in self.terms
        with self._mixed(batch.positions.device), slot.sums.used():
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

    def _products(self) -> float32_products:
        return float32_products(TF32 if self.tf32 else EXACT)

    def _mixed(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False) if self.bf16 else nullcontext()

    def _losses(self, result: Result, labelled: LabelledBatch) -> tuple[list[Tensor], list[Tensor]]:
        """Losses of all terms, and their mean absolute and mean square errors; 0 for omitted ones."""
        dtype, zero = labelled.forces.dtype, labelled.forces.new_zeros(())
        found, importance = {}, labelled.frame_weight
        if "energy" in self.terms:
            # In float64, because total energies are large compared with their errors.
            errors = (result.energy - labelled.energy).to(dtype) / labelled.count
            found["energy"] = weighted_sum(errors, labelled.energy_weight, self.loss.energy, importance)
        if result.forces is not None:
            errors, of_atoms = result.forces - labelled.forces, importance[labelled.batch.system_index]
            found["forces"] = weighted_sum(errors, labelled.force_weight, self.loss.forces, of_atoms)
        if result.stress is not None:
            errors = result.stress - labelled.stress
            found["stress"] = weighted_sum(errors, labelled.stress_weight, self.loss.stress, importance)
        if "charges" in self.terms and result.charges is not None:
            errors, of_atoms = result.charges.to(dtype) - labelled.charges, importance[labelled.batch.system_index]
            found["charges"] = weighted_sum(errors, labelled.charges_weight, self.loss.charges, of_atoms)
        if "dipole" in self.terms and result.dipoles is not None:
            errors = result.dipoles.to(dtype) - labelled.dipole
            found["dipole"] = weighted_sum(errors, labelled.dipole_weight, self.loss.dipole, importance)
        losses, sizes, squares = zip(*(found.get(name, (zero,) * 3) for name in TERMS), strict=True)
        return list(losses), [*sizes, *squares]

    def _values(self, loss: Tensor, values: list[Tensor], errors: list[Tensor], overflow: Tensor) -> Tensor:
        rest = torch.zeros_like(loss), *errors, overflow.to(loss.dtype), self.stop
        return torch.stack([loss, *values, *rest]).detach()


def _key(labelled: LabelledBatch) -> str:
    return "{}x{}".format(*labelled.shape)


def _near(key: str) -> str:
    return f"{key} near"
